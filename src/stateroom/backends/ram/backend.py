"""A handle on a ram store: the one door in, and plain reads out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from stateroom import ids, leaf, limits
from stateroom.backends.ram import accept, desk_life, desk_remains, desk_rows, desk_versions, maintenance, run_rows, steps
from stateroom.backends.ram import conversation as record
from stateroom.backends.ram import run as work
from stateroom.backends.ram import session as desk
from stateroom.backends.ram.store import COPIES, RamStore, Reader, Tables, Transaction
from stateroom.batch import Batch, ClaimKey, Draft, KeyRow, Receipt, Write
from stateroom.conversation.model import (
    Append,
    Branch,
    Conversation,
    CreateConversation,
    DeleteConversation,
    DeleteItem,
    Fork,
    Item,
    ItemQuery,
    MoveBranch,
    SetMetadata,
)
from stateroom.copies import CopyClass
from stateroom.errors import AlreadyExists, Closed
from stateroom.principal import Scope
from stateroom.run.model import (
    AcceptTurn,
    Cancel,
    Claim,
    DeleteRun,
    Due,
    Finish,
    Heartbeat,
    Log,
    LogRow,
    Requeue,
    Run,
    RunQuery,
)
from stateroom.run.steps import Action, ActionQuery, Compact, Drain, Pause, RecordSteps, Resolve, Step
from stateroom.session.model import (
    Checkpoint,
    CompactPast,
    Document,
    DropCheckpoint,
    EndSession,
    Entry,
    Expire,
    ForkSession,
    HoldDesk,
    MakeCheckpoint,
    MarkTurn,
    OpenSession,
    PatchSlots,
    PurgeSession,
    RollBack,
    Session,
    SetAccess,
    Slot,
    Told,
    TouchSession,
)
from stateroom.session.remains import BeginRestore, Key, Part, PutRemnants, Remnant, Revive

WRITES: Mapping[type[Write], Callable[[Transaction, Any], Receipt]] = {
    CreateConversation: record.create_conversation,
    SetMetadata: record.set_metadata,
    Append: record.append,
    Fork: record.fork,
    MoveBranch: record.move_branch,
    DeleteItem: record.delete_item,
    DeleteConversation: record.delete_conversation,
    OpenSession: desk.open_session,
    ForkSession: desk_versions.fork_session,
    PatchSlots: desk.patch_slots,
    MakeCheckpoint: desk_versions.make_checkpoint,
    MarkTurn: desk_versions.mark_turn,
    DropCheckpoint: desk_versions.drop_checkpoint,
    RollBack: desk_versions.roll_back,
    CompactPast: desk_versions.compact_past,
    TouchSession: desk_life.touch_session,
    SetAccess: desk_life.set_access,
    HoldDesk: desk_life.hold_desk,
    EndSession: desk_life.end_session,
    Expire: desk_life.expire,
    PurgeSession: desk_life.purge_session,
    BeginRestore: desk_remains.begin,
    PutRemnants: desk_remains.put,
    Revive: desk_remains.revive,
    ClaimKey: accept.claim_key,
    AcceptTurn: accept.accept,
    Claim: work.claim,
    Heartbeat: work.heartbeat,
    Log: work.write_log,
    Finish: work.finish,
    Cancel: work.cancel,
    Requeue: work.requeue,
    DeleteRun: work.delete_run,
    RecordSteps: steps.record_steps,
    Pause: steps.pause,
    Resolve: steps.resolve,
    Drain: steps.drain,
    Compact: steps.compact,
}


class RamBackend:
    """Several handles may be open on one store. `writes` says how each write is applied; tests of the conformance suite
    give a wrong one to see it go red."""

    copies: Mapping[str, CopyClass] = COPIES

    def __init__(self, store: RamStore, writes: Mapping[type[Write], Callable[[Transaction, Any], Receipt]] = WRITES) -> None:
        self.clock = store.clock
        self.epoch = store.epoch
        self.secret = store.secret
        self.owner = f"ram-{ids.salt().hex()[:12]}"
        self.wakeups = store.wakeups
        self._store = store
        self._writes = writes
        self._closed = False

    async def commit(self, batch: Batch) -> tuple[Receipt, ...]:
        """Each write in turn, then the leaf; whatever is raised on the way undoes them all."""
        self._check_open()
        limits.batch(len(batch.writes))
        with self._store.transaction():
            tx = Transaction(self._store.tables, batch.scope, at=batch.at, now=self._store.now())
            receipts = tuple(self._writes[type(write)](tx, write) for write in batch.writes)
            accept.keep_keys(tx, batch, receipts)
            self._leave_leaf(batch)
        self.wakeups.touch(*tx.changed)
        return receipts

    def _leave_leaf(self, batch: Batch) -> None:
        place, salt = (batch.scope.tenant, batch.id), ids.salt()
        if self._store.tables.leaves.taken(place):
            raise AlreadyExists("This batch has landed before.", code="batch_landed")
        self._store.tables.leaves.put(place, (batch.at, leaf.encode(batch, salt), salt))

    async def landed(self, batch: Batch) -> bool:
        with self._tables() as tables:
            return tables.leaves.taken((batch.scope.tenant, batch.id))

    def now(self) -> int:
        return self._store.now()

    async def alive(self, owner: str) -> bool | None:
        return None  # a lease owner may be anything here; only its lease tells

    async def on_duty(self, duty: str, ms: int) -> bool:
        return True  # few handles on one machine: looking twice costs less than agreeing

    async def noted(self, name: str) -> str:
        return self._store.notes.get(name, "")

    async def note(self, name: str, value: str) -> None:
        self._store.notes[name] = value

    async def check(self) -> None:
        self._check_open()

    async def close(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("This handle was closed.")

    @contextmanager
    def _tables(self) -> Iterator[Tables]:
        self._check_open()
        with self._store.lock:
            yield self._store.tables

    @contextmanager
    def _read(self, scope: Scope) -> Iterator[Reader]:
        with self._tables() as tables:
            yield Reader(tables, scope, now=self._store.now())

    # ── conversations ───────────────────────────────────────────────────────────────────────────────────────────────

    async def conversation(self, scope: Scope, conversation: bytes) -> Conversation:
        with self._read(scope) as reader:
            return record.see_conversation(reader, conversation)

    async def conversations(self, scope: Scope, *, after: bytes, limit: int, newest_first: bool = True) -> list[Conversation]:
        with self._read(scope) as reader:
            return record.conversations(reader, after=after, limit=limit, newest_first=newest_first)

    async def branch(self, scope: Scope, branch: bytes) -> Branch:
        with self._read(scope) as reader:
            return record.see_main(reader, branch)

    async def items(self, scope: Scope, query: ItemQuery) -> list[Item]:
        with self._read(scope) as reader:
            return record.items(reader, query)

    async def item(self, scope: Scope, branch: bytes, item: bytes) -> Item:
        with self._read(scope) as reader:
            return record.item(reader, branch, item)

    # ── sessions ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def session(self, scope: Scope, session: bytes) -> Session:
        with self._read(scope) as reader:
            return desk_rows.see_session(reader, session)

    async def bound(self, scope: Scope, conversation: bytes, agent: str) -> Session | None:
        with self._read(scope) as reader:
            return desk.bound(reader, conversation, agent)

    async def sessions(self, scope: Scope, *, after: bytes, limit: int) -> list[Session]:
        with self._read(scope) as reader:
            return desk.sessions(reader, after=after, limit=limit)

    async def slots(self, scope: Scope, session: bytes, since: int = 0) -> list[Slot]:
        with self._read(scope) as reader:
            return desk.slots(reader, session, since)

    async def past(self, scope: Scope, session: bytes, name: str, limit: int) -> list[Slot]:
        with self._read(scope) as reader:
            return desk.past(reader, session, name, limit=limit)

    async def told(self, scope: Scope, session: bytes, *, after: int, limit: int) -> Told:
        with self._read(scope) as reader:
            return desk_versions.told(reader, session, after=after, limit=limit)

    async def slots_at(self, scope: Scope, session: bytes, version: int) -> list[Slot]:
        with self._read(scope) as reader:
            return desk_versions.slots_at(reader, session, version)

    async def checkpoints(self, scope: Scope, session: bytes, limit: int) -> list[Checkpoint]:
        with self._read(scope) as reader:
            return desk_versions.checkpoints(reader, session, limit=limit)

    async def checkpoint_at(self, scope: Scope, session: bytes, to: str | int) -> Checkpoint | None:
        with self._read(scope) as reader:
            return desk_versions.checkpoint_at(reader, session, to)

    async def head(self, scope: Scope, session: bytes) -> Session:
        with self._read(scope) as reader:
            return desk_remains.head_of(reader, session)

    async def remains(self, scope: Scope, session: bytes, part: Part, *, after: Key, limit: int) -> list[Remnant]:
        with self._read(scope) as reader:
            return desk_remains.remains(reader, session, part, after=after, limit=limit)

    async def entries(self, scope: Scope, session: bytes, name: str, *, as_of: int | None, limit: int) -> list[Entry]:
        with self._read(scope) as reader:
            return desk.entries(reader, session, name, as_of=as_of, limit=limit)

    async def document(self, scope: Scope, session: bytes, name: str) -> Document:
        with self._read(scope) as reader:
            return desk.document(reader, session, name)

    # ── runs ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def run(self, scope: Scope, run: bytes) -> Run:
        with self._read(scope) as reader:
            return run_rows.see_run(reader, run)

    async def runs(self, scope: Scope, query: RunQuery) -> list[Run]:
        with self._read(scope) as reader:
            return work.runs(reader, query)

    async def key(self, scope: Scope, operation: str, key: str, home: int) -> KeyRow | None:
        with self._read(scope) as reader:
            return work.key(reader, operation, key)

    async def inbox(self, scope: Scope, run: bytes) -> list[Draft]:
        with self._read(scope) as reader:
            return work.inbox(reader, run)

    async def steps(self, scope: Scope, run: bytes) -> list[Step]:
        with self._read(scope) as reader:
            return steps.steps(reader, run)

    async def actions(self, scope: Scope, query: ActionQuery) -> list[Action]:
        with self._read(scope) as reader:
            return steps.actions(reader, query)

    async def log(self, scope: Scope, run: bytes, *, after: int, limit: int) -> list[LogRow]:
        with self._read(scope) as reader:
            return work.log(reader, run, after=after, limit=limit)

    async def heads(self, scope: Scope, runs: list[bytes]) -> dict[bytes, tuple[int, bool]]:
        with self._read(scope) as reader:
            return work.heads(reader, runs)

    # ── maintenance ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def due(self, kind: str, until: int, limit: int) -> list[Due]:
        with self._tables() as tables:
            return maintenance.due(tables, kind, until=until, limit=limit)

    async def run_of_action(self, tenant: str, action: bytes) -> bytes:
        with self._tables() as tables:
            return maintenance.run_of_action(tables, tenant, action)

    async def leased_by(self, owner: str, limit: int) -> list[Due]:
        with self._tables() as tables:
            return maintenance.leased_by(tables, owner, limit)

    async def owners(self) -> list[str]:
        with self._tables() as tables:
            return maintenance.owners(tables)
