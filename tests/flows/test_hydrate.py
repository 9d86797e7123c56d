"""Hydration: any worker hydrates any desk, pays for what is new only, and never works on a version that is no more (D10)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stateroom import limits
from stateroom.clock import FrozenClock
from stateroom.flows import hydrate
from stateroom.flows.agent import Turn
from stateroom.ids import NIL
from stateroom.principal import LOCAL, Scope
from stateroom.session.access import Grant
from stateroom.session.changes import Changes
from stateroom.session.model import Session
from stateroom.stack import Stateroom
from tests.flows.conftest import Acts, Bench, ask

pytestmark = pytest.mark.anyio


async def opened(room: Stateroom, **slots: Any) -> bytes:
    return (await room.sessions.open(LOCAL, slots=slots)).id


async def hydrated(room: Stateroom, session: bytes) -> dict[str, bytes | None]:
    head = await room.sessions.get(LOCAL, session)
    return {slot.name: slot.body for slot in await room.hydrator.current(LOCAL, head)}


async def test_what_is_cached_is_never_older_than_the_head(bench: Bench) -> None:
    room, other = await bench.room(), await bench.room()
    session = await opened(room, n=0)
    for n in range(8):
        await (other if n % 2 else room).sessions.change(LOCAL, session, Changes().set("n", n).set(f"s{n}", n))
        if n > 3:
            await other.sessions.change(LOCAL, session, Changes().remove(f"s{n - 4}"))
        for reader in (room, other):
            assert await hydrated(reader, session) == {slot.name: slot.body for slot in await room.backend.slots(LOCAL, session)}
    counted = room.hydrator.counters
    assert (counted.misses, counted.deltas) == (1, 7)
    await hydrated(room, session)
    assert room.hydrator.counters.hits == counted.hits + 1


async def test_who_has_read_the_head_has_its_rules(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are read again only when what was found is newer."""
    room, heads = await bench.room(), list[bytes]()
    session = await opened(room, n=0)
    await room.sessions.grant(LOCAL, session, "scout", rules=Grant(read=("n",)))
    head, read = await room.sessions.get(LOCAL, session), room.backend.session

    async def counted(scope: Scope, id: bytes) -> Session:
        heads.append(id)
        return await read(scope, id)

    monkeypatch.setattr(room.backend, "session", counted)
    await room.hydrator.current(LOCAL, head)
    assert heads == []
    assert await room.hydrator.view(LOCAL, session, head.version, agent="other") == {}
    await room.sessions.change(LOCAL, session, Changes().set("m", 1))
    await room.sessions.grant(LOCAL, session, "scout", rules=Grant(read=("m",)))
    assert [slot.name for slot in await room.hydrator.current(LOCAL, head)] == ["n"], "what is cached is of that head"
    room.hydrator._desks.clear()
    assert [slot.name for slot in await room.hydrator.current(LOCAL, head)] == ["m", "n"]
    assert heads == [session]
    seen = await room.hydrator.view(LOCAL, session, head.version + 2, agent="scout")
    assert [*seen] == ["m"]


async def test_a_worker_works_on_what_another_one_wrote_last(bench: Bench) -> None:
    """Turns of one conversation, by two workers in turn, with somebody patching in between."""
    seen = list[Any]()

    def counting(name: str) -> Acts:
        async def work(turn: Turn) -> Any:
            seen.append((name, turn.slots.get("n", 0), turn.slots.get("mark")))
            turn.set("n", turn.slots.get("n", 0) + 1)
            return
            yield

        return Acts(work)

    rooms = [await bench.room(counting("a")), await bench.room(counting("b"))]
    first = await ask(rooms[0], "hi")
    for n in range(1, 6):
        await rooms[n % 2].sessions.change(LOCAL, first.run.session, Changes().set("mark", n))
        answer = await ask(rooms[n % 2], "hi", conversation=first.run.conversation)
        assert answer.run.error == b""
    assert [entry[1:] for entry in seen] == [(0, None), *((n, n) for n in range(1, 6))]


async def test_a_desk_that_is_fetched_ahead_is_counted_as_hit_or_waste(bench: Bench) -> None:
    room = await bench.room()
    wanted, unwanted = await opened(room, a=1), await opened(room, a=1)
    for session in (wanted, unwanted):
        task = room.prefetch.hint(LOCAL, session)
        assert task is not None
        await task
    assert await hydrated(room, wanted) == {"a": b"1"}
    await hydrated(room, wanted)
    room.hydrator._desks.clear()
    counted = room.hydrator.counters
    assert (counted.ahead, counted.ahead_hits, counted.ahead_waste, counted.hits, counted.misses) == (2, 1, 1, 2, 0)
    assert room.prefetch.hint(LOCAL, NIL) is None
    missing = room.prefetch.hint(LOCAL, b"\x01" * 16)
    assert missing is not None
    await missing  # a wrong guess harms nobody


async def test_after_a_run_its_desk_is_there_again(bench: Bench) -> None:
    async def forgetting(turn: Turn) -> Any:
        room.hydrator._desks.clear()
        turn.set("a", 1)
        return
        yield

    room = await bench.room(Acts(forgetting))
    first = await ask(room, "hi")
    await ask(room, "hi", conversation=first.run.conversation)
    async with asyncio.timeout(5):
        while not room.hydrator.has(LOCAL, first.run.session):
            await asyncio.sleep(0.01)


def test_the_cache_is_bounded_in_bytes_and_in_time() -> None:
    clock, counters = FrozenClock(), hydrate.Counters()
    cache: hydrate.Lru[int] = hydrate.Lru(1000, clock, counters)
    for n in range(20):
        cache.put(("t", bytes([n])), n, 100)
        cache.get(("t", b"\x00"))
        assert cache.held <= 1000
    assert cache.get(("t", b"\x00")) == 0  # used again and again
    assert cache.get(("t", b"\x05")) is None
    cache.put(("t", b"large"), 1, 1001)
    assert cache.get(("t", b"large")) is None
    assert cache.held <= 1000
    cache.put(("t", b"a"), 1, 100, ahead=True)
    clock.advance(limits.HYDRATED_MS)
    assert cache.get(("t", b"a")) is None
    assert counters.ahead_waste == 1


async def test_an_older_read_does_not_take_the_place_of_a_newer_one(bench: Bench) -> None:
    room = await bench.room()
    session = await opened(room, a=1)
    old = hydrate.Desk(version=1, slots={})
    await room.sessions.change(LOCAL, session, Changes().set("a", 2))
    await hydrated(room, session)
    room.hydrator._put(LOCAL, session, old)
    assert await hydrated(room, session) == {"a": b"2"}
