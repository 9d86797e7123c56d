"""Migrations of the file: forward, in short transactions, resumable, recorded step by step, by whoever opens it first.

There is one writer at a time, so a step holds up everybody for as long as it takes; what takes long is `batched`, and the
others write between two batches.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final, cast

import apsw

from stateroom.backends.sql.migration import Migration, Say, left, refuse_newer
from stateroom.backends.sqlite import schema
from stateroom.errors import Unavailable

_BATCH_PAUSE_S: Final = 0.005  # between two batches: traffic comes first
_DONE: Final = "select version, step from migration_step"


def needs_of(db: apsw.Connection) -> int | None:
    """The oldest worker that may use the store; None when it holds nothing yet."""
    if not _has(db, "meta"):
        return None
    rows = db.execute("select value from meta where name = 'needs'").fetchall()
    return cast(int, rows[0][0]) if rows else None


def missing(db: apsw.Connection, migrations: Sequence[Migration] = schema.MIGRATIONS) -> list[tuple[Migration, int]]:
    """The steps that have not run. InvalidInput when the store needs a newer worker. Changes nothing."""
    refuse_newer(needs_of(db), migrations[-1].version)
    return left(migrations, _done(db, migrations))


def migrate(
    db: apsw.Connection, wall_ms: int, *, say: Say | None = None, migrations: Sequence[Migration] = schema.MIGRATIONS
) -> int:
    """Bring the tables up to this version; how many steps ran. A store that needs a newer worker is refused and left
    untouched."""
    return Migrator(db, wall_ms, say=say, migrations=migrations).run()


class Migrator:
    """One migration of one file. `run` once; `stop` from any other thread ends it in or between two statements."""

    def __init__(
        self, db: apsw.Connection, wall_ms: int, *, say: Say | None = None, migrations: Sequence[Migration] = schema.MIGRATIONS
    ) -> None:
        self._db, self._wall_ms, self._say, self._migrations = db, wall_ms, say, migrations
        self._stopping = threading.Event()

    def run(self) -> int:
        """See `migrate`. Unavailable (`interrupted`) when it was stopped: what was done is recorded."""
        try:
            todo = missing(self._db, self._migrations)
            if todo or not _has(self._db, "migration_step"):
                self._db.execute(schema.BASE)
            for migration, number in todo:
                self._pause(0)
                if self._say is not None:
                    self._say(migration.title(number))
                self._run(migration, number)
            return len(todo)
        except apsw.InterruptError as error:
            raise _stopped() from error

    def stop(self) -> None:
        """End what is going on; nothing of a step that was cut is left."""
        self._stopping.set()
        self._db.interrupt()

    def _run(self, migration: Migration, number: int) -> None:
        batched = migration.steps[number].batched
        while self._transaction(migration, number) and batched:
            self._pause(_BATCH_PAUSE_S)

    def _transaction(self, migration: Migration, number: int) -> bool:
        """A step, or a batch of it, with the record of its end; unless another process was quicker. Whether there may be
        another batch."""
        step = migration.steps[number]
        self._db.execute("begin immediate")
        try:
            more = (migration.version, number) not in _done(self._db, self._migrations)
            if more:
                if migration.needs > (needs_of(self._db) or 0):
                    self._set_needs(migration.needs)
                before = self._db.total_changes()
                self._db.execute(step.sql)
                more = step.batched and self._db.total_changes() > before
                if not more:
                    self._record(migration, number)
            self._db.execute("commit")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("rollback")
            raise
        return more

    def _record(self, migration: Migration, number: int) -> None:
        self._db.execute(
            "insert into migration_step(version, step, at) values (?, ?, ?)", (migration.version, number, self._wall_ms)
        )
        if number == len(migration.steps) - 1:
            self._db.execute(
                "insert into migration(version, name, at) values (?, ?, ?)", (migration.version, migration.name, self._wall_ms)
            )

    def _set_needs(self, needs: int) -> None:
        self._db.execute(
            "insert into meta(name, value) values ('needs', ?) on conflict(name) do update set value = excluded.value", (needs,)
        )

    def _pause(self, seconds: float) -> None:
        if self._stopping.wait(seconds):
            raise _stopped()


def _done(db: apsw.Connection, migrations: Sequence[Migration]) -> set[tuple[int, int]]:
    """The steps that ran: all of a version that is recorded as a whole, and what is recorded of the one under way."""
    whole = {version for (version,) in db.execute("select version from migration")} if _has(db, "migration") else set()
    steps = {(version, step) for version, step in db.execute(_DONE)} if _has(db, "migration_step") else set()
    return steps | {(one.version, number) for one in migrations if one.version in whole for number in range(len(one.steps))}


def _has(db: apsw.Connection, table: str) -> bool:
    return bool(db.execute("select 1 from sqlite_master where type = 'table' and name = ?", (table,)).fetchall())


def _stopped() -> Unavailable:
    return Unavailable("Stopped. What was done is recorded; run it again to go on from there.", code="interrupted")
