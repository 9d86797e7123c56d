"""Whether a database is fit to serve, and what to do when it is not. Asked at every open, and by `stateroom doctor`."""

from __future__ import annotations

import msgspec

from stateroom.backends.postgres import schema
from stateroom.backends.postgres.pipe import Pipe
from stateroom.errors import InvalidInput


class Finding(msgspec.Struct, frozen=True):
    """Something that is wrong, and the remedy."""

    code: str
    what: str
    remedy: str


OLDEST = 150_000
_MIGRATE = "Run 'stateroom migrate --store URL' with a role that may create roles and schemas."
_AS_APP = f"Serve as a role that is none of these, such as {schema.APP}: put it into the store's URL."


def findings(pipe: Pipe) -> list[Finding]:
    """Everything wrong, the most basic first. When that is found, what depends on it is not looked at."""
    if pipe.server_version < OLDEST:
        return [
            Finding("server_too_old", f"PostgreSQL {pipe.server_version // 10_000} is too old.", "Use PostgreSQL 15 or newer.")
        ]
    who = role(pipe)
    ((there, path),) = pipe.ask("select to_regclass('stateroom.migration') is not null, to_regclass('migration') is not null")
    if not there:
        return [*who, Finding("not_migrated", "There are no tables of Stateroom here.", _MIGRATE)]
    if not path:
        return [*who, Finding("search_path", "This role does not find the schema 'stateroom'.", _MIGRATE)]
    return [*who, *versions(pipe), *walls(pipe)]


def role(pipe: Pipe) -> list[Finding]:
    """The wall does not hold for everybody: who must not serve (P28)."""
    ((name, above, past, owner),) = pipe.ask(
        "select current_user::text, rolsuper, rolbypassrls, exists (select 1 from pg_roles o where o.rolname = ?"
        " and pg_has_role(current_user, o.oid, 'member')) from pg_roles where rolname = current_user",
        (schema.OWNER,),
    )
    wrong = [
        Finding(code, f"The role {name!r} {what}: row-level security does not hold it.", _AS_APP)
        for is_so, code, what in (
            (above, "role_superuser", "is a superuser"),
            (past, "role_bypassrls", "may bypass row-level security"),
            (owner and not above, "role_owner", "is a member of the owner's role"),
        )
        if is_so
    ]
    return wrong


def versions(pipe: Pipe) -> list[Finding]:
    ((known,),) = pipe.ask("select coalesce(max(version), 0) from migration")
    ((needs,),) = pipe.ask("select coalesce((select value::bigint from meta where name = 'needs'), 0)")
    if needs > schema.VERSION:
        what = f"This store needs a worker that knows schema {needs}; this one knows {schema.VERSION}."
        return [Finding("store_too_new", what, "Upgrade stateroom.")]
    missing = [
        f"{migration.version} ({migration.name})"
        for migration in schema.MIGRATIONS
        if len(pipe.ask("select 1 from migration where version = ?", (migration.version,))) < len(migration.steps)
    ]
    if missing:
        return [Finding("not_migrated", f"The tables are at schema {known}; missing: {', '.join(missing)}.", _MIGRATE)]
    return []


def walls(pipe: Pipe) -> list[Finding]:
    """Every walled table has its policy, and nobody is above it."""
    rows = pipe.ask(
        "select relname::text, relrowsecurity and relforcerowsecurity and exists (select 1 from pg_policy where polrelid = c.oid"
        " and polname = 'tenant') from pg_class c where relnamespace = 'stateroom'::regnamespace and relkind in ('r', 'p')"
    )
    open_ = sorted(name for name, walled in rows if not walled and schema.table_of(name) not in schema.OPEN)
    if open_:
        return [Finding("wall_open", f"Row-level security is off for: {', '.join(open_)}.", _MIGRATE)]
    return []


def refuse(found: list[Finding]) -> None:
    """InvalidInput for the first finding, if there is one."""
    if found:
        raise InvalidInput(f"{found[0].what} {found[0].remedy}", code=found[0].code)
