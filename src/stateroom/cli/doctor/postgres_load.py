"""What threatens a PostgreSQL server that works: settings that break promises, and work that piles up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Literal

from stateroom.cli.doctor.finding import Finding
from stateroom.cli.doctor.patient import Patient
from stateroom.cli.terminal import size

_LONG_S: Final = 300  # a transaction that is open for longer keeps dead rows from being cleared
_IDLE_S: Final = 60
_XIDS_MAX: Final = 1_000_000  # transactions since somebody's snapshot
_QUEUE_LOW, _QUEUE_BAD = 0.5, 0.9
_DEAD_ROWS, _DEAD_SHARE = 50_000, 0.5
_FREEZE_LOW, _FREEZE_BAD = 1_000_000_000, 1_600_000_000  # transactions until the server stops: 2,000,000,000
_LOST: Final = "after a crash acknowledged work may be lost, or the store damaged"


def _durability(patient: Patient) -> Iterator[Finding]:
    """Settings without which what is acknowledged is not kept (P1)."""
    fsync, pages, commit, named = patient.row(
        "select current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_commit'),"
        " current_setting('synchronous_standby_names')"
    )
    role = patient.one("select quote_ident(current_user)")
    bad = [
        Finding("bad", "fsync_off", f"fsync is off: {_LOST}", "alter system set fsync = on; select pg_reload_conf()"),
        Finding(
            "bad", "full_page_writes_off", f"full_page_writes is off: {_LOST}, unless the disk writes pages whole",
            "alter system set full_page_writes = on; select pg_reload_conf()",
        ),
        Finding(
            "bad", "synchronous_commit_off", "synchronous_commit is off: after a crash acknowledged work is lost",
            f"alter role {role} reset synchronous_commit; the same for the database; alter system reset synchronous_commit",
        ),
    ]  # fmt: skip
    found = [finding for finding, is_so in zip(bad, (fsync == "off", pages == "off", commit == "off"), strict=True) if is_so]
    yield from found
    if not found:
        yield Finding("ok", "durability", f"acknowledged work is on the disk (synchronous_commit = {commit})")
    if named and commit in ("local", "off"):
        remedy = f"alter role {role} reset synchronous_commit"
        yield Finding("warn", "standby_not_waited_for", "commits of this role do not wait for the synchronous standby", remedy)


def _standbys(patient: Patient) -> Iterator[Finding]:
    standby, named, connected = patient.row(
        "select pg_is_in_recovery(), current_setting('synchronous_standby_names'),"
        " (select count(*) from pg_stat_get_wal_senders() where pid is not null)"
    )
    if standby:
        return
    if named and not connected:
        remedy = "Bring the standby back, or take it out of synchronous_standby_names: until then no turn is acknowledged."
        yield Finding("bad", "standby_missing", f"commits wait for a standby that is not there: {named}", remedy)
    elif connected and not named:
        remedy = "Name one in synchronous_standby_names, if a failover may lose nothing that was acknowledged."
        yield Finding("warn", "standby_asynchronous", "standbys follow, and no commit waits for one", remedy)
    elif connected:
        yield Finding("ok", "standbys", f"{connected} standbys follow; commits wait for {named}")
    slots = patient.rows(
        "select slot_name::text, coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn), 0)::bigint"
        " from pg_replication_slots where not active"
    )
    for name, kept in slots:
        remedy = f"Bring back whoever used it, or: select pg_drop_replication_slot('{name}')"
        yield Finding(
            "warn", "slot_left", f"nobody reads the replication slot {name!r}: {size(kept)} of log are kept for it", remedy
        )


def _connections(patient: Patient) -> Iterator[Finding]:
    most, reserved, used, role_most, base_most = patient.row(
        "select current_setting('max_connections')::bigint, current_setting('superuser_reserved_connections')::bigint,"
        " (select sum(numbackends)::bigint from pg_stat_database),"
        " (select rolconnlimit::bigint from pg_roles where rolname = current_user),"
        " (select datconnlimit::bigint from pg_database where datname = current_database())"
    )
    each = patient.settings.connections
    room = min(limit for limit in (most - reserved, role_most, base_most) if limit >= 0)
    left = max(0, room - used)
    what = f"{used} of {room} connections are in use; a worker takes up to {each}"
    if left < each:
        remedy = "Raise max_connections, use fewer workers, lanes or readers, or put a pooler before it (pooler=on in the URL)."
        yield Finding("warn", "connections_few", f"{what}: there is no room for another one", remedy)
    else:
        yield Finding("ok", "connections", f"{what}: room for {left // each} more")


def _sessions(patient: Patient) -> Iterator[Finding]:
    """Whoever keeps a transaction open keeps dead rows alive, and locks."""
    long = patient.rows(
        "select pid::bigint, coalesce(usename::text, ''), coalesce(extract(epoch from now() - xact_start)::bigint, 0),"
        " coalesce(age(backend_xmin)::bigint, 0) from pg_stat_activity where pid <> pg_backend_pid()"
        " and coalesce(backend_type, 'client backend') = 'client backend' and datname = current_database()"
        f" and (xact_start < now() - interval '{_LONG_S} s' or age(backend_xmin) > {_XIDS_MAX})"
        " and coalesce(state, '') not like 'idle in transaction%'"
    )
    for pid, role, seconds, behind in long:
        since = f"for {seconds} s" if seconds else f"since {behind} transactions ago"
        remedy = f"See what it does in pg_stat_activity; select pg_terminate_backend({pid}) ends it."
        yield Finding("warn", "transaction_long", f"session {pid} of {role!r} is in one transaction {since}", remedy)
    idle = patient.rows(
        "select pid::bigint, coalesce(usename::text, ''), extract(epoch from now() - state_change)::bigint from pg_stat_activity"
        " where datname = current_database() and state like 'idle in transaction%'"
        f" and state_change < now() - interval '{_IDLE_S} s'"
    )
    for pid, role, seconds in idle:
        remedy = f"End it: select pg_terminate_backend({pid}); idle_in_transaction_session_timeout keeps it from happening again."
        yield Finding(
            "warn", "idle_in_transaction", f"session {pid} of {role!r} began a transaction and is silent for {seconds} s", remedy
        )
    left = "select gid, extract(epoch from now() - prepared)::bigint from pg_prepared_xacts where database = current_database()"
    for name, seconds in patient.rows(left):
        if seconds > _IDLE_S:
            remedy = f"rollback prepared '{name}', or commit it; its maker should know."
            yield Finding(
                "warn", "transaction_prepared", f"the prepared transaction {name!r} is left open for {seconds} s", remedy
            )
    if not (long or idle):
        yield Finding("ok", "sessions", f"no transaction is open for long{_as_far_as(patient)}")


def _as_far_as(patient: Patient) -> str:
    """What a role that is no monitor does not see."""
    sees = patient.one("select pg_has_role(current_user, 'pg_read_all_stats', 'usage')")
    return "" if sees else ", as far as this role sees (grant it pg_read_all_stats to see everybody's)"


def _notifications(patient: Patient) -> Iterator[Finding]:
    share = patient.one("select (pg_notification_queue_usage() * 1000)::bigint") / 1000
    if share > _QUEUE_LOW:
        remedy = "A session that listens is in a long transaction: end it. Once the queue is full, commits that notify fail."
        level: Literal["warn", "bad"] = "bad" if share > _QUEUE_BAD else "warn"
        yield Finding(level, "notifications_full", f"the queue of notifications is {share:.0%} full", remedy)


def _vacuum(patient: Patient) -> Iterator[Finding]:
    off = patient.one("select current_setting('autovacuum') = 'off' or current_setting('track_counts') = 'off'")
    if off:
        remedy = "alter system set autovacuum = on; alter system set track_counts = on; select pg_reload_conf()"
        yield Finding("bad", "autovacuum_off", "autovacuum is off: tables grow, and in the end the server stops", remedy)
    dead = patient.rows(
        "select quote_ident(relname), n_dead_tup from pg_stat_user_tables where schemaname = 'stateroom'"
        f" and n_dead_tup > {_DEAD_ROWS} and n_dead_tup > {_DEAD_SHARE} * n_live_tup order by n_dead_tup desc limit 5"
    )
    for table, count in dead:
        remedy = f"vacuum (analyze) stateroom.{table}; then see what holds autovacuum up: long transactions, its settings, locks."
        yield Finding("warn", "vacuum_behind", f"{table} holds {count} dead rows that were not cleared", remedy)
    switched = patient.rows(
        "select quote_ident(relname) from pg_class where relnamespace = to_regnamespace('stateroom')"
        " and array_to_string(reloptions, ',') ~ 'autovacuum_enabled=(false|off|0|no)'"
    )
    for (table,) in switched:
        remedy = f"alter table stateroom.{table} reset (autovacuum_enabled)"
        yield Finding("warn", "autovacuum_off_here", f"autovacuum is switched off for {table}", remedy)
    age = patient.one("select age(datfrozenxid)::bigint from pg_database where datname = current_database()")
    if age > _FREEZE_LOW:
        remedy = (
            "vacuum (freeze) the whole database now; then see what holds autovacuum up: long transactions, slots, its settings."
        )
        what = f"{age:,} transactions are not frozen: at 2,000,000,000 the server takes no more writes"
        yield Finding("bad" if age > _FREEZE_BAD else "warn", "freeze_behind", what, remedy)
    if not (off or dead or age > _FREEZE_LOW):
        bytes_ = patient.one("select pg_database_size(current_database())")
        yield Finding("ok", "vacuum", f"{size(bytes_)} in the database; vacuum keeps up")


LOOKS: tuple[Callable[[Patient], Iterator[Finding]], ...] = (
    _durability, _standbys, _connections, _sessions, _notifications, _vacuum,
)  # fmt: skip
