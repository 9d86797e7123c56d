"""Bring state to a worker: the desk's slots and the record's newest items, paying only for what is new.

The cache is never truth (D10): a slot map is valid for the session version it was read at, a stretch of items for
(tail, revision) of its branch; both come fresh with every claim, so a stale entry cannot be used, only be topped up.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Generic, TypeVar

import msgspec
from msgspec.structs import replace

from stateroom import limits
from stateroom.backends.base import Backend
from stateroom.batch import Draft
from stateroom.conversation.model import Item, ItemQuery
from stateroom.ids import NIL
from stateroom.principal import Scope
from stateroom.run.model import Run
from stateroom.session.model import Patched, Slot

V = TypeVar("V")


class Desk(msgspec.Struct):
    """Slots by name as of `version`; removed ones are left out."""

    version: int
    slots: dict[str, Slot]


class Stretch(msgspec.Struct):
    """The newest items of a branch, oldest first, up to and including seq `tail`. `size` is their bytes."""

    tail: int
    revision: int
    items: list[Item]
    size: int

    def joined(self, more: list[Item], tail: int, *, spared: int = 0) -> Stretch:
        """With more items at the end, and the oldest gone that no window can reach. The last `spared` ones, a run's own
        input, always stay. Costs what is new."""
        items, size = self.items + more, self.size + sum(len(item.body) for item in more)
        last = len(items) - max(spared, 1)
        first = max(0, min(len(items) - limits.WINDOW_ITEMS_MAX, last))
        size -= sum(len(item.body) for item in items[:first])
        while size > 2 * limits.WINDOW_BYTES_MAX and first < last:
            size -= len(items[first].body)
            first += 1
        return Stretch(tail=tail, revision=self.revision, items=items[first:], size=size)


class Lru(Generic[V]):
    """A cache bounded in bytes; the least recently used goes first."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max, self._bytes = bytes_max, 0
        self._entries: OrderedDict[tuple[str, bytes], tuple[V, int]] = OrderedDict()

    def get(self, key: tuple[str, bytes]) -> V | None:
        if (entry := self._entries.get(key)) is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def clear(self) -> None:
        self._entries.clear()
        self._bytes = 0

    def put(self, key: tuple[str, bytes], value: V, size: int) -> None:
        if (old := self._entries.pop(key, None)) is not None:
            self._bytes -= old[1]
        self._entries[key] = (value, size)
        self._bytes += size
        while self._bytes > self._bytes_max and len(self._entries) > 1:
            _, (_, freed) = self._entries.popitem(last=False)
            self._bytes -= freed


class Hydrator:
    """Reads desks and stretches through a cache of `bytes_max` bytes each."""

    def __init__(self, backend: Backend, *, bytes_max: int = 32 << 20) -> None:
        self._backend, self._epoch = backend, backend.epoch
        self._desks: Lru[Desk] = Lru(bytes_max)
        self._stretches: Lru[Stretch] = Lru(bytes_max)

    def _check_epoch(self) -> None:
        """Another incarnation of the store may have lost its last writes: the same numbers, other content."""
        if self._epoch != self._backend.epoch:
            self._epoch = self._backend.epoch
            self._desks.clear()
            self._stretches.clear()

    async def desk(self, scope: Scope, session: bytes, version: int) -> dict[str, Slot]:
        """The slots as of at least `version`: nothing is read when the cached version is that, else only the delta."""
        if session == NIL or version == 0:
            return {}
        self._check_epoch()
        key = (scope.tenant, session)
        cached = self._desks.get(key)
        if cached is not None and cached.version == version:
            return cached.slots
        since = cached.version if cached is not None and cached.version < version else 0
        changed = await self._backend.slots(scope, session, since)
        slots = dict(cached.slots) if cached is not None and since else {}
        for slot in changed:
            if slot.body is None:
                slots.pop(slot.name, None)
            else:
                slots[slot.name] = slot
        reached = max([version, *(slot.version for slot in changed)])
        size = sum(len(slot.body or b"") + 200 for slot in slots.values())
        self._desks.put(key, Desk(version=reached, slots=slots), size)
        return slots

    def patched(self, scope: Scope, patched: Patched) -> None:
        """After a finish: the run's own patch joins the cached desk, if nobody else's came between."""
        self._check_epoch()
        key, version = (scope.tenant, patched.session), patched.version
        cached = self._desks.get(key)
        slots = {} if cached is None and version == 1 else None if cached is None else dict(cached.slots)
        if slots is None or (cached is not None and cached.version != version - 1):
            return
        for slot in patched.slots:
            slots.pop(slot.name, None)
            if slot.body is not None:
                slots[slot.name] = slot
        size = sum(len(slot.body or b"") + 200 for slot in slots.values())
        self._desks.put(key, Desk(version=version, slots=slots), size)

    async def stretch(self, scope: Scope, run: Run, revision: int, own: Sequence[Draft] = ()) -> list[Item]:
        """The newest items up to the run's input, oldest first, within the window's bounds. `own` is the run's input
        if the caller still has it: then a cached stretch that reaches up to it needs no read at all."""
        self._check_epoch()
        key = (scope.tenant, run.branch)
        cached, spared = self._stretches.get(key), run.in_hi - run.in_lo
        far = cached is None or run.in_hi - cached.tail > limits.WINDOW_ITEMS_MAX + spared
        if cached is None or far or cached.revision != revision or cached.tail > run.in_hi:
            cached = Stretch(tail=run.in_lo, revision=revision, items=[], size=0)
            items = await self._backwards(scope, run.branch, tail=run.in_hi, limit=limits.WINDOW_ITEMS_MAX + spared)
            found = cached.joined(items, run.in_hi, spared=spared)
        else:
            found = cached.joined(await self._since(scope, cached.tail, run, own), run.in_hi, spared=spared)
        self._stretches.put(key, found, found.size)
        return found.items

    def extend(self, scope: Scope, run: Run, revision: int, outputs: Sequence[Draft]) -> None:
        """After a finish: the outputs join the cached stretch, so that the next turn reads nothing old."""
        self._check_epoch()
        key = (scope.tenant, run.branch)
        cached = self._stretches.get(key)
        if cached is None or cached.revision != revision or cached.tail != run.in_hi:
            return
        if run.out_hi == run.in_hi + len(outputs):
            found = cached.joined(placed(run, outputs, after=run.in_hi, at=run.finished_at), run.out_hi)
            self._stretches.put(key, found, found.size)

    async def _since(self, scope: Scope, tail: int, run: Run, own: Sequence[Draft]) -> list[Item]:
        if tail == run.in_hi:
            return []
        if own and tail == run.in_lo and run.in_hi == run.in_lo + len(own):
            return placed(run, own, after=run.in_lo, at=run.created_at)
        query = ItemQuery(branch=run.branch, after=tail, before=run.in_hi + 1, limit=limits.READ_ITEMS_MAX)
        return await self._backend.items(scope, query)

    async def _backwards(self, scope: Scope, branch: bytes, *, tail: int, limit: int) -> list[Item]:
        """Backwards from the end until the budget is full."""
        query = ItemQuery(branch=branch, before=tail + 1, limit=limit, newest_first=True)
        return (await self._backend.items(scope, query))[::-1]


def placed(run: Run, drafts: Sequence[Draft], *, after: int, at: int) -> list[Item]:
    """Drafts as the items they became."""
    return [
        Item(
            seq=seq, id=draft.id, branch=run.branch, run=run.id, kind=draft.kind, role=draft.role,
            origin=draft.origin, trust=draft.trust, mark="", at=at, body=draft.body,
        )
        for seq, draft in enumerate(drafts, after + 1)
    ]  # fmt: skip


def unrecorded(run: Run, prior: Sequence[Draft], own: Sequence[Draft]) -> list[Item]:
    """What lies behind the record of a run that is not stored: what came before it, which is no input of its own, and its
    input."""
    items = placed(run, (*prior, *own), after=run.in_hi, at=run.created_at)
    return [replace(item, run=NIL) for item in items[: len(prior)]] + items[len(prior) :]
