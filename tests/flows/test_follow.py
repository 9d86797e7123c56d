"""Streams: whoever comes back at any cut, on any worker, ends with exactly events 1..n (P3, P4, P5, P6)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from stateroom.connection.model import Cursor
from stateroom.errors import CursorInvalid, Gone, StateroomError
from stateroom.flows.agent import AgentEvent, Delta, Done, Output, Start, Turn
from stateroom.principal import LOCAL
from stateroom.stack import Stateroom
from tests.flows.conftest import Bench, ask, die, take

pytestmark = pytest.mark.anyio
STREAM = b'{"stream":true}'


async def talkative(turn: Turn) -> AsyncIterator[AgentEvent]:
    yield Start({"type": "function_call", "call_id": "c1", "name": "look"})
    yield Delta('{"at":')
    yield Delta('"shoes"}')
    yield Done()
    yield Output({"type": "function_call_output", "call_id": "c1", "output": "two pairs"})
    for word in ["here", "are", "two", "pairs", "of", "shoes"]:
        yield Delta(word + " ")
        await asyncio.sleep(0.035)


Seen = list[tuple[Cursor, dict[str, Any]]]


async def events(room: Stateroom, run: bytes, start: Cursor, *, stop_at: int | None = None) -> Seen:
    found = []
    async for event in room.followers.events(LOCAL, run, start, poll_s=0.05):
        if event is not None:
            found.append(event)
            if event[0].seq == stop_at:
                break
    return found


@pytest.mark.parametrize("options", [STREAM, b"{}"], ids=["streamed", "not streamed"])
async def test_P4_a_reader_cut_anywhere_and_back_on_another_worker_gets_the_rest(bench: Bench, options: bytes) -> None:
    room = await bench.room(talkative)
    other = await bench.room(talkative)
    ticket = await take(room, "shoes", options=options)
    whole = await events(room, ticket.run.id, room.followers.cursor(ticket.run, None))
    assert [cursor.seq for cursor, _ in whole] == list(range(1, len(whole) + 1))
    assert [event["sequence_number"] for _, event in whole] == list(range(len(whole)))
    for cut, (cursor, _) in enumerate(whole, 1):
        back = other.followers.cursor(ticket.run, str(cursor))
        assert await events(other, ticket.run.id, back) == whole[cut:]


async def test_P4_readers_cut_while_the_run_goes_on_miss_nothing(bench: Bench) -> None:
    room = await bench.room(talkative)
    ticket = await take(room, "shoes", options=STREAM)
    run = ticket.run.id

    async def cut_every(n: int) -> list[dict[str, Any]]:
        cursor, found = room.followers.cursor(ticket.run, None), list[dict[str, Any]]()
        while True:
            part = await events(room, run, cursor, stop_at=cursor.seq + n)
            found += [event for _, event in part]
            if len(part) < n:
                return found
            cursor = part[-1][0]

    readers = await asyncio.gather(*(cut_every(n) for n in (1, 2, 3, 7, 1000)))
    assert all(found == readers[0] for found in readers)
    assert readers[0][-1]["type"] == "response.completed"


async def test_P3_nobody_sees_an_event_before_it_is_durable(bench: Bench) -> None:
    """The store loses every log batch; a live reader must not have seen any of its deltas."""
    refuse = asyncio.Event()

    async def doomed(turn: Turn) -> AsyncIterator[AgentEvent]:
        refuse.set()
        for n in range(20):
            yield Delta(f"word {n} ")
            await asyncio.sleep(0.01)

    room = await bench.room(doomed)
    commit = room.backend.commit

    async def losing(batch):  # type: ignore[no-untyped-def]
        if refuse.is_set() and type(batch.writes[0]).__name__ == "Log":
            raise StateroomError("lost")
        return await commit(batch)

    room.backend.commit = losing  # type: ignore[method-assign]
    ticket = await take(room, "hello", options=STREAM)
    seen = [event["type"] for _, event in await events(room, ticket.run.id, room.followers.cursor(ticket.run, None))]
    assert "response.output_text.delta" not in seen
    assert seen[-1] == "response.failed"


async def test_P5_a_stream_without_its_end_has_not_ended(bench: Bench) -> None:
    async def unfinished(turn: Turn) -> AsyncIterator[AgentEvent]:
        yield Delta("half")
        await asyncio.sleep(3600)

    room = await bench.room(unfinished)
    ticket = await take(room, "hello", options=STREAM)
    stream = room.followers.events(LOCAL, ticket.run.id, room.followers.cursor(ticket.run, None), poll_s=0.5)
    seen = []
    async for event in stream:
        if event is None:
            break
        seen.append(event[1]["type"])
    assert seen[-1] == "response.output_text.delta"
    assert not any(kind in ("response.completed", "response.failed") for kind in seen)
    await room.cancels.cancel(LOCAL, ticket.run.id)


async def test_P6_a_cursor_of_another_run_or_of_nonsense_is_refused(bench: Bench) -> None:
    room = await bench.room()
    one, two = await ask(room, "one"), await ask(room, "two")
    foreign = str(room.followers.at(one.run, 2))
    with pytest.raises(Gone) as gone:
        room.followers.cursor(two.run, foreign)
    assert gone.value.reason == "cursor_gone"
    for nonsense in (
        "",
        "x",
        "12345678.",
        "12345678.-1",
        "12345678.1e9",
        "1.1",
        "12345678.9999999999999999",
        "１２３４５６７８.1",
    ):
        if nonsense:
            with pytest.raises((CursorInvalid, Gone)):
                room.followers.cursor(one.run, nonsense)
    with pytest.raises(CursorInvalid) as ahead:
        await events(room, one.run.id, room.followers.at(one.run, 10_000))
    assert ahead.value.reason == "cursor_ahead"


async def test_a_takeover_says_that_what_was_open_begins_again(bench: Bench) -> None:
    from stateroom import limits
    from stateroom.clock import FrozenClock

    clock = bench.clock = FrozenClock()

    async def dies(turn: Turn) -> AsyncIterator[AgentEvent]:
        yield Delta("half an ans")
        await asyncio.sleep(3600)

    dead = await bench.room(dies)
    run = (await take(dead, "hello", options=STREAM)).run
    await asyncio.sleep(0.1)
    await die(dead)
    clock.advance(limits.LEASE_MS + 1)
    room = await bench.room(talkative)
    await room.recovery.sweep()
    await room.turns.outcome(LOCAL, run.id, timeout_s=10)
    seen = [event for _, event in await events(room, run.id, room.followers.cursor(run, None))]
    assert [event["sequence_number"] for event in seen] == list(range(len(seen)))
    kinds = [event["type"] for event in seen]
    reset = kinds.index("response.in_progress", 2)
    assert "response.output_text.delta" in kinds[:reset]
    assert seen[reset]["response"]["output"] == []
    text = "".join(event["delta"] for event in seen[reset:] if event["type"] == "response.output_text.delta")
    assert text == "here are two pairs of shoes "
