"""The tables of a ram store, and the journal that makes a batch all or none.

Rows are frozen, so what was read stays what it was. Keys start with the tenant, so that no look-up can cross the wall.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from msgspec.structs import replace

from stateroom import clock as clocks
from stateroom import copies, ids
from stateroom.backends.wakeups import LocalWakeups
from stateroom.batch import Draft, KeyRow, Record
from stateroom.clock import Clock
from stateroom.conversation.model import Branch, Conversation, Item
from stateroom.copies import CopyClass
from stateroom.principal import Scope
from stateroom.run.model import LogRow, Run
from stateroom.run.steps import Action, Step
from stateroom.session.model import Checkpoint, Entry, Session, Slot
from stateroom.session.remains import Beyond

K = TypeVar("K")
V = TypeVar("V")
Owned = TypeVar("Owned", Conversation, Session, Run)

COPIES: Mapping[str, CopyClass] = {
    "conversations": copies.CONVERSATION_HEADS,
    "branches": copies.CONVERSATION_HEADS,
    "items": copies.ITEMS,
    "item_places": copies.ITEMS,
    "tombstones": copies.TOMBSTONES,
    "sessions": copies.DESKS,
    "bindings": copies.DESKS,
    "slots": copies.DESKS,
    "past_slots": copies.DESKS,
    "documents": copies.DESKS,
    "entries": copies.DESKS,
    "schemas": copies.DESKS,
    "checkpoints": copies.DESKS,
    "beyond": copies.DESKS,
    "runs": copies.RUNS,
    "log": copies.RUN_LOGS,
    "steps": copies.STEPS,
    "actions": copies.STEPS,
    "action_places": copies.STEPS,
    "inbox": copies.INBOX,
    "queues": copies.RUNS,
    "keys": copies.KEYS,
    "leaves": copies.LEAVES,
    "due": copies.MAINTENANCE,
}


class Table(Generic[K, V]):
    """Rows by key. A dropped row leaves a hole, so that no id is given twice."""

    def __init__(self, undo: list[Callable[[], None]]) -> None:
        self._rows: dict[K, V | None] = {}
        self._undo = undo

    def get(self, key: K) -> V | None:
        return self._rows.get(key)

    def taken(self, key: K) -> bool:
        """Whether a row with this key was ever there."""
        return key in self._rows

    def put(self, key: K, row: V | None) -> None:
        if key in self._rows:
            old = self._rows[key]
            self._undo.append(lambda: self._rows.__setitem__(key, old))
        else:
            self._undo.append(lambda: self._rows.__delitem__(key))
        self._rows[key] = row

    def drop(self, key: K) -> None:
        if self._rows.get(key) is not None:
            self.put(key, None)

    def pairs(self) -> Iterator[tuple[K, V]]:
        """Living rows with their keys."""
        return ((key, row) for key, row in self._rows.items() if row is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self.pairs())


class Queue(Record, frozen=True):
    """Turns that wait on a branch, in their order. `last` is the highest number given there; it only grows."""

    last: int = 0
    waiting: tuple[bytes, ...] = ()


class Tables:
    """Everything a ram store keeps. An id in a key is 16 bytes; the str before it is the tenant."""

    def __init__(self, undo: list[Callable[[], None]]) -> None:
        self.conversations: Table[tuple[str, bytes], Conversation] = Table(undo)
        self.branches: Table[tuple[str, bytes], Branch] = Table(undo)
        self.items: Table[tuple[str, bytes, int], Item] = Table(undo)  # by branch and seq
        self.item_places: Table[tuple[str, bytes], tuple[bytes, int]] = Table(undo)  # item: branch and seq
        self.tombstones: Table[tuple[str, bytes], tuple[tuple[int, int], ...]] = Table(undo)  # branch: (seq, number)
        self.sessions: Table[tuple[str, bytes], Session] = Table(undo)
        self.bindings: Table[tuple[str, bytes, str], bytes] = Table(undo)  # conversation and agent: session
        self.slots: Table[tuple[str, bytes, str], Slot] = Table(undo)  # by session and name; removals included
        self.past_slots: Table[tuple[str, bytes, str], tuple[Slot, ...]] = Table(undo)  # oldest first
        self.documents: Table[tuple[str, bytes, str], tuple[tuple[int, bytes], ...]] = Table(undo)  # version and snapshot
        self.entries: Table[tuple[str, bytes, str], tuple[Entry, ...]] = Table(undo)  # of a window, by time
        self.schemas: Table[tuple[str, bytes, str], str] = Table(undo)  # by lineage and digest
        self.checkpoints: Table[tuple[str, bytes], tuple[Checkpoint, ...]] = Table(undo)  # by session, as they were made
        self.beyond: Table[tuple[str, bytes], tuple[Beyond, ...]] = Table(undo)  # by session: what newer versions said
        self.runs: Table[tuple[str, bytes], Run] = Table(undo)
        self.log: Table[tuple[str, bytes], tuple[LogRow, ...]] = Table(undo)
        self.steps: Table[tuple[str, bytes], tuple[Step, ...]] = Table(undo)  # by run, in the order they were first recorded
        self.actions: Table[tuple[str, bytes], tuple[Action, ...]] = Table(undo)  # by run, oldest first
        self.action_places: Table[tuple[str, bytes], bytes] = Table(undo)  # action: run
        self.inbox: Table[tuple[str, bytes], tuple[Draft, ...]] = Table(undo)
        self.queues: Table[tuple[str, bytes], Queue] = Table(undo)  # by branch
        self.keys: Table[tuple[str, str, str, str], KeyRow] = Table(undo)  # by principal, operation and key
        self.leaves: Table[tuple[str, bytes], tuple[int, bytes, bytes]] = Table(undo)  # batch: wall ms, leaf, salt
        self.due: Table[tuple[str, bytes, str], int] = Table(undo)  # run (or action) and kind: store time

    def by_name(self) -> Mapping[str, Table[Any, Any]]:
        return dict(vars(self))


class Reader:
    """What a read is made with: the tables, who asks, and the store's time."""

    def __init__(self, tables: Tables, scope: Scope, *, now: int) -> None:
        self.tables = tables
        self.scope = scope
        self.now = now
        self.tenant = scope.tenant

    def visible(self, table: Table[tuple[str, bytes], Owned]) -> Iterator[Owned]:
        """The rows of a table of owned objects that this scope may see."""
        return (row for (tenant, _), row in table.pairs() if tenant == self.tenant and self.scope.may_see(row.owner))


class Transaction(Reader):
    """What a write is applied with: `at` is the batch's wall time (data), `now` the store's (leases, lifetimes). `changed`
    collects the ids whose readers are woken when it has landed."""

    def __init__(self, tables: Tables, scope: Scope, *, at: int, now: int) -> None:
        super().__init__(tables, scope, now=now)
        self.at = at
        self.changed: set[bytes] = set()

    def put_branch(self, branch: Branch) -> Branch:
        self.tables.branches.put((self.tenant, branch.id), branch)
        self.changed.add(branch.id)
        return branch

    def put_session(self, session: Session) -> Session:
        self.tables.sessions.put((self.tenant, session.id), session)
        self.changed.add(session.id)
        return session

    def put_run(self, run: Run) -> Run:
        self.tables.runs.put((self.tenant, run.id), run)
        self.changed.add(run.id)
        return run


class RamStore:
    """State that several handles share. Gone with the process; everything else is as promised."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.lock = threading.RLock()
        self.wakeups = LocalWakeups()
        self.epoch = int.from_bytes(ids.salt()[:6], "big")
        self.secret = ids.salt() + ids.salt()
        self.notes: dict[str, str] = {}
        self._undo: list[Callable[[], None]] = []
        self.tables = Tables(self._undo)
        self._mark = (clock.boot_id(), clock.boot_ms(), clock.wall_ms())

    def now(self) -> int:
        """Store time, ms: never goes back, whatever the wall does."""
        with self.lock:
            boot, boot_ms, store_ms = self._mark
            now = clocks.store_time(self.clock, boot=boot, boot_ms=boot_ms, store_ms=store_ms)
            self._mark = (self.clock.boot_id(), self.clock.boot_ms(), now)
            return now

    def lose(self) -> None:
        """What lies on ephemeral desks is lost, as in a power cut elsewhere."""
        with self.transaction():
            rows = [pair for pair in self.tables.sessions.pairs() if pair[1].durability == "ephemeral"]
            for key, row in rows:
                self._lose(key, row)

    def _lose(self, key: tuple[str, bytes], row: Session) -> None:
        if row.status == "active":
            self.tables.sessions.put(key, replace(row, status="lost"))
        elif row.status == "expiring":
            self.tables.sessions.put(key, replace(row, kept_from=row.version + 1))
        for table in (self.tables.slots, self.tables.past_slots, self.tables.documents, self.tables.entries):
            for place in [place for place, _ in table.pairs() if place[:2] == key]:
                table.drop(place)
        self.tables.checkpoints.drop(key)
        self.tables.beyond.drop(key)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Alone with the tables; what is raised inside undoes what was done inside."""
        with self.lock:
            landed = False
            try:
                yield
                landed = True
            finally:
                if not landed:
                    for step in reversed(self._undo):
                        step()
                self._undo.clear()
