"""Bring state to a worker: the desk's slots and the record's newest items, paying only for what is new.

The cache is never truth (D10): a slot map is valid for the session version it was read at, a stretch of items for
(tail, revision) of its branch; both come fresh with every claim, so a stale entry cannot be used, only be topped up. Who
reads a desk without a claim reads its head first. Entries that nobody asked for go after HYDRATED_MS, and when there are
too many bytes of them.
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
from stateroom.clock import Clock
from stateroom.context.build import call_ids
from stateroom.conversation.model import Item, ItemQuery
from stateroom.ids import NIL
from stateroom.principal import Scope
from stateroom.run.model import Run
from stateroom.session import access
from stateroom.session.model import Session, Slot
from stateroom.session.receipts import Patched

V = TypeVar("V")


class Desk(msgspec.Struct):
    """Slots by name as of `version`; removed ones are left out. `size` is about their bytes."""

    version: int
    slots: dict[str, Slot]
    access: str = ""
    size: int = 200

    def topped(self, changed: Sequence[Slot], version: int, access: str) -> Desk:
        """As of a later version. Counts what changed and nothing else."""
        slots, size = dict(self.slots), self.size
        for slot in changed:
            size -= _size(slots.pop(slot.name, None))
            if slot.body is not None:
                slots[slot.name] = slot
                size += _size(slot)
        return Desk(version=version, slots=slots, access=access, size=size)


def _size(slot: Slot | None) -> int:
    return 0 if slot is None else len(slot.body or b"") + 200


class Stretch(msgspec.Struct):
    """The newest items of a branch, oldest first, up to and including seq `tail`, with their call ids. `size`: their bytes."""

    tail: int
    revision: int
    items: list[Item]
    calls: list[str | None]
    size: int

    def joined(self, more: list[Item], tail: int, *, spared: int = 0) -> Stretch:
        """With more items at the end, and the oldest gone that no window can reach. The last `spared` ones, a run's own
        input, always stay. Costs what is new."""
        items, size = self.items + more, self.size + sum(len(item.body) for item in more)
        calls = self.calls + call_ids(more)
        last = len(items) - max(spared, 1)
        first = max(0, min(len(items) - limits.WINDOW_ITEMS_MAX, last))
        size -= sum(len(item.body) for item in items[:first])
        while size > 2 * limits.WINDOW_BYTES_MAX and first < last:
            size -= len(items[first].body)
            first += 1
        return Stretch(tail=tail, revision=self.revision, items=items[first:], calls=calls[first:], size=size)


class Held(msgspec.Struct, Generic[V]):
    """What a cache holds. `ahead`: it was fetched before anybody asked, and nobody has yet."""

    value: V
    size: int
    until: int
    ahead: bool


class Counters(msgspec.Struct):
    """How often a desk was there as it is (`hits`), only had to be topped up (`deltas`), or was read whole (`misses`); how
    many were fetched ahead, and what became of these: `ahead_hits` were asked for, `ahead_waste` went unasked for."""

    hits: int = 0
    deltas: int = 0
    misses: int = 0
    ahead: int = 0
    ahead_hits: int = 0
    ahead_waste: int = 0
    desks: int = 0
    bytes: int = 0


class Lru(Generic[V]):
    """A cache bounded in bytes and in time; the least recently used goes first. An entry that alone is too large is not
    kept."""

    def __init__(self, bytes_max: int, clock: Clock, counters: Counters | None = None) -> None:
        self._bytes_max, self._clock, self._bytes = bytes_max, clock, 0
        self._counters = counters or Counters()
        self._entries: OrderedDict[tuple[str, bytes], Held[V]] = OrderedDict()

    @property
    def held(self) -> int:
        """In bytes."""
        return self._bytes

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: tuple[str, bytes], *, peek: bool = False) -> V | None:
        """What is held, if its time is not over. A `peek` is no use of it."""
        held = self._entries.get(key)
        if held is None:
            return None
        now = self._clock.boot_ms()
        if held.until <= now:
            self.drop(key)
            return None
        if not peek:
            self._counters.ahead_hits += held.ahead
            held.ahead, held.until = False, now + limits.HYDRATED_MS
            self._entries.move_to_end(key)
        return held.value

    def clear(self) -> None:
        for key in list(self._entries):
            self.drop(key)

    def put(self, key: tuple[str, bytes], value: V, size: int, *, ahead: bool = False) -> None:
        old = self._entries.get(key)
        if old is not None and not ahead:
            ahead = old.ahead  # topped up, and still not asked for
        if old is not None:
            old.ahead = False
            self.drop(key)
        self._entries[key] = Held(value, size, self._clock.boot_ms() + limits.HYDRATED_MS, ahead)
        self._bytes += size
        while self._bytes > self._bytes_max and self._entries:
            self.drop(next(iter(self._entries)))

    def drop(self, key: tuple[str, bytes]) -> None:
        held = self._entries.pop(key)
        self._counters.ahead_waste += held.ahead
        self._bytes -= held.size


class Hydrator:
    """Reads desks and stretches through a cache of `bytes_max` bytes each."""

    def __init__(self, backend: Backend, *, bytes_max: int = 32 << 20) -> None:
        self._backend, self._epoch = backend, backend.epoch
        self._counters = Counters()
        self._desks: Lru[Desk] = Lru(bytes_max, backend.clock, self._counters)
        self._stretches: Lru[Stretch] = Lru(bytes_max, backend.clock)

    def _check_epoch(self) -> None:
        """Another incarnation of the store may have lost its last writes: the same numbers, other content."""
        if self._epoch != self._backend.epoch:
            self._epoch = self._backend.epoch
            self._desks.clear()
            self._stretches.clear()

    @property
    def counters(self) -> Counters:
        """How the cache of desks has done so far."""
        return replace(self._counters, desks=len(self._desks), bytes=self._desks.held)

    async def desk(self, scope: Scope, session: bytes, version: int, *, rules: str | None = None) -> dict[str, Slot]:
        """The slots as of at least `version`: nothing is read when the cached version is that, else only the delta. `rules`:
        those of that version, from somebody who knows them."""
        if session == NIL or version == 0:
            return {}
        self._check_epoch()
        cached = self._desks.get((scope.tenant, session))
        if cached is not None and cached.version >= version:
            self._counters.hits += 1
            return cached.slots
        if cached is None:
            self._counters.misses += 1
        else:
            self._counters.deltas += 1
        return (await self._read(scope, session, version, rules=rules)).slots

    async def view(self, scope: Scope, session: bytes, version: int, *, agent: str) -> dict[str, Slot]:
        """What an agent sees of them. Rules are a version of their own, so that a cached desk has the right ones."""
        slots = await self.desk(scope, session, version)
        held = self._desks.get((scope.tenant, session), peek=True)
        if not slots or agent == "":
            return slots
        rules = held.access if held is not None else (await self._backend.session(scope, session)).access
        return {slot.name: slot for slot in access.seen(rules, agent, list(slots.values()))} if rules else slots

    async def fresh(self, scope: Scope, session: bytes, *, agent: str) -> dict[str, Slot]:
        """What an agent sees now, whatever is cached."""
        slots, head = await self._backend.slots(scope, session), await self._backend.session(scope, session)
        return {slot.name: slot for slot in access.seen(head.access, agent, slots)}

    async def current(self, scope: Scope, head: Session) -> list[Slot]:
        """The living slots by name, for somebody who has just read the desk's head."""
        return [slot for _, slot in sorted((await self.desk(scope, head.id, head.version, rules=head.access)).items())]

    def has(self, scope: Scope, session: bytes) -> bool:
        """Whether a desk is here, be it that it has to be topped up."""
        return self._desks.get((scope.tenant, session), peek=True) is not None

    async def ahead(self, scope: Scope, head: Session) -> None:
        """Fetch a desk before anybody asks for it."""
        self._check_epoch()
        cached = self._desks.get((scope.tenant, head.id), peek=True)
        if head.version and (cached is None or cached.version < head.version):
            self._counters.ahead += 1
            await self._read(scope, head.id, head.version, rules=head.access, ahead=True)

    async def _read(self, scope: Scope, session: bytes, version: int, *, rules: str | None = None, ahead: bool = False) -> Desk:
        """What changed since the cached version, and the rules: read anew when they are not known of what was found."""
        known = self._desks.get((scope.tenant, session), peek=True) or Desk(version=0, slots={})
        changed = await self._backend.slots(scope, session, known.version)
        newest = max([version, *(slot.version for slot in changed)])
        if rules is None or newest > version:
            rules = (await self._backend.session(scope, session)).access
        found = known.topped(changed, newest, rules)
        self._put(scope, session, found, ahead=ahead)
        return found

    def _put(self, scope: Scope, session: bytes, found: Desk, *, ahead: bool = False) -> None:
        """Two that read at once may end in either order: an older desk does not take the place of a newer one."""
        there = self._desks.get((scope.tenant, session), peek=True)
        if there is None or there.version <= found.version:
            self._desks.put((scope.tenant, session), found, found.size, ahead=ahead)

    def patched(self, scope: Scope, patched: Patched) -> None:
        """After a finish: the run's own patch joins the cached desk, if nobody else's came between."""
        self._check_epoch()
        cached = self._desks.get((scope.tenant, patched.session), peek=True)
        known = cached or Desk(version=0, slots={})
        if known.version == patched.version - 1:
            self._put(scope, patched.session, known.topped(patched.slots, patched.version, known.access))

    async def stretch(self, scope: Scope, run: Run, revision: int, own: Sequence[Draft] = ()) -> Stretch:
        """The newest items up to the run's input, oldest first, within the window's bounds. `own` is the run's input
        if the caller still has it: then a cached stretch that reaches up to it needs no read at all."""
        self._check_epoch()
        key = (scope.tenant, run.branch)
        cached, spared = self._stretches.get(key), run.in_hi - run.in_lo
        far = cached is None or run.in_hi - cached.tail > limits.WINDOW_ITEMS_MAX + spared
        if cached is None or far or cached.revision != revision or cached.tail > run.in_hi:
            cached = Stretch(tail=run.in_lo, revision=revision, items=[], calls=[], size=0)
            items = await self._backwards(scope, run.branch, tail=run.in_hi, limit=limits.WINDOW_ITEMS_MAX + spared)
            found = cached.joined(items, run.in_hi, spared=spared)
        else:
            found = cached.joined(await self._since(scope, cached.tail, run, own), run.in_hi, spared=spared)
        self._stretches.put(key, found, found.size)
        return found

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
