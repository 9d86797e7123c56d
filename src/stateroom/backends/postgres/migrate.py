"""Migrations: forward, online, resumable, recorded step by step, by one migrator at a time.

A step takes its locks for as short as it can: when traffic holds what it needs for longer than LOCK_MS it lets go, so
that nobody queues up behind it, and tries again. What was done is recorded in the same transaction.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import psycopg
from psycopg import sql

from stateroom import ids
from stateroom.backends.postgres import schema
from stateroom.clock import Clock, SystemClock
from stateroom.errors import InvalidInput, Unavailable

LOCK_MS = 500
PATIENCE_MS = 600_000
_LOCK_KEY = 0x57A7E400  # one migrator per database
Say = Callable[[str], None]

_SETTINGS = {
    "search_path": "stateroom",
    "lock_timeout": "5s",
    "statement_timeout": "30s",
    "idle_in_transaction_session_timeout": "10s",
    "client_connection_check_interval": "1s",
}


def migrate(conninfo: str, *, clock: Clock | None = None, say: Say = print, migrations: tuple[schema.Migration, ...] = ()) -> int:
    """Bring the database up to this version, roles and grants included. Returns how many steps ran; 0 when all was done.

    The role in `conninfo` must be allowed to create roles and a schema. InvalidInput when it is not, or when the store
    needs a newer worker; Unavailable when the database cannot be reached, or traffic never lets a step have its lock.
    """
    try:
        with psycopg.connect(conninfo, autocommit=True, connect_timeout=10) as db:
            db.execute("select pg_advisory_lock(%s)", (_LOCK_KEY,))
            return _migrate(db, clock or SystemClock(), say, migrations or schema.MIGRATIONS)
    except psycopg.errors.InsufficientPrivilege as error:
        raise InvalidInput(f"This role may not migrate: {error}. Use one that may create roles.", code="role_too_weak") from error
    except psycopg.OperationalError as error:
        raise Unavailable(f"The database does not answer: {error}", code="store_away") from error


def _migrate(db: psycopg.Connection, clock: Clock, say: Say, migrations: tuple[schema.Migration, ...]) -> int:
    _roles(db)
    db.execute(f"create schema if not exists {schema.SCHEMA} authorization {schema.OWNER}")
    db.execute(f"set role {schema.OWNER}")
    db.execute(f"set search_path = {schema.SCHEMA}")
    db.execute("set stateroom.system = 'on'")
    db.execute(schema.BASE)
    needs = db.execute("select value::bigint from meta where name = 'needs'").fetchone()
    if needs is not None and needs[0] > migrations[-1].version:
        raise InvalidInput(f"This store needs a migrator that knows schema {needs[0]}. Upgrade stateroom.", code="store_too_new")
    done = {(version, step) for version, step in db.execute("select version, step from migration")}
    ran = 0
    for migration in migrations:
        for number, step in enumerate(migration.steps):
            if (migration.version, number) not in done:
                say(f"schema {migration.version} ({migration.name}), step {number + 1} of {len(migration.steps)}")
                _run(db, migration, number, step, clock)
                ran += 1
    _settle(db, migrations[-1])
    return ran


def _run(db: psycopg.Connection, migration: schema.Migration, number: int, step: schema.Step, clock: Clock) -> None:
    """One step, and its record, as soon as traffic lets it have its locks."""
    give_up, pause = clock.boot_ms() + PATIENCE_MS, threading.Event()
    record = "insert into migration(version, step, name, at) values (%s, %s, %s, %s)"
    row = (migration.version, number, migration.name, clock.wall_ms())
    while True:
        try:
            if step.outside:
                if step.again:
                    db.execute(step.again)
                db.execute(step.sql)
                db.execute(record, row)
                return
            with db.transaction():
                db.execute(f"set local lock_timeout = {LOCK_MS}")
                db.execute(step.sql)
                db.execute(record, row)
                return
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as held:
            if clock.boot_ms() > give_up:
                raise Unavailable(
                    "Traffic holds what this step needs; try again when there is less.", code="store_busy"
                ) from held
            pause.wait(LOCK_MS / 1000)


def _settle(db: psycopg.Connection, last: schema.Migration) -> None:
    """What a store is known by, grants, and the settings of the roles that use it."""
    new = {"epoch": "1", "secret": (ids.salt() + ids.salt()).hex(), "timeline": _timeline(db)}
    for name, value in new.items():
        db.execute("insert into meta(name, value) values (%s, %s) on conflict do nothing", (name, value))
    db.execute(
        "insert into meta(name, value) values ('needs', %s) on conflict (name) do update set value = excluded.value",
        (str(last.needs),),
    )
    db.execute(schema.GRANTS)
    db.execute("reset role")
    database = sql.Identifier(db.info.dbname)
    for role in (schema.APP, schema.READER):
        db.execute(sql.SQL("grant connect on database {} to {}").format(database, sql.Identifier(role)))
        for name, value in _SETTINGS.items():
            db.execute(
                sql.SQL("alter role {} in database {} set {} = {}").format(
                    sql.Identifier(role), database, sql.Identifier(name), sql.Literal(value)
                )
            )


def _timeline(db: psycopg.Connection) -> str:
    row = db.execute("select substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)").fetchone()
    assert row is not None
    return str(row[0])


def _roles(db: psycopg.Connection) -> None:
    """The three roles, made once per server. Passwords are the operator's to set."""
    for role, login in ((schema.OWNER, "nologin"), (schema.APP, "login"), (schema.READER, "login")):
        if not db.execute("select 1 from pg_roles where rolname = %s", (role,)).fetchone():
            try:
                db.execute(f"create role {role} {login} nosuperuser nobypassrls noinherit")
            except psycopg.errors.DuplicateObject:  # another database of this server is being migrated
                pass
    db.execute(f"grant {schema.OWNER} to current_user")
