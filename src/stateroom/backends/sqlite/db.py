"""Opening the file: pragmas, the clock mark, and what SQLite's errors mean to us."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw

from stateroom import ids, limits
from stateroom.clock import Clock, store_time
from stateroom.errors import StateroomError, StorageFull, Unavailable

BUSY_MS = 10_000  # how long to wait for another process's transaction
MARK_MS = 5_000  # how old the persisted clock mark may get


def connect(path: Path, *, synchronous: str = "full", readonly: bool = False, vfs: str | None = None) -> apsw.Connection:
    """A connection with our pragmas. WAL and full fsync: what is acknowledged survives a power cut."""
    flags = apsw.SQLITE_OPEN_READONLY if readonly else apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
    db = apsw.Connection(str(path), flags=flags, vfs=vfs, statementcachesize=256)
    db.set_busy_timeout(BUSY_MS)
    if not readonly:
        tune(db, "main", synchronous=synchronous)
    return db


def tune(db: apsw.Connection, file: str, *, synchronous: str) -> None:
    """Our pragmas, for one of a connection's files."""
    db.execute(f"pragma {file}.journal_mode=wal").fetchall()
    db.execute(f"pragma {file}.synchronous={synchronous}")
    db.execute(f"pragma {file}.secure_delete=on").fetchall()
    db.execute(f"pragma {file}.journal_size_limit={limits.WAL_BYTES_MAX}").fetchall()


def meta(db: apsw.Connection, name: str) -> Any:
    rows = db.execute("select value from meta where name = ?", (name,)).fetchall()
    return rows[0][0] if rows else None


def set_meta(db: apsw.Connection, name: str, value: Any) -> None:
    db.execute(
        "insert into meta(name, value) values (?, ?) on conflict(name) do update set value = excluded.value", (name, value)
    )


def secret(db: apsw.Connection) -> bytes:
    """The store's own 32 bytes, made when it is first opened."""
    db.execute("insert or ignore into meta(name, value) values ('secret', ?)", (ids.salt() + ids.salt(),))
    return bytes(meta(db, "secret"))


class StoreClock:
    """The store's time: persisted mark plus time since boot, the same for every process on the store (D4, P13)."""

    def __init__(self, db: apsw.Connection, clock: Clock) -> None:
        self._clock = clock
        db.execute("begin immediate")
        try:
            mark = meta(db, "clock")
            if mark is None:
                self._boot, self._boot_ms, self._store_ms = clock.boot_id(), clock.boot_ms(), clock.wall_ms()
            else:
                boot, boot_ms, store_ms = mark.split()
                now = store_time(clock, boot=boot, boot_ms=int(boot_ms), store_ms=int(store_ms))
                self._boot, self._boot_ms, self._store_ms = clock.boot_id(), clock.boot_ms(), now
            self._write(db)
            db.execute("commit")
        except BaseException:
            db.execute("rollback")
            raise
        self._marked = self._store_ms

    def now(self) -> int:
        return store_time(self._clock, boot=self._boot, boot_ms=self._boot_ms, store_ms=self._store_ms)

    def mark(self, db: apsw.Connection, now: int) -> None:
        """Inside a transaction: persist how far time has come, now and then, so that a reboot cannot go back behind it."""
        if now - self._marked >= MARK_MS:
            self._boot_ms, self._store_ms = self._boot_ms + (now - self._store_ms), now
            self._write(db)
            self._marked = now

    def _write(self, db: apsw.Connection) -> None:
        set_meta(db, "clock", f"{self._boot} {self._boot_ms} {self._store_ms}")


def translate(error: apsw.Error) -> StateroomError:
    """SQLite's error as ours. What is not about the machine's state is a fault of ours and stays what it is."""
    if isinstance(error, apsw.FullError):
        return StorageFull("The disk is full: free some space. Reads still work, nothing acknowledged is lost.")
    if isinstance(error, (apsw.BusyError, apsw.LockedError)):
        return Unavailable("Another process holds the store; try again.", code="store_busy")
    if isinstance(error, (apsw.IOError, apsw.CantOpenError, apsw.ReadOnlyError, apsw.PermissionsError)):
        return Unavailable(f"The store's disk does not answer as it should: {error}", code="store_io_error")
    if isinstance(error, (apsw.CorruptError, apsw.NotADBError)):
        return Unavailable(f"The store is damaged: {error}. Run 'stateroom doctor'.", code="store_damaged")
    raise error
