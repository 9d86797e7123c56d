"""Migrations: forward, online, resumable, recorded step by step, by one migrator at a time.

A step takes its locks for as short as it can: when traffic holds what it needs for longer than LOCK_MS it lets go, so
that nobody queues up behind it, and tries again. What was done is recorded in the same transaction.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from functools import partial
from typing import Any, Final, TypeVar

import psycopg
from psycopg import sql

from stateroom import ids
from stateroom.backends.postgres import check, schema
from stateroom.backends.postgres.pipe import Lost, Pipe, Refused, lost_or_denied
from stateroom.backends.sql.migration import Migration, Say, Step, left, refuse_newer
from stateroom.clock import Clock, SystemClock
from stateroom.errors import InvalidInput, StateroomError, StorageFull, Unavailable

LOCK_MS: Final = 500
PATIENCE_MS: Final = 600_000
TELL_MS: Final = 2_000  # how often a step that takes long says how far it is
_BATCH_PAUSE_S: Final = 0.005  # between two batches: traffic comes first
_LOCK_KEY: Final = 0x57A7E400  # one migrator per database
T = TypeVar("T")

_SESSION: Final = {  # whatever the role or the database says otherwise
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "default_transaction_read_only": "off",
    "client_connection_check_interval": "1s",  # when the migrator dies, what it asked for ends, and its lock is free
}
_ROLES: Final = {
    "search_path": "stateroom",
    "lock_timeout": "5s",
    "statement_timeout": "30s",
    "idle_in_transaction_session_timeout": "10s",
    "client_connection_check_interval": "1s",
    "enable_seqscan": "off",  # every statement has its index; a table that looks empty when it is planned does not stay so
    "jit": "off",  # statements are short
}


def migrate(
    conninfo: str, *, clock: Clock | None = None, say: Say = print, migrations: Sequence[Migration] = schema.MIGRATIONS
) -> int:
    """Bring the database up to this version, roles and grants included. Returns how many steps ran; 0 when all was done.

    The role in `conninfo` must be allowed to create roles and a schema. InvalidInput when it is not, when the database is
    unfit, or when the store needs a newer worker; Unavailable when the database cannot be reached, or traffic never lets a
    step have its lock.
    """
    return Migrator(conninfo, clock=clock, say=say, migrations=migrations).run()


def missing(conninfo: str, *, migrations: Sequence[Migration] = schema.MIGRATIONS) -> list[str]:
    """What `migrate` would do, looked up by any role that sees the store; nothing is changed. Errors as there."""
    try:
        with psycopg.connect(conninfo, autocommit=True, connect_timeout=10) as db:
            _refuse_unfit(db)
            if _one(db, "select to_regclass('stateroom.migration') is null"):
                return [migration.title(number) for migration, number in left(migrations, ())]
            db.execute("select set_config('search_path', %s, false)", (schema.SCHEMA,))
            refuse_newer(_needs(db), migrations[-1].version)
            done = {(version, step) for version, step in db.execute("select version, step from migration")}
            return [migration.title(number) for migration, number in left(migrations, done)]
    except psycopg.Error as error:
        raise translate(error, stopped=False) from error


def unsound(conninfo: str) -> list[check.Finding]:
    """What of a migrated store's roles, grants and walls is not as it should be; nothing is changed. Errors as in `migrate`."""
    try:
        with closing(Pipe(conninfo)) as pipe:
            return check.unsound(pipe)
    except (Lost, Refused) as error:
        raise Unavailable(f"The database does not answer: {error}", code="store_away") from error


class Migrator:
    """One migration of one database. `run` once; `stop` from any other thread ends it between two statements or in one."""

    def __init__(
        self, conninfo: str, *, clock: Clock | None = None, say: Say = print, migrations: Sequence[Migration] = schema.MIGRATIONS
    ) -> None:
        self._conninfo, self._clock, self._say, self._migrations = conninfo, clock or SystemClock(), say, migrations
        self._stopping = threading.Event()
        self._db: psycopg.Connection | None = None

    def run(self) -> int:
        """See `migrate`. Unavailable (`interrupted`) when it was stopped: what was done is recorded, and the next one goes
        on from there."""
        try:
            with psycopg.connect(self._conninfo, autocommit=True, connect_timeout=10) as db:
                self._db = db
                _refuse_unfit(db)
                for name, value in _SESSION.items():
                    db.execute("select set_config(%s, %s, false)", (name, value))
                self._alone(db)
                return self._migrate(db)
        except psycopg.Error as error:
            raise translate(error, stopped=self._stopping.is_set()) from error
        finally:
            self._db = None

    def stop(self) -> None:
        """End what is going on; nothing of a step that was cut is left."""
        self._stopping.set()
        if (db := self._db) is not None:
            with suppress(psycopg.Error):
                db.cancel_safe(timeout=5)

    def _alone(self, db: psycopg.Connection) -> None:
        """Wait until no other migrator is at work on this database."""
        told = False
        while not _one(db, "select pg_try_advisory_lock(%s)", _LOCK_KEY):
            if not told:
                self._say("another migrator is at work: waiting for it")
                told = True
            self._pause(LOCK_MS / 1000)

    def _migrate(self, db: psycopg.Connection) -> int:
        self._patiently(lambda: _roles(db))
        db.execute(f"create schema if not exists {schema.SCHEMA} authorization {schema.OWNER}")
        db.execute(f"set role {schema.OWNER}")
        db.execute(f"set search_path = {schema.SCHEMA}")
        db.execute("set stateroom.system = 'on'")
        db.execute(schema.BASE)
        refuse_newer(_needs(db), self._migrations[-1].version)
        done = {(version, step) for version, step in db.execute("select version, step from migration")}
        todo, before = left(self._migrations, done), _needs(db)
        for migration, number in todo:
            self._say(migration.title(number))
            if migration.needs > (_needs(db) or 0):  # first of all: an older worker that starts now is not surprised
                _set_meta(db, "needs", str(migration.needs))
                if before is not None:
                    self._send_away(db)
            self._run(db, migration, number)
        self._mend_walls(db)
        self._patiently(lambda: _settle(db))
        return len(todo)

    def _send_away(self, db: psycopg.Connection) -> None:
        """Older workers that run lose their connections, and are told why when they come back."""
        self._say("workers of older versions are sent away")
        db.execute("reset role")
        try:
            db.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity join pg_roles r on r.oid = usesysid"
                " where datname = current_database() and pid <> pg_backend_pid() and not rolsuper"
                " and pg_has_role(usesysid, %s, 'usage')",
                (schema.APP,),
            )
        except psycopg.errors.InsufficientPrivilege:
            self._say("  this role may not end their sessions: stop them now")
        db.execute(f"set role {schema.OWNER}")

    def _mend_walls(self, db: psycopg.Connection) -> None:
        """Whoever took a part of the wall away, it stands again."""
        for name, sound in db.execute(check.WALLS.encode()).fetchall():
            if not sound and schema.table_of(name) in schema.WALLED:
                self._say(f"mending the wall of {name}")
                anew = f"drop policy if exists tenant on {name}; drop policy if exists system on {name}; {schema.wall_of(name)}"
                self._patiently(partial(self._inside, db, anew))

    # ── one step ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _run(self, db: psycopg.Connection, migration: Migration, number: int) -> None:
        """A step, and its record."""
        step = migration.steps[number]
        row = (migration.version, number, migration.name, self._clock.wall_ms())

        def record() -> None:
            db.execute("insert into migration(version, step, name, at) values (%s, %s, %s, %s)", row)

        if step.batched:
            self._batches(db, step)
            record()
        elif step.outside:
            self._patiently(lambda: _outside(db, step))
            record()
        else:
            self._patiently(lambda: self._inside(db, step.sql, record))

    def _inside(self, db: psycopg.Connection, statement: str, record: Callable[[], None] = lambda: None) -> int:
        """A transaction that waits for locks only briefly. How many rows it changed."""
        with db.transaction():
            db.execute(f"set local lock_timeout = {LOCK_MS}")
            changed = db.execute(statement).rowcount
            record()
            return changed

    def _batches(self, db: psycopg.Connection, step: Step) -> None:
        rows, told = 0, self._clock.boot_ms()
        while changed := self._patiently(lambda: self._inside(db, step.sql)):
            rows += changed
            if self._clock.boot_ms() - told > TELL_MS:
                told = self._clock.boot_ms()
                self._say(f"  {rows} rows so far")
            self._pause(_BATCH_PAUSE_S)

    def _patiently(self, act: Callable[[], T]) -> T:
        """As soon as traffic lets it have its locks."""
        give_up = self._clock.boot_ms() + PATIENCE_MS
        told = self._clock.boot_ms()
        while True:
            self._pause(0)
            try:
                return act()
            except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected, psycopg.errors.InternalError_) as held:
                if isinstance(held, psycopg.errors.InternalError_) and "concurrently" not in str(held):
                    raise
                now = self._clock.boot_ms()
                if now > give_up:
                    raise Unavailable(
                        "Traffic holds what this step needs; try again when there is less.", code="store_busy"
                    ) from held
                if now - told > TELL_MS:
                    told = now
                    self._say("  traffic holds what this step needs: trying again")
                self._pause(LOCK_MS / 1000)

    def _pause(self, seconds: float) -> None:
        if self._stopping.wait(seconds):
            raise _stopped()


def _outside(db: psycopg.Connection, step: Step) -> None:
    if step.again:
        db.execute(step.again)
    db.execute(step.sql)


def _settle(db: psycopg.Connection) -> None:
    """What a store is known by, grants, and the settings of the roles that use it."""
    db.execute(f"set role {schema.OWNER}")
    timeline = _one(db, "select substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)")
    new = {"epoch": "1", "secret": (ids.salt() + ids.salt()).hex(), "timeline": str(timeline)}
    for name, value in new.items():
        db.execute("insert into meta(name, value) values (%s, %s) on conflict do nothing", (name, value))
    db.execute(schema.GRANTS)
    db.execute("reset role")
    database = sql.Identifier(db.info.dbname)
    for role in (schema.APP, schema.READER):
        db.execute(sql.SQL("grant connect on database {} to {}").format(database, sql.Identifier(role)))
        for name, value in _ROLES.items():
            db.execute(
                sql.SQL("alter role {} in database {} set {} = {}").format(
                    sql.Identifier(role), database, sql.Identifier(name), sql.Literal(value)
                )
            )


def _roles(db: psycopg.Connection) -> None:
    """The three roles, made once per server. Passwords are the operator's to set."""
    for role, login in ((schema.OWNER, "nologin"), (schema.APP, "login"), (schema.READER, "login")):
        if not _one(db, "select exists (select 1 from pg_roles where rolname = %s)", role):
            with suppress(psycopg.errors.DuplicateObject, psycopg.errors.UniqueViolation):  # another database's migrator did
                db.execute(f"create role {role} {login} nosuperuser nobypassrls noinherit")
    _may_alter(db)
    become = "set" if db.info.server_version >= 160_000 else "member"
    if not _one(db, "select pg_has_role(%s, %s)", schema.OWNER, become):
        with suppress(psycopg.errors.UniqueViolation):
            db.execute(f"grant {schema.OWNER} to current_user")


def _may_alter(db: psycopg.Connection) -> None:
    """From PostgreSQL 16 on, who may make roles may change only those that it made, or was given with the admin option. The
    roles belong to the whole server: those of another database were made by somebody else, perhaps."""
    if db.info.server_version < 160_000 or _one(db, "select rolsuper from pg_roles where rolname = current_user"):
        return
    lacking = db.execute(
        "select rolname::text from pg_roles where rolname = any (%s)"
        " and not pg_has_role(current_user, oid, 'member with admin option') order by rolname",
        ([schema.OWNER, schema.APP, schema.READER],),
    ).fetchall()
    if lacking:
        names, who = ", ".join(name for (name,) in lacking), _one(db, "select quote_ident(current_user)")
        raise InvalidInput(
            f"The roles {names} were made by somebody else, and this role may not change them. As a superuser, or as who made"
            f" them, run: grant {names} to {who} with admin option;",
            code="role_too_weak",
        )


def _refuse_unfit(db: psycopg.Connection) -> None:
    """InvalidInput or Unavailable for a database that cannot hold a store."""
    if found := check.server(db.info.server_version, str(_one(db, "show server_encoding"))):
        check.refuse(found)
    if _one(db, "select pg_is_in_recovery()"):
        raise Unavailable("This is a standby: migrate its primary.", code="store_away")


def _needs(db: psycopg.Connection) -> int | None:
    found: int | None = _one(db, "select value::bigint from meta where name = 'needs'")
    return found


def _set_meta(db: psycopg.Connection, name: str, value: str) -> None:
    db.execute(
        "insert into meta(name, value) values (%s, %s) on conflict (name) do update set value = excluded.value", (name, value)
    )


def _one(db: psycopg.Connection, statement: str, *values: object) -> Any:
    """The first value of the first row; None when there is none."""
    row = db.execute(statement.encode(), values or None).fetchone()
    return row[0] if row else None


def _stopped() -> Unavailable:
    return Unavailable("Stopped. What was done is recorded; run it again to go on from there.", code="interrupted")


def translate(error: psycopg.Error, *, stopped: bool) -> StateroomError:
    """What a refusal means to whoever migrates, and what to do."""
    what = " ".join((error.diag.message_primary or str(error)).split())
    if stopped:
        return _stopped()
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return InvalidInput(
            f"This role may not do that: {what}. Use one that may create roles and, in this database, schemas.",
            code="role_too_weak",
        )
    if isinstance(error, psycopg.errors.DiskFull):
        return StorageFull("The database's disk is full: free some space. What was done is recorded.")
    if error.sqlstate is None and isinstance(denied := lost_or_denied(str(error)), Unavailable):
        return denied
    if error.sqlstate is None or error.sqlstate[:2] in ("08", "28", "3D", "53", "57"):
        return Unavailable(f"The database does not answer: {what}", code="store_away")
    return StateroomError(
        f"The server refused a step, and nothing of it is left: {what} ({error.sqlstate}). Mend that, and run it again.",
        code="migration_failed",
    )
