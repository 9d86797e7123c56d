"""Whether a database is fit to serve, and what to do when it is not. Asked at every open, and by `stateroom doctor`."""

from __future__ import annotations

import msgspec

from stateroom.backends.postgres import schema
from stateroom.backends.postgres.pipe import Pipe
from stateroom.backends.sql.migration import left
from stateroom.errors import InvalidInput


class Finding(msgspec.Struct, frozen=True):
    """Something that is wrong, and the remedy."""

    code: str
    what: str
    remedy: str


OLDEST = 150_000
_MIGRATE = "Run 'stateroom migrate --store URL' with a role that may create roles and schemas."
_AS_WORKER = f"Serve as {schema.APP}, or as a login role that was granted it; {schema.READER} is for commands that show."
_AS_APP = f"Serve as a role that is none of these, such as {schema.APP}: put it into the store's URL."


def findings(pipe: Pipe) -> list[Finding]:
    """Everything wrong, the most basic first. When that is found, what depends on it is not looked at."""
    ((encoding, who, named),) = pipe.ask(
        "select current_setting('server_encoding'), current_user::text, quote_ident(current_user)"
    )
    if unfit := server(pipe.server_version, encoding):
        return unfit
    above = role(pipe)
    if not pipe.ask("select 1 from pg_namespace where nspname = ?", (schema.SCHEMA,)):
        return [*above, Finding("not_migrated", "There are no tables of Stateroom here.", _MIGRATE)]
    ((usable,),) = pipe.ask("select has_schema_privilege(current_user, ?, 'usage')", (schema.SCHEMA,))
    if not usable:
        remedy = f"Serve as {schema.APP}, or as a login role that was granted it."
        return [*above, Finding("grants_missing", f"The role {who!r} may not use the schema {schema.SCHEMA!r}.", remedy)]
    ((there, found),) = pipe.ask(
        "select to_regclass('stateroom.migration') is not null,"
        " coalesce(to_regclass('migration') = to_regclass('stateroom.migration'), false)"
    )
    if not there:
        return [*above, Finding("not_migrated", "There are no tables of Stateroom here.", _MIGRATE)]
    if not found:
        remedy = (
            f"alter role {named} set search_path = {schema.SCHEMA}, or ?options=-c%20search_path%3D{schema.SCHEMA} in the URL."
        )
        return [*above, Finding("search_path", f"The role {who!r} does not find the tables of {schema.SCHEMA!r}.", remedy)]
    return [*above, *versions(pipe), *grants(pipe), *walls(pipe)]


def of_worker(pipe: Pipe) -> list[Finding]:
    """The same for whoever is going to write."""
    found = findings(pipe)
    ((who, looks),) = pipe.ask(f"select current_user::text, {LOOKS_ONLY}")
    return found or ([Finding("role_reads_only", f"The role {who!r} only looks.", _AS_WORKER)] if looks else [])


def server(version: int, encoding: str) -> list[Finding]:
    """What no migration can mend."""
    if version < OLDEST:
        return [Finding("server_too_old", f"PostgreSQL {version // 10_000} is too old.", "Use PostgreSQL 15 or newer.")]
    if encoding != "UTF8":
        remedy = "Make another database: create database … encoding 'UTF8' template template0."
        return [Finding("encoding_unfit", f"The database keeps text as {encoding}, which cannot hold everything.", remedy)]
    return []


def role(pipe: Pipe) -> list[Finding]:
    """The wall does not hold for everybody: who must not serve (P28)."""
    ((name, above, past, owner),) = pipe.ask(
        "select current_user::text, rolsuper, rolbypassrls, exists (select 1 from pg_roles o where o.rolname = ?"
        " and pg_has_role(current_user, o.oid, 'member')) from pg_roles where rolname = current_user",
        (schema.OWNER,),
    )
    return [
        Finding(code, f"The role {name!r} {what}: row-level security does not hold it.", _AS_APP)
        for is_so, code, what in (
            (above, "role_superuser", "is a superuser"),
            (past and not above, "role_bypassrls", "may bypass row-level security"),
            (owner and not above, "role_owner", "is a member of the owner's role"),
        )
        if is_so
    ]


def versions(pipe: Pipe) -> list[Finding]:
    """Whether the tables and this worker know each other."""
    ((known,),) = pipe.ask("select coalesce(max(version), 0) from migration")
    ((needs,),) = pipe.ask("select coalesce((select value::bigint from meta where name = 'needs'), 0)")
    if needs > schema.VERSION:
        what = f"This store needs a worker that knows schema {needs}; this one knows {schema.VERSION}."
        return [Finding("store_too_new", what, "Upgrade stateroom.")]
    done = {(version, step) for version, step in pipe.ask("select version, step from migration")}
    if missing := left(schema.MIGRATIONS, done):
        names = ", ".join(migration.title(number) for migration, number in missing)
        return [Finding("not_migrated", f"The tables are at schema {known}; missing: {names}.", _MIGRATE)]
    ((complete,),) = pipe.ask("select count(*) from meta where name in ('secret', 'epoch', 'timeline')")
    if complete < 3:
        return [Finding("not_migrated", "The migration was cut short before its end.", _MIGRATE)]
    return []


def grants(pipe: Pipe) -> list[Finding]:
    """What this version knows can be read and called by this role, and written unless it is who only looks."""
    ((who, looks),) = pipe.ask(f"select current_user::text, {LOOKS_ONLY}")
    return grants_of(pipe, who, looks=looks)


def grants_of(pipe: Pipe, role: str, *, looks: bool) -> list[Finding]:
    """The same of any role."""
    said = [("read", "not has_table_privilege(?::name, oid, 'select')")]
    if not looks:
        may = " and ".join(f"has_table_privilege(?1::name, oid, '{what}')" for what in ("insert", "update"))
        said += [
            ("write", f"relname <> 'migration' and not ({may})"),
            ("delete from", f"relname <> all (array{list(_KEPT)}) and not has_table_privilege(?::name, oid, 'delete')"),
        ]
    for verb, lacks in said:
        if closed := sorted(name for (name,) in pipe.ask(f"{_TABLES} and {lacks}", (role,)) if name in schema.COPIES):
            return [Finding("grants_missing", f"The role {role!r} may not {verb}: {', '.join(closed)}.", _MIGRATE)]
    if not looks and (closed := sorted(name for (name,) in pipe.ask(_UNCALLED, (role, schema.OWNER)))):
        return [Finding("grants_missing", f"The role {role!r} may not call: {', '.join(closed)}.", _MIGRATE)]
    return []


# Whether this role is one that only looks: the reader's, or one that was granted it and not the workers'.
_MEMBER = "exists (select 1 from pg_roles o where o.rolname = '{}' and pg_has_role(current_user, o.oid, 'member'))"
LOOKS_ONLY = f"({_MEMBER.format(schema.READER)} and not {_MEMBER.format(schema.APP)})"
_KEPT = ("migration", "meta", "clock", "tenant")  # nobody deletes a row of these
_TABLES = (
    "select relname::text from pg_class where relnamespace = 'stateroom'::regnamespace and relkind in ('r', 'p')"
    " and not relispartition"
)
_UNCALLED = (
    "select proname::text from pg_proc join pg_roles o on o.oid = proowner where pronamespace = 'stateroom'::regnamespace"
    " and o.rolname = ?2 and not has_function_privilege(?1::name, pg_proc.oid, 'execute')"
)


def unsound(pipe: Pipe) -> list[Finding]:
    """What a migration would mend in a store whose tables are all there, and what it would not: the roles and what they may,
    and the walls. Any role may ask."""
    found = list[Finding]()
    there = {name for (name,) in pipe.ask("select rolname::text from pg_roles")}
    for role, looks in ((schema.APP, False), (schema.READER, True)):
        if role not in there:
            found.append(Finding("role_missing", f"There is no role {role!r}.", _MIGRATE))
        elif not pipe.ask("select has_schema_privilege(?::name, ?, 'usage')", (role, schema.SCHEMA))[0][0]:
            found.append(Finding("grants_missing", f"The role {role!r} may not use the schema {schema.SCHEMA!r}.", _MIGRATE))
        else:
            found += grants_of(pipe, role, looks=looks)
    return [*found, *walls(pipe)]


def walls(pipe: Pipe) -> list[Finding]:
    """Nothing is above or beside the wall. Tables that a newer version brought are its own affair."""
    found = list[Finding]()
    if open_ := sorted(name for name, sound in pipe.ask(WALLS) if not sound and schema.table_of(name) in schema.WALLED):
        found.append(Finding("wall_open", f"Row-level security is not as it should be for: {', '.join(open_)}.", _MIGRATE))
    beside = pipe.ask(
        "select polname::text, c.relname::text, quote_ident(polname), quote_ident(c.relname) from pg_policy"
        " join pg_class c on c.oid = polrelid"
        " where relnamespace = 'stateroom'::regnamespace and polpermissive and polname not in ('tenant', 'system')"
    )
    for policy, table, quoted, there in beside:
        if schema.table_of(table) in schema.WALLED:
            what = f"The policy {policy!r} on {table} lets through what the wall holds back."
            found.append(Finding("wall_open", what, f"drop policy {quoted} on {schema.SCHEMA}.{there}"))
    return found


# Name and whether it is walled as it should be, for each table and partition.
WALLS = """
select relname::text, relrowsecurity and relforcerowsecurity and coalesce((
    select count(*) = 2 and bool_and(polpermissive and polcmd = '*' and polwithcheck is null
        and cardinality(polroles) = case polname when 'tenant' then 2 else 1 end
        and coalesce((select string_agg(r.rolname::text, ' ' order by r.rolname) from pg_roles r where r.oid = any(polroles)), '')
            = case polname when 'tenant' then 'stateroom_app stateroom_reader' else 'stateroom_owner' end
        and pg_get_expr(polqual, polrelid) = case polname
        when 'tenant' then '(tenant = (NULLIF(current_setting(''stateroom.tenant''::text, true), ''''::text))::bigint)'
        else '(current_setting(''stateroom.system''::text, true) = ''on''::text)' end)
    from pg_policy where polrelid = c.oid and polname in ('tenant', 'system')), false)
from pg_class c where relnamespace = 'stateroom'::regnamespace and relkind in ('r', 'p')
"""


def refuse(found: list[Finding]) -> None:
    """InvalidInput for the first finding, if there is one."""
    if found:
        raise InvalidInput(f"{found[0].what} {found[0].remedy}", code=found[0].code)
