"""P21: the session's version is a linearizable register, and a slot's version has one winner, with sixteen writers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

from stateroom.batch import Record
from stateroom.conformance.kit import Actor, put
from stateroom.conformance.suite import Suite
from stateroom.errors import Conflict

WRITERS, ROUNDS = 16, 5


class Seen(Record, frozen=True):
    """One operation: when it was called and when it answered (ticks that all writers share), the version that it made or
    saw, and what it wrote or read. `expected` is what a write expected the slot to be at."""

    called: int
    answered: int
    version: int
    value: Any
    wrote: bool
    expected: int = 0


class Writer:
    """Reads, and compares and sets, as fast as it can."""

    def __init__(self, actor: Actor, session: bytes, ticks: Iterator[int], *, name: str) -> None:
        self.actor, self.session, self.ticks, self.name = actor, session, ticks, name
        self.record: list[Seen] = []

    async def works(self) -> list[Seen]:
        for n in range(ROUNDS):
            version = await self.reads()
            await asyncio.sleep(0.002)  # let the others in between
            await self.writes(f"{self.name}-{n}", version)
        return self.record

    async def reads(self) -> int:
        called = next(self.ticks)
        slots = await self.actor.store.slots(self.actor.scope, self.session)
        version, value = (slots[0].version, slots[0].body) if slots else (0, None)
        self.record.append(Seen(called=called, answered=next(self.ticks), version=version, value=value, wrote=False))
        return version

    async def writes(self, value: str, expected: int) -> None:
        patch, called = put("it", value, expected=expected), next(self.ticks)
        try:
            version = await self.actor.patches(self.session, patch)
        except Conflict as lost:
            seen = lost.facts["slots"]["it"]
            self.record.append(Seen(called=called, answered=next(self.ticks), version=seen, value=None, wrote=False))
            return
        answered, body = next(self.ticks), patch.body
        self.record.append(Seen(called=called, answered=answered, version=version, value=body, wrote=True, expected=expected))


def faults(operations: list[Seen]) -> list[str]:
    """Why these operations are not those of one register. Its order is the versions that it gave: what is left to check is
    that nobody was answered against the order of time."""
    found, writes = list[str](), {operation.version: operation for operation in operations if operation.wrote}
    if len(writes) < sum(operation.wrote for operation in operations):
        found.append("a version was given twice")
    if sorted(writes) != list(range(1, len(writes) + 1)):
        found.append("a version was left out")
    for operation in operations:
        made = writes.get(operation.version)
        if operation.value is not None and (made is None or made.value != operation.value):
            found.append(f"version {operation.version} was seen with what nobody wrote at it")
        if operation.wrote and operation.expected != operation.version - 1:
            found.append(f"version {operation.version} was won with a stale expectation")
        if made is not None and made.called > operation.answered:
            found.append(f"version {operation.version} was seen before it was asked for")
        before = [write.version for write in writes.values() if write.answered < operation.called]
        if operation.version < max(before, default=0) + operation.wrote:
            found.append(f"version {operation.version} was seen after a later one was told")
    return found


class RegisterPromises(Suite):
    async def test_S1_P21_sixteen_writers_see_one_register(self, alice: Actor, place: Path) -> None:
        session, ticks, names = await alice.opens_session(), count(), count()
        told = await self.in_threads(
            place, lambda actor: Writer(actor, session, ticks, name=f"w{next(names)}").works(), count=WRITERS
        )
        operations = [operation for record in told for operation in record]
        assert faults(operations) == []
        won = [operation.version for operation in operations if operation.wrote]
        assert (await alice.store.session(alice.scope, session)).version == len(won) >= ROUNDS
        past = await alice.store.past(alice.scope, session, "it", 1000)
        assert len({slot.version for slot in past}) == len(won) - 1

    def test_S1_P21_the_checker_sees_what_is_no_register(self) -> None:
        first = Seen(called=0, answered=1, version=1, value=b"a", wrote=True)
        second = Seen(called=2, answered=3, version=2, value=b"b", wrote=True, expected=1)
        assert faults([first, second]) == []
        twice = Seen(called=2, answered=3, version=1, value=b"b", wrote=True)
        stale = Seen(called=2, answered=3, version=2, value=b"b", wrote=True, expected=0)
        late = Seen(called=4, answered=5, version=1, value=b"a", wrote=False)
        strange = Seen(called=4, answered=5, version=2, value=b"c", wrote=False)
        early = Seen(called=-2, answered=-1, version=1, value=b"a", wrote=False)
        for bad in ([first, twice], [second], [first, stale], [first, second, late], [first, second, strange], [early, first]):
            assert faults(bad) != []
