"""A PostgreSQL database as a patient: whether a worker with this URL can serve, and what keeps it from serving well.

Needs the `postgres` extra. Every look is a read-only transaction of its own, so it also works behind a pooler, and none takes
longer than the time it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from stateroom.backends import urls
from stateroom.backends.postgres import check, schema
from stateroom.backends.postgres.pipe import Lost, Refused
from stateroom.backends.postgres.settings import Settings
from stateroom.cli.doctor import expired, postgres_load, record
from stateroom.cli.doctor.finding import Finding
from stateroom.cli.doctor.patient import Patient
from stateroom.cli.terminal import when
from stateroom.clock import SystemClock
from stateroom.errors import Unavailable
from stateroom.flows.told import NOTE

_CLOCK_MS_MAX: Final = 60_000  # machines' clocks differ by less
_LATE_MS: Final = 120_000  # maintenance looks every second
_RECORD_S_MAX: Final = 120  # for the records of all tenants
_TENANTS_MAX: Final = 1_000
_OWN_CLOCK: Final = "(extract(epoch from clock_timestamp()) * 1000)::bigint"


def examine(url: str) -> Iterator[Finding]:
    """Everything there is to say; what cannot be reached ends it."""
    settings = Settings.parse(url)
    try:
        patient = Patient(settings)
    except (Lost, Unavailable) as lost:
        yield _unreachable(str(lost), url)
        return
    try:
        yield from _examine(patient)
    except Lost as lost:
        yield Finding("bad", "connection_lost", f"the connection broke: {lost}", "Look into the server's log; then ask again.")
    finally:
        patient.close()


def _examine(patient: Patient) -> Iterator[Finding]:
    found = check.findings(patient.pipe)
    patient.above = any(finding.code in ("role_superuser", "role_bypassrls") for finding in found)
    yield from _server(patient)
    yield from (Finding("bad", one.code, one.what, one.remedy) for one in found)
    beyond = {one.code for one in found} & {"server_too_old", "encoding_unfit", "not_migrated", "grants_missing", "store_too_new"}
    for look in postgres_load.LOOKS if beyond else (*_LOOKS, *postgres_load.LOOKS):
        try:
            yield from look(patient)
        except Refused as refused:
            name = look.__name__.strip("_").replace("_", " ")
            yield Finding("warn", "not_looked_at", f"the look at {name} was refused: {refused}", _NOT_SEEN)


_NOT_SEEN = f"Ask with the URL that workers use, or as {schema.READER}; when it took too long, ask when there is less to do."


_ROOM: Final = "Raise max_connections, use fewer workers or lanes, or put a pooler before it."
_REFUSALS: Final = (
    ("pg_hba.conf", "login_refused", "Let this role in from this address: a line in pg_hba.conf, then select pg_reload_conf()."),
    ("password", "login_refused", "Give the role its password: alter role … password …; here, ~/.pgpass or PGPASSWORD has it."),
    ("too many", "connections_exhausted", _ROOM),
    ("connection slots", "connections_exhausted", _ROOM),
    ("starting up", "starting_up", "Wait: it recovers from a crash, or follows a primary."),
    ("database", "database_missing", "create database … encoding 'UTF8', then 'stateroom migrate --store URL'."),
    ("role", "role_missing", "Run 'stateroom migrate --store URL': it makes the roles."),
)


def _unreachable(what: str, url: str) -> Finding:
    """By the words of libpq, which has no codes for it."""
    line = " ".join(what.split())
    for word, code, remedy in _REFUSALS:
        if word in line.partition("FATAL:")[2]:
            return Finding("bad", code, f"the database refuses us: {line}", remedy)
    remedy = "Is it running? Check host and port in the URL, listen_addresses of the server, and what lies between."
    return Finding("bad", "unreachable", f"{urls.shown(url)} does not answer: {line}", remedy)


# ── who and what ────────────────────────────────────────────────────────────────────────────────────────────────────


def _server(patient: Patient) -> Iterator[Finding]:
    version, standby, read_only, database, role, named = patient.row(
        "select current_setting('server_version'), pg_is_in_recovery(), current_setting('default_transaction_read_only') = 'on',"
        " current_database()::text, current_user::text, quote_ident(current_user)"
    )
    yield Finding("ok", "server", f"PostgreSQL {version}, database {database!r}, as {role!r}")
    if standby:
        remedy = "Name the primary; with several hosts in the URL, target_session_attrs=read-write finds it. Or promote this one."
        yield Finding("bad", "standby", "it is a standby: it takes no writes", remedy)
    elif read_only:
        remedy = (
            f"alter role {named} reset default_transaction_read_only; the same for the database; or ask its administrator why."
        )
        yield Finding("bad", "read_only", "transactions of this role are read-only: it takes no writes", remedy)


def _schema(patient: Patient) -> Iterator[Finding]:
    known, needs, at = patient.row(
        "select max(version), coalesce((select value::bigint from meta where name = 'needs'), 0), max(at) from migration"
    )
    words = f"the tables are at schema {known} since {when(at)}; workers that know schema {needs} or newer may use them"
    yield Finding("ok", "schema", words + (f"; this one knows {schema.VERSION}" if known != schema.VERSION else ""))


def _epoch(patient: Patient) -> Iterator[Finding]:
    if patient.one("select pg_is_in_recovery()"):
        return
    epoch, noted, line = patient.row(
        "select (select value from meta where name = 'epoch'), (select value from meta where name = 'timeline'),"
        " substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)"
    )
    if noted == line:
        yield Finding("ok", "epoch", f"epoch {epoch}, timeline {line}")
        return
    remedy = "Nothing: the next worker that connects begins a new epoch; cursors of before are refused, fences are out of date."
    yield Finding(
        "warn", "timeline_new", f"it was promoted or restored since a worker was here: timeline {line}, not {noted}", remedy
    )


# ── the walls ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _walls(patient: Patient) -> Iterator[Finding]:
    """Not by the catalogue, which was asked: by looking. A transaction that names no tenant sees nothing."""
    with patient.snapshot(walled=True) as ask:
        seen = [table for table in schema.WALLED if ask(f"select 1 from {table} limit 1")]
    if seen:
        what = f"whoever names no tenant sees rows of {', '.join(seen)}"
        yield Finding("bad", "wall_passed", what, f"Serve as {schema.APP}; then 'stateroom migrate --store URL' mends the wall.")
    else:
        yield Finding("ok", "walls", f"{len(schema.WALLED)} tables show nothing to whoever names no tenant")
    views = patient.rows(
        "select distinct v.oid::regclass::text, o.rolname::text from pg_rewrite w join pg_class v on v.oid = w.ev_class"
        " join pg_depend d on d.objid = w.oid and d.classid = 'pg_rewrite'::regclass join pg_class t on t.oid = d.refobjid"
        " join pg_roles o on o.oid = v.relowner where t.relnamespace = 'stateroom'::regnamespace and t.relrowsecurity"
        " and (v.relkind = 'm' or v.relkind = 'v' and (o.rolsuper or o.rolbypassrls)"
        " and not coalesce(array_to_string(v.reloptions, ',') ~ 'security_invoker=(true|on|1|yes)', false))"
    )
    for view, owner in views:
        remedy = f"alter view {view} set (security_invoker = true), or drop it."
        yield Finding("bad", "wall_view", f"the view {view} of {owner!r} shows every tenant's rows", remedy)


def _strength(patient: Patient) -> Iterator[Finding]:
    """What a role may do beyond serving; of those who must not serve at all it was said."""
    if patient.above:
        return
    role, named, makes_roles, makes_databases, replicates = patient.row(
        "select rolname::text, quote_ident(rolname), rolcreaterole, rolcreatedb, rolreplication from pg_roles"
        " where rolname = current_user"
    )
    may = {"create roles": makes_roles, "create databases": makes_databases, "read the whole server's log": replicates}
    if strong := [what for what, is_so in may.items() if is_so]:
        remedy = f"alter role {named} nocreaterole nocreatedb noreplication"
        yield Finding("warn", "role_strong", f"the role {role!r} may {' and '.join(strong)}: more than serving needs", remedy)


# ── what it holds ───────────────────────────────────────────────────────────────────────────────────────────────────


def _maintenance(patient: Patient) -> Iterator[Finding]:
    late, since = patient.row(
        f"select count(*), coalesce(min(at), 0) from due, clock"
        f" where kind <> 'expire' and at < {_OWN_CLOCK} + correction - {_LATE_MS}"
    )
    if late:
        remedy = "Start a worker: 'stateroom serve'. When some run, look into their logs: what is refused stays here."
        yield Finding("warn", "maintenance_late", f"{late} runs and actions have waited for a worker since {when(since)}", remedy)
    if patient.one("select has_function_privilege(current_user, 'lease_owners()', 'execute')"):
        owners = [owner for (owner,) in patient.rows("select owner from lease_owners() order by owner")]
        yield Finding("ok", "leases", f"leases are held by {', '.join(owners) or 'nobody'}")


def _expired(patient: Patient) -> Iterator[Finding]:
    late, since, wanted = patient.row(
        f"select count(*), coalesce(min(at), 0), coalesce((select value from meta where name = '{NOTE}'), '') from due, clock"
        f" where kind = 'expire' and at < {_OWN_CLOCK} + correction - {expired.LATE_MS}"
    )
    yield from expired.told(wanted, late, since)


def _clock(patient: Patient) -> Iterator[Finding]:
    server_ms, correction, marked_ms = patient.row(f"select {_OWN_CLOCK}, correction, store_ms from clock")
    wall_ms, advice = SystemClock().wall_ms(), "Set the machines' clocks. Order and leases do not depend on them; times shown do."
    if abs(server_ms - wall_ms) > _CLOCK_MS_MAX:
        yield Finding("warn", "clock_apart", f"the server's clock says {when(server_ms)}, this machine's {when(wall_ms)}", advice)
    elif abs(correction) > _CLOCK_MS_MAX:
        what = (
            f"the server's clock was set by {correction / -1000:.0f} s while workers ran; the store's time goes on without that"
        )
        yield Finding("ok", "clock", what)
    elif marked_ms:
        yield Finding("ok", "clock", f"the store's clock was last set down at {when(marked_ms)}")


def _record(patient: Patient) -> Iterator[Finding]:
    """Tenant by tenant, through the wall."""
    loop_ms = SystemClock().boot_ms
    tenants = patient.rows(f"select number, name from tenant order by number limit {_TENANTS_MAX + 1}")
    until, looked, whole = loop_ms() + _RECORD_S_MAX * 1000, 0, True
    for number, name in tenants[:_TENANTS_MAX]:
        if loop_ms() > until:
            break
        with patient.snapshot(tenant=number, walled=True) as ask:
            found = list(record.examine(ask, of=f" of tenant {name!r}"))
        looked += 1
        whole = whole and all(finding.level == "ok" for finding in found)
        yield from (finding for finding in found if finding.level != "ok")
    if whole:
        yield Finding("ok", "record", f"the record of {looked} tenants hangs together")
    if looked < len(tenants):
        remedy = "Ask at a quieter time, or a copy of the database."
        yield Finding(
            "warn", "record_not_seen", f"there was no time for the record of all tenants: {looked} were looked at", remedy
        )


_LOOKS: tuple[Callable[[Patient], Iterator[Finding]], ...] = (
    _schema, _epoch, _walls, _strength, _maintenance, _expired, _clock, _record,
)  # fmt: skip
