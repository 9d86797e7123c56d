"""A second turn while one is active: six policies, decided in one place, and the record is always sound."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from stateroom.clock import FrozenClock
from stateroom.errors import Busy
from stateroom.flows.agent import AgentEvent, Delta, Done, Start, Turn
from stateroom.principal import LOCAL
from stateroom.wire import json
from tests.flows.conftest import Acts, Bench, ask, heard, record, take

pytestmark = pytest.mark.anyio


class Slow:
    """Answers "first" only when it is told to go on; every other text at once."""

    def __init__(self) -> None:
        self.go_on, self.begun = asyncio.Event(), asyncio.Event()
        self.agent = Acts(self.work)

    async def work(self, turn: Turn) -> AsyncIterator[AgentEvent]:
        yield Delta(f"re {turn.text}")
        if turn.text == "first":
            self.begun.set()
            await self.go_on.wait()
            if turn.steps is not None:
                await turn.step("look", lambda: 1, effect="idempotent")
            for item in turn.news:
                yield Delta(f" and {item['content']}")


async def begun(bench: Bench):  # type: ignore[no-untyped-def]
    slow = Slow()
    room = await bench.room(slow.agent)
    conversation = (await room.conversations.create(LOCAL)).id
    first = await take(room, "first", conversation=conversation)
    await asyncio.wait_for(slow.begun.wait(), 5)
    return slow, room, conversation, first.run.id


async def test_reject_says_who_is_active(bench: Bench) -> None:
    _, room, conversation, first = await begun(bench)
    with pytest.raises(Busy) as busy:
        await take(room, "second", conversation=conversation, policy="reject")
    assert (busy.value.reason, busy.value.facts["run"]) == ("conversation_busy", first)


async def test_enqueue_waits_its_turn(bench: Bench) -> None:
    slow, room, conversation, _ = await begun(bench)
    second = await take(room, "second", conversation=conversation)
    slow.go_on.set()
    await room.turns.outcome(LOCAL, second.run.id, timeout_s=10)
    assert await record(room, conversation) == ["first", "re first", "second", "re second"]


async def test_merge_joins_the_active_turn_at_its_next_step(bench: Bench) -> None:
    slow, room, conversation, first = await begun(bench)
    second = await take(room, "second", conversation=conversation, policy="merge")
    slow.go_on.set()
    answer = await room.turns.outcome(LOCAL, second.run.id, timeout_s=10)
    assert answer.run.id == first, "one answer for both"
    assert await record(room, conversation) == ["first", "second", "re first and second"]
    merged = await room.runs.get(LOCAL, second.run.id)
    assert (merged.status, merged.merged_into) == ("completed", first)


async def test_merge_too_late_is_a_turn_of_its_own(bench: Bench) -> None:
    async def stepless(turn: Turn) -> AsyncIterator[AgentEvent]:
        if turn.text == "first":
            began.set()
            await go_on.wait()
        yield Delta(f"re {turn.text}")

    go_on, began = asyncio.Event(), asyncio.Event()
    room = await bench.room(stepless)
    conversation = (await room.conversations.create(LOCAL)).id
    await take(room, "first", conversation=conversation)
    await began.wait()
    second = await take(room, "second", conversation=conversation, policy="merge")
    go_on.set()
    assert (await room.turns.outcome(LOCAL, second.run.id, timeout_s=10)).run.id == second.run.id
    assert await record(room, conversation) == ["first", "re first", "second", "re second"]


async def test_latest_replaces_those_that_wait(bench: Bench) -> None:
    slow, room, conversation, _ = await begun(bench)
    second = await take(room, "second", conversation=conversation)
    third = await take(room, "third", conversation=conversation, policy="latest")
    dropped = await room.runs.get(LOCAL, second.run.id)
    assert (dropped.status, json.decode(dropped.error)["code"]) == ("cancelled", "superseded")
    slow.go_on.set()
    await room.turns.outcome(LOCAL, third.run.id, timeout_s=10)
    assert await record(room, conversation) == ["first", "second [not_run]", "re first", "third", "re third"]


async def test_interrupt_keeps_what_was_said_and_goes_first(bench: Bench) -> None:
    slow, room, conversation, first = await begun(bench)
    waiting = await take(room, "waiting", conversation=conversation)
    second = await take(room, "second", conversation=conversation, policy="interrupt")
    await room.turns.outcome(LOCAL, second.run.id, timeout_s=10)
    assert (await room.runs.get(LOCAL, first)).status == "cancelled"
    await room.turns.outcome(LOCAL, waiting.run.id, timeout_s=10)
    assert await record(room, conversation) == ["first", "re first", "second", "re second", "waiting", "re waiting"]
    assert heard(slow.agent.turns[1]) == ["first", "re first", "second"], "both messages, and what had been said"


async def test_P17_an_interrupted_call_is_closed_in_the_record(bench: Bench) -> None:
    begun = asyncio.Event()

    async def calling(turn: Turn) -> AsyncIterator[AgentEvent]:
        if turn.text == "first":
            yield Start({"type": "function_call", "call_id": "c1", "name": "look"})
            yield Delta("{}")
            yield Done()
            begun.set()
            await asyncio.sleep(3600)
        yield Delta("fine")

    agent = Acts(calling)
    room = await bench.room(agent)
    conversation = (await room.conversations.create(LOCAL)).id
    await take(room, "first", conversation=conversation)
    await asyncio.wait_for(begun.wait(), 5)
    await ask(room, "second", conversation=conversation, policy="interrupt")
    kinds = [item.get("type") for item in agent.turns[-1].window]
    assert kinds == ["message", "function_call", "function_call_output", "message"]


async def test_parallel_answers_beside_on_a_fork(bench: Bench) -> None:
    slow, room, conversation, first = await begun(bench)
    second = await take(room, "second", conversation=conversation, policy="parallel")
    answer = await room.turns.outcome(LOCAL, second.run.id, timeout_s=10)
    assert answer.run.branch != conversation
    assert await record(room, answer.run.branch) == ["second", "re second"]
    slow.go_on.set()
    await room.turns.outcome(LOCAL, first, timeout_s=10)
    assert await record(room, conversation) == ["first", "re first"]


async def test_a_turn_past_its_deadline_ends_as_expired(bench: Bench) -> None:
    clock = bench.clock = FrozenClock()
    slow = Slow()
    room = await bench.room(slow.agent)
    ticket = await take(room, "first", deadline_ms=5_000)
    await asyncio.wait_for(slow.begun.wait(), 5)
    clock.advance(4_000)
    await room.recovery.sweep()
    assert (await room.runs.get(LOCAL, ticket.run.id)).status == "in_progress"
    clock.advance(1_001)
    await room.recovery.sweep()
    assert (await room.runs.get(LOCAL, ticket.run.id)).status == "expired"
    assert await record(room, ticket.run.branch) == ["first [failed]"]


async def test_P6_a_compacted_log_has_its_outputs_and_refuses_old_cursors(bench: Bench) -> None:
    from stateroom import limits
    from stateroom.errors import Gone

    clock = bench.clock = FrozenClock()
    slow = Slow()
    room = await bench.room(slow.agent)
    answer = await ask(room, "hello", options=b'{"stream":true}')
    old = str(room.followers.at(answer.run, 3))
    before = [event async for event in room.followers.events(LOCAL, answer.run.id, room.followers.at(answer.run, 0))]
    clock.advance(limits.LOG_MS + 1)
    await room.recovery.sweep()
    run = await room.runs.get(LOCAL, answer.run.id)
    assert run.epoch == 1
    with pytest.raises(Gone):
        room.followers.cursor(run, old)
    with pytest.raises(Gone):
        room.followers.at(run, 3)
    after = [event async for event in room.followers.events(LOCAL, run.id, room.followers.at(run, 0))]
    assert [event[1]["sequence_number"] for event in after if event] == list(range(run.head))
    assert after[-1] is not None
    assert before[-1] is not None
    assert after[-1][1]["response"] == before[-1][1]["response"]
