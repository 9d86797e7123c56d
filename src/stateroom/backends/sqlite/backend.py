"""The embedded backend: one SQLite file, group commit, full fsync; any number of processes of one machine."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import apsw

from stateroom import ids, leaf, limits
from stateroom.backends.sqlite import accept, conversation, db, run, run_read, schema, session, steps
from stateroom.backends.sqlite.ownership import Ownership
from stateroom.backends.sqlite.tenants import Tenants
from stateroom.backends.sqlite.tx import Apply, Tx
from stateroom.backends.sqlite.wakeups import SqliteWakeups
from stateroom.backends.sqlite.writer import Entry, Writer
from stateroom.batch import Batch, ClaimKey, Draft, KeyRow, Receipt
from stateroom.clock import Clock, SystemClock
from stateroom.conversation import model as c
from stateroom.copies import CopyClass
from stateroom.errors import AlreadyExists, InvalidInput, StateroomError
from stateroom.principal import Scope, operator
from stateroom.run import model as r
from stateroom.run import steps as st
from stateroom.session import model as s

T = TypeVar("T")
SYSTEM = operator("", "system")

APPLY: Mapping[type, Apply] = {
    c.CreateConversation: conversation.create,
    c.SetMetadata: conversation.set_metadata,
    c.Append: conversation.append,
    c.Fork: conversation.fork,
    c.DeleteItem: conversation.delete_item,
    c.DeleteConversation: conversation.delete_conversation,
    s.OpenSession: session.open_,
    s.PatchSlots: run.patch_slots,
    s.EndSession: session.end,
    r.AcceptTurn: accept.accept,
    r.Claim: accept.claim,
    r.Heartbeat: run.heartbeat,
    r.Log: run.record,
    r.Finish: run.finish,
    r.Cancel: run.cancel,
    r.Requeue: run.requeue,
    r.DeleteRun: run.delete,
    st.RecordSteps: steps.record,
    st.Pause: steps.pause,
    st.Resolve: steps.resolve,
    st.Drain: steps.drain,
    st.Compact: steps.compact,
    ClaimKey: accept.claim_key,
}


class SqliteBackend:
    """A folder with `state.db` and `owners/`. Open it with `open`; one object per process is enough."""

    copies: Mapping[str, CopyClass] = schema.COPIES

    def __init__(self, folder: Path, clock: Clock, *, synchronous: str = "full", vfs: str | None = None) -> None:
        self.folder, self.clock = folder, clock
        self._path, self._synchronous, self._vfs = folder / "state.db", synchronous, vfs
        self._db = db.connect(self._path, synchronous=synchronous, vfs=vfs)
        db.migrate(self._db, clock.wall_ms())
        self._time = db.StoreClock(self._db, clock)
        self.epoch: int = db.meta(self._db, "epoch") or self._first_epoch()
        self.secret: bytes = db.secret(self._db)
        self.owner = f"{os.getpid()}-{ids.new(ids.new_home(), clock.wall_ms()).hex()[-12:]}"
        self._ownership = Ownership(folder / "owners", self.owner)
        self._busy = threading.Lock()  # the writing connection: a leader's, or the poller's for a moment
        self._writer = Writer(self._commit_group)
        self._tenants = Tenants()
        self._readers = threading.local()
        self._opened: list[apsw.Connection] = []
        self.wakeups = SqliteWakeups(self._data_version, self._going_on)
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
        return self._read(batch.scope, lambda tx: _leaf_is_there(tx.db, tx.tenant, batch))

    def now(self) -> int:
        return self._time.now()

    def _commit_group(self, group: list[Entry]) -> None:
        """One transaction for the group. When SQLite loses it (full disk, I/O error), look what landed and give every
        batch that did not one try of its own, so that one bad batch cannot sink the others."""
        with self._busy:
            try:
                touched = self._transaction(group)
            except apsw.Error as error:
                touched = self._after_loss(group, error)
            except BaseException:  # a fault of ours: nothing of this group lands, and the next one starts clean
                self._roll_back()
                raise
        self.wakeups.touch(*touched)

    def _transaction(self, group: list[Entry]) -> set[bytes]:
        self._db.execute("begin immediate")
        now, touched, alone = self._time.now(), set[bytes](), len(group) == 1
        for entry in group:
            if not alone:
                self._db.execute("savepoint batch")
            try:
                entry.fate = self._apply(entry.batch, now, touched)
            except StateroomError as refusal:
                entry.fate = refusal
                self._db.execute("rollback" if alone else "rollback to batch")
            if not alone:
                self._db.execute("release batch")
        if self._db.in_transaction:
            self._time.mark(self._db, now)
            self._db.execute("commit")
            self.commits += 1
            for name in {entry.batch.scope.tenant for entry in group}:
                self._tenants.find(self._db, name)  # committed now: may be remembered
        for entry in group:
            entry.settled = True
        return touched

    def _apply(self, batch: Batch, now: int, touched: set[bytes]) -> tuple[Receipt, ...]:
        tx = Tx(self._db, batch.scope, tenant=self._tenants.make(self._db, batch.scope.tenant), at=batch.at, now=now)
        try:
            receipts = tuple(APPLY[type(write)](tx, write) for write in batch.writes)
        except apsw.ConstraintError as taken:
            raise AlreadyExists("An object with one of these ids exists.") from taken
        salt = ids.salt()
        home = ids.home(batch.writes[0].subject_of_change())
        row = (tx.tenant, home, batch.id, batch.at, leaf.encode(batch, salt), salt)
        try:
            tx.run("insert into leaf(tenant, home, batch, at, body, salt) values (?, ?, ?, ?, ?, ?)", row)
        except apsw.ConstraintError as taken:
            raise AlreadyExists("This batch has landed before.", code="batch_landed") from taken
        touched |= tx.touched
        return receipts

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
                touched |= self._transaction([entry])
            except apsw.Error as again:
                self._roll_back()
                self._fail([entry], again)
        return touched

    def _landed(self, batch: Batch) -> bool:
        return _leaf_is_there(self._db, self._tenants.find(self._db, batch.scope.tenant), batch)

    def _reopen(self, *, synced: bool) -> None:
        """A connection after an error is not to be trusted, nor is a page cache after a failed fsync (`synced`): open
        anew, and fold the log into the file, which writes and syncs everything that is to be believed."""
        self._roll_back()
        anew = db.connect(self._path, synchronous=self._synchronous, vfs=self._vfs)
        old, self._db = self._db, anew  # only now: should opening fail, the next group finds a connection to try again with
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
        """Changes when another connection committed; None while a leader has the connection."""
        if not self._busy.acquire(blocking=False):
            return None
        try:
            return int(self._db.pragma("data_version"))
        finally:
            self._busy.release()

    def _going_on(self) -> dict[bytes, int]:
        return self._read(SYSTEM, run_read.going_on)

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _read(self, scope: Scope, read: Callable[[Tx], T]) -> T:
        """One snapshot. Reads are bounded and short, so they run where they are asked for: a hop to a thread would
        cost more than they do."""
        reader = getattr(self._readers, "db", None)
        try:
            if reader is None:
                reader = self._readers.db = db.connect(self._path)
                reader.execute("pragma query_only=on")
                self._opened.append(reader)
            reader.execute("begin")
            try:
                return read(Tx(reader, scope, tenant=self._tenants.find(reader, scope.tenant)))
            finally:
                reader.execute("commit")
        except apsw.Error as error:
            raise db.translate(error) from error

    async def conversation(self, scope: Scope, conversation_: bytes) -> c.Conversation:
        return self._read(scope, lambda tx: conversation.conversation(tx, conversation_))

    async def conversations(self, scope: Scope, *, after: bytes, limit: int, newest_first: bool = True) -> list[c.Conversation]:
        return self._read(scope, lambda tx: conversation.conversations(tx, after, limit, newest_first))

    async def branch(self, scope: Scope, branch: bytes) -> c.Branch:
        return self._read(scope, lambda tx: conversation.branch(tx, branch))

    async def items(self, scope: Scope, query: c.ItemQuery) -> list[c.Item]:
        return self._read(scope, lambda tx: conversation.items(tx, query))

    async def item(self, scope: Scope, branch: bytes, item: bytes) -> c.Item:
        return self._read(scope, lambda tx: conversation.item(tx, branch, item))

    async def session(self, scope: Scope, session_: bytes) -> s.Session:
        return self._read(scope, lambda tx: session.session(tx, session_))

    async def bound(self, scope: Scope, conversation_: bytes, agent: str) -> s.Session | None:
        return self._read(scope, lambda tx: session.bound(tx, conversation_, agent))

    async def sessions(self, scope: Scope, *, after: bytes, limit: int) -> list[s.Session]:
        return self._read(scope, lambda tx: session.sessions(tx, after, limit))

    async def slots(self, scope: Scope, session_: bytes, since: int = 0) -> list[s.Slot]:
        return self._read(scope, lambda tx: session.slots(tx, session_, since))

    async def past(self, scope: Scope, session_: bytes, name: str, limit: int) -> list[s.Slot]:
        return self._read(scope, lambda tx: session.past(tx, session_, name, limit))

    async def run(self, scope: Scope, run: bytes) -> r.Run:
        return self._read(scope, lambda tx: run_read.run(tx, run))

    async def runs(self, scope: Scope, query: r.RunQuery) -> list[r.Run]:
        return self._read(scope, lambda tx: run_read.runs(tx, query))

    async def key(self, scope: Scope, operation: str, key: str, home: int) -> KeyRow | None:
        return self._read(scope, lambda tx: run_read.key(tx, operation, key, home))

    async def inbox(self, scope: Scope, run: bytes) -> list[Draft]:
        def read(tx: Tx) -> list[Draft]:
            run_read.run(tx, run)
            return run_read.inbox(tx, run)

        return self._read(scope, read)

    async def log(self, scope: Scope, run: bytes, *, after: int, limit: int) -> list[r.LogRow]:
        return self._read(scope, lambda tx: run_read.log(tx, run, after, limit))

    async def steps(self, scope: Scope, run: bytes) -> list[st.Step]:
        return self._read(scope, lambda tx: steps.steps(tx, run))

    async def actions(self, scope: Scope, query: st.ActionQuery) -> list[st.Action]:
        return self._read(scope, lambda tx: steps.actions(tx, query))

    async def heads(self, scope: Scope, runs: list[bytes]) -> dict[bytes, tuple[int, bool]]:
        return self._read(scope, lambda tx: run_read.heads(tx, runs))

    async def due(self, kind: str, until: int, limit: int) -> list[r.Due]:
        return self._read(SYSTEM, lambda tx: run_read.due(tx, kind, until, limit))

    async def run_of_action(self, tenant: str, action: bytes) -> bytes:
        return self._read(operator(tenant, "system"), lambda tx: run_read.due_run(tx, action))

    async def leased_by(self, owner: str, limit: int) -> list[r.Due]:
        return self._read(SYSTEM, lambda tx: run_read.leased_by(tx, owner, limit))

    async def owners(self) -> list[str]:
        return self._read(SYSTEM, run_read.owners)

    # ── life ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def alive(self, owner: str) -> bool | None:
        return self._ownership.alive(owner)

    async def check(self) -> None:
        """A read, and a write that changes nothing: both paths answer."""
        self._read(SYSTEM, lambda tx: tx.one("select 1 from meta limit 1", ()))
        await asyncio.to_thread(self._try_writing)

    def _try_writing(self) -> None:
        with self._busy:
            try:
                self._db.execute("begin immediate")
                db.set_meta(self._db, "checked", self._time.now())
                self._db.execute("commit")
            except apsw.Error as error:
                self._roll_back()
                raise db.translate(error) from error

    async def close(self) -> None:
        """Land what is queued, fold the log into the file, let go of the lock."""
        self.wakeups.close()
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._writer.close()
        for reader in self._opened:
            reader.close(True)
        with self._busy:
            self._db.close(True)
        self._ownership.release()


def _leaf_is_there(connection: apsw.Connection, tenant: int, batch: Batch) -> bool:
    found: Any = connection.execute("select 1 from leaf where batch = ? and tenant = ?", (batch.id, tenant)).fetchone()
    return found is not None
