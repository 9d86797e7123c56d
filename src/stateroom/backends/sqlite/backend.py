"""The embedded backend: one SQLite file, group commit, full fsync; any number of processes of one machine."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import apsw

from stateroom import ids, limits
from stateroom.backends.sql import run_read
from stateroom.backends.sql.apply import apply, leaf_of
from stateroom.backends.sql.reads import SYSTEM, SqlReads
from stateroom.backends.sql.tx import Tx
from stateroom.backends.sqlite import db, schema
from stateroom.backends.sqlite.ephemeral import Doubtful, Unattached, attach, named, number
from stateroom.backends.sqlite.migrate import migrate
from stateroom.backends.sqlite.ownership import Ownership
from stateroom.backends.sqlite.tenants import Tenants
from stateroom.backends.sqlite.tx import SqliteTx
from stateroom.backends.sqlite.wakeups import SqliteWakeups
from stateroom.backends.writer import Entry, Writer
from stateroom.batch import Batch, Receipt
from stateroom.clock import Clock, SystemClock
from stateroom.copies import CopyClass
from stateroom.errors import AlreadyExists, Closed, InvalidInput, StateroomError
from stateroom.principal import Scope

T = TypeVar("T")
ATTACH_TRIES = 3  # of one transaction, to have the second file at hand: others may just have made it anew


class SqliteBackend(SqlReads):
    """A folder with `state.db` and `owners/`. Open it with `open`; one object per process is enough."""

    copies: Mapping[str, CopyClass] = schema.COPIES

    def __init__(self, folder: Path, clock: Clock, *, synchronous: str = "full", vfs: str | None = None) -> None:
        self.folder, self.clock = folder, clock
        self._path, self._synchronous, self._vfs = folder / "state.db", synchronous, vfs
        self._db = db.connect(self._path, synchronous=synchronous, vfs=vfs)
        migrate(self._db, clock.wall_ms())
        self._time = db.StoreClock(self._db, clock)
        self.epoch: int = db.meta(self._db, "epoch") or self._first_epoch()
        self.secret: bytes = db.secret(self._db)
        self.owner = f"{os.getpid()}-{ids.new(ids.new_home(), clock.wall_ms()).hex()[-12:]}"
        self._ownership = Ownership(folder / "owners", self.owner)
        self._busy = threading.Lock()  # the writing connection: a leader's, or the poller's for a moment
        self._writer = Writer(self._commit_group)
        self._tenants = Tenants()
        self._beside = ""  # the file for what may be lost that the writing connection has at hand
        self._readers = threading.local()
        self._opened: list[apsw.Connection] = []
        self.wakeups = SqliteWakeups(self._data_version, self._going_on)
        self._closed = False
        self.commits = 0  # transactions so far: what benches and tests count

    @classmethod
    async def open(
        cls, folder: Path, *, clock: Clock | None = None, synchronous: str = "full", vfs: str | None = None
    ) -> SqliteBackend:
        """Open or make the store in `folder`. `synchronous` other than "full", and a `vfs` that fails, are for tests that
        prove what they are for."""
        folder = Path(folder)
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            return await asyncio.to_thread(cls, folder, clock or SystemClock(), synchronous=synchronous, vfs=vfs)
        except OSError as error:
            raise InvalidInput(f"The folder {folder} cannot be used: {error.strerror}.", code="store_folder_invalid") from error
        except apsw.Error as error:
            raise db.translate(error) from error

    # ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def commit(self, batch: Batch) -> tuple[Receipt, ...]:
        limits.batch(len(batch.writes))
        return await self._writer.commit(batch)

    def commit_now(self, batch: Batch) -> tuple[Receipt, ...]:
        """`commit` for synchronous callers: in this thread, no hand-over."""
        limits.batch(len(batch.writes))
        return self._writer.commit_now(batch)

    async def landed(self, batch: Batch) -> bool:
        return self._look(batch.scope, lambda tx: leaf_of(tx, batch) is not None)

    def now(self) -> int:
        return self._time.now()

    def _commit_group(self, group: list[Entry]) -> None:
        """One transaction for the group. When SQLite loses it (full disk, I/O error), look what landed and give every
        batch that did not one try of its own, so that one bad batch cannot sink the others."""
        with self._busy:
            try:
                touched = self._attempt(group)
            except apsw.Error as error:
                touched = self._after_loss(group, error)
            except BaseException:  # a fault of ours: nothing of this group lands, and the next one starts clean
                self._roll_back()
                raise
        self.wakeups.touch(*touched)

    def _attempt(self, group: list[Entry]) -> set[bytes]:
        """The first batch that needs the second file is what brings it."""
        for _ in range(ATTACH_TRIES):
            try:
                return self._transaction(group)
            except Unattached:
                self._roll_back()
                self._beside = attach(self._db, self._path, self.clock, vfs=self._vfs)
        raise apsw.BusyError("the file for ephemeral sessions comes and goes")

    def _transaction(self, group: list[Entry]) -> set[bytes]:
        self._db.execute("begin immediate")
        now, touched, alone = self._time.now(), set[bytes](), len(group) == 1
        landing = list[SqliteTx]()
        for entry in group:
            if not alone:
                self._db.execute("savepoint batch")
            try:
                entry.fate, tx = self._apply(entry.batch, now, touched)
                landing.append(tx)
            except StateroomError as refusal:
                entry.fate = refusal
                self._db.execute("rollback" if alone else "rollback to batch")
            if not alone:
                self._db.execute("release batch")
        if self._db.in_transaction:
            if any(tx.redo and not tx.only_lossy for tx in landing):
                number(self._db, [done for tx in landing for done in tx.redo])
            self._time.mark(self._db, now)
            self._db.execute("commit")
            self.commits += 1
            for name in {entry.batch.scope.tenant for entry in group}:
                self._tenants.find(self._db, name)  # committed now: may be remembered
        for entry in group:
            entry.settled = True
        return touched

    def _apply(self, batch: Batch, now: int, touched: set[bytes]) -> tuple[tuple[Receipt, ...], SqliteTx]:
        tenant = self._tenants.make(self._db, batch.scope.tenant)
        tx = SqliteTx(self._db, batch.scope, tenant=tenant, at=batch.at, now=now)
        tx.beside = self._beside
        try:
            receipts = apply(tx, batch, ids.salt())
        except (OverflowError, UnicodeEncodeError) as wrong:
            raise unfit(wrong) from wrong
        except apsw.ConstraintError as taken:
            if leaf_of(tx, batch) is not None:
                raise AlreadyExists("This batch has landed before.", code="batch_landed") from taken
            raise AlreadyExists("An object with one of these ids exists.") from taken
        touched |= tx.touched
        return receipts, tx

    def _after_loss(self, group: list[Entry], error: apsw.Error) -> set[bytes]:
        touched: set[bytes] = set()
        try:
            self._reopen(synced=isinstance(error, apsw.IOError))
            lost = [entry for entry in group if not self._landed(entry.batch)]
        except apsw.Error as worse:
            self._fail(group, worse)
            return touched
        for entry in group:
            if entry not in lost:  # the fate it got before the answer was lost is the true one
                entry.settled = True
                touched |= {write.subject_of_change() for write in entry.batch.writes}
        if isinstance(error, apsw.BusyError):
            self._fail(lost, error)
            return touched
        for entry in lost:
            try:
                touched |= self._attempt([entry])
            except apsw.Error as again:
                self._roll_back()
                self._fail([entry], again)
        return touched

    def _landed(self, batch: Batch) -> bool:
        tx = SqliteTx(self._db, batch.scope, tenant=self._tenants.find(self._db, batch.scope.tenant))
        if tx.has_ephemeral and not self._beside:
            self._beside = attach(self._db, self._path, self.clock, vfs=self._vfs)
        tx.beside = self._beside
        self._db.execute("begin immediate")
        try:
            return leaf_of(tx, batch) is not None
        finally:
            self._db.execute("commit")

    def _reopen(self, *, synced: bool) -> None:
        """A connection after an error is not to be trusted, nor is a page cache after a failed fsync (`synced`): open
        anew, and fold the log into the file, which writes and syncs everything that is to be believed."""
        self._roll_back()
        anew = db.connect(self._path, synchronous=self._synchronous, vfs=self._vfs)
        old, self._db = self._db, anew  # only now: should opening fail, the next group finds a connection to try again with
        self._beside = ""
        old.close(True)
        if synced:
            self._db.execute("pragma wal_checkpoint(truncate)").fetchall()

    def _roll_back(self) -> None:
        if self._db.in_transaction:
            self._db.execute("rollback")

    def _fail(self, entries: list[Entry], error: apsw.Error) -> None:
        for entry in entries:
            try:
                entry.fate = db.translate(error)
            except apsw.Error as fault:
                entry.fate = fault
            entry.settled = True

    def _first_epoch(self) -> int:
        db.set_meta(self._db, "epoch", 1)
        return 1

    def _data_version(self) -> int | None:
        """Changes when another connection committed, to whichever file; None while a leader has the connection."""
        if not self._busy.acquire(blocking=False):
            return None
        try:
            if (name := named(self._db)) != self._beside:
                self._beside = attach(self._db, self._path, self.clock, vfs=self._vfs) if name else ""
            beside = self._db.pragma("data_version", schema="ephemeral") if self._beside else 0
            return int(self._db.pragma("data_version")) << 32 | int(beside)
        except apsw.Error:  # it will be looked at again
            return None
        finally:
            self._busy.release()

    def _going_on(self) -> dict[bytes, int]:
        return self._look(SYSTEM, run_read.going_on)

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def read(self, scope: Scope, look: Callable[[Tx], T]) -> T:
        return self._look(scope, look)

    def _look(self, scope: Scope, look: Callable[[Tx], T]) -> T:
        """One snapshot. Reads are bounded and short, so they run where they are asked for: a hop to a thread would
        cost more than they do."""
        if self._closed:
            raise Closed("This handle was closed.")
        reader = getattr(self._readers, "db", None)
        try:
            if reader is None:
                reader = self._readers.db = db.connect(self._path)
                reader.execute("pragma query_only=on")
                self._opened.append(reader)
            for _ in range(ATTACH_TRIES):
                try:
                    return self._snapshot(reader, scope, look)
                except Unattached:
                    self._readers.beside = attach(reader, self._path, self.clock, vfs=self._vfs)
            raise apsw.BusyError("the file for ephemeral sessions comes and goes")
        except (OverflowError, UnicodeEncodeError) as wrong:
            raise unfit(wrong) from wrong
        except apsw.Error as error:
            raise db.translate(error) from error

    def _snapshot(self, reader: apsw.Connection, scope: Scope, look: Callable[[Tx], T]) -> T:
        reader.execute("begin")
        try:
            tx = SqliteTx(reader, scope, tenant=self._tenants.find(reader, scope.tenant), now=self._time.now())
            tx.beside, tx.certain = getattr(self._readers, "beside", ""), False
            return look(tx)
        except Doubtful:
            pass
        finally:
            reader.execute("commit")
        return self._certainly(scope, look)

    def _certainly(self, scope: Scope, look: Callable[[Tx], T]) -> T:
        """A look at both files while nobody writes: one may be seen before the other had its part of a commit."""
        alone = db.connect(self._path, vfs=self._vfs)
        try:
            beside = attach(alone, self._path, self.clock, vfs=self._vfs)
            alone.execute("begin immediate")
            tx = SqliteTx(alone, scope, tenant=self._tenants.find(alone, scope.tenant), now=self._time.now())
            tx.beside = beside
            try:
                return look(tx)
            finally:
                alone.execute("commit")  # what it caught up with
        finally:
            alone.close(True)

    # ── life ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def alive(self, owner: str) -> bool | None:
        return self._ownership.alive(owner)

    async def on_duty(self, duty: str, ms: int) -> bool:
        return True  # few handles on one machine: looking twice costs less than agreeing

    async def noted(self, name: str) -> str:
        row = self._look(SYSTEM, lambda tx: tx.one("select value from meta where name = ?", (name,)))
        return str(row[0]) if row else ""

    async def note(self, name: str, value: str) -> None:
        await asyncio.to_thread(self._set_meta, name, value)

    async def check(self) -> None:
        """A read, and a write that changes nothing: both paths answer."""
        self._look(SYSTEM, lambda tx: tx.one("select 1 from meta limit 1", ()))
        await asyncio.to_thread(self._set_meta, "checked", self._time.now())

    def _set_meta(self, name: str, value: object) -> None:
        with self._busy:
            try:
                self._db.execute("begin immediate")
                db.set_meta(self._db, name, value)
                self._db.execute("commit")
            except apsw.Error as error:
                self._roll_back()
                raise db.translate(error) from error

    async def close(self) -> None:
        """Land what is queued, fold the log into the file, let go of the lock."""
        self._closed = True
        self.wakeups.close()
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._writer.close()
        for reader in self._opened:
            reader.close(True)
        with self._busy:
            self._db.close(True)
        self._ownership.release()


def unfit(wrong: OverflowError | UnicodeEncodeError) -> InvalidInput:
    """What Python can hold and SQLite cannot."""
    if isinstance(wrong, OverflowError):
        return InvalidInput("A number lies beyond 64 bits.", code="integer_too_large")
    return InvalidInput("A name, key or type has half a character in it.", code="text_invalid")
