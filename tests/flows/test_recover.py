"""Cancel and recovery: every run ends or waits, whoever dies, and a dead worker's late words are refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from stateroom import ids, limits
from stateroom.batch import Batch, Receipt
from stateroom.clock import FrozenClock
from stateroom.conversation.model import CreateConversation
from stateroom.errors import StaleFence, Unavailable
from stateroom.flows import doubt
from stateroom.flows.agent import AgentEvent, Delta, Turn
from stateroom.principal import LOCAL
from stateroom.run.model import AcceptTurn, Finish, Log, NewRow, Requeue
from stateroom.wire import json
from tests.flows.conftest import Acts, Bench, ask, die, echo, record, take

pytestmark = pytest.mark.anyio


async def stuck(turn: Turn) -> AsyncIterator[AgentEvent]:
    await asyncio.sleep(3600)
    yield Delta("never")


async def test_P12_a_running_turn_is_cancelled_and_the_next_one_is_fine(bench: Bench) -> None:
    room = await bench.room(lambda turn: stuck(turn) if turn.text == "hang" else echo(turn))
    ticket = await take(room, "hang")
    run = await room.cancels.cancel(LOCAL, ticket.run.id)
    assert (run.status, json.decode(run.error)["code"]) == ("cancelled", "cancelled")
    assert (await room.cancels.cancel(LOCAL, ticket.run.id)).status == "cancelled", "asking twice is asking once"
    assert (await ask(room, "next", conversation=ticket.run.conversation)).run.status == "completed"
    assert await record(room, ticket.run.branch) == ["hang [failed]", "next", "you said next"]


async def test_P9_P14_a_turn_that_landed_although_its_caller_was_turned_away_does_not_wait_for_its_lease(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doubt, "LOOKS_S", (0.01, 0.1, 1.0))
    room = await bench.room(echo)
    commit, lost = room.backend.commit, [True]

    async def answer_lost(batch: Batch) -> tuple[Receipt, ...]:
        receipts = await commit(batch)
        if lost and isinstance(batch.writes[0], AcceptTurn | CreateConversation):
            lost.clear()
            raise Unavailable("The database does not answer.", code="store_away")
        return receipts

    room.backend.commit = answer_lost  # type: ignore[method-assign]
    with pytest.raises(Unavailable):
        await take(room, "hello", key="k")
    ticket = await take(room, "hello", key="k")
    assert ticket.replayed
    answer = await room.turns.outcome(LOCAL, ticket.run.id, timeout_s=5)
    assert (answer.run.status, answer.run.attempt) == ("completed", 1)


async def test_P12_a_worker_that_does_not_listen_is_ended_over_its_head(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CANCEL_GRACE_MS", 50)
    let_go = asyncio.Event()

    async def deaf(turn: Turn) -> AsyncIterator[AgentEvent]:
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                pass
        yield Delta("too late")

    room = await bench.room(deaf)
    ticket = await take(room, "hang")
    assert (await room.cancels.cancel(LOCAL, ticket.run.id)).status == "cancelled"
    let_go.set()
    await room.turns.workshop.close(1)
    assert (await room.runs.get(LOCAL, ticket.run.id)).status == "cancelled"
    assert await record(room, ticket.run.branch) == ["hang [failed]"]


async def test_P12_a_waiting_turn_is_cancelled_at_once_and_its_input_is_kept(bench: Bench) -> None:
    room = await bench.room(stuck)
    first = await take(room, "one")
    waiting = await take(room, "two", conversation=first.run.conversation)
    assert (await room.cancels.cancel(LOCAL, waiting.run.id)).status == "cancelled"
    assert await record(room, first.run.branch) == ["one", "two [not_run]"]


async def lost(bench: Bench, text: str = "hello"):  # type: ignore[no-untyped-def]
    """A run whose worker is gone: its room was closed in the middle, its lease has ended."""
    clock = bench.clock = FrozenClock()
    dead = await bench.room(stuck)
    ticket = await take(dead, text)
    await asyncio.sleep(0.05)
    await die(dead)
    clock.advance(limits.LEASE_MS + 1)
    return ticket.run


async def test_P9_a_dead_workers_run_is_taken_up_and_answered(bench: Bench) -> None:
    run = await lost(bench)
    agent = Acts(echo)
    room = await bench.room(agent)
    assert await room.recovery.sweep() == 1
    answer = await room.turns.outcome(LOCAL, run.id, timeout_s=10)
    assert (answer.run.status, answer.run.attempt, agent.turns[0].attempt) == ("completed", 2, 2)
    assert await record(room, run.branch) == ["hello", "you said hello"]


async def test_P9_a_living_lease_is_left_alone(bench: Bench) -> None:
    bench.clock = FrozenClock()
    alive = await bench.room(stuck)
    ticket = await take(alive, "hello")
    other = await bench.room()
    assert await other.recovery.sweep() == 0
    assert (await other.runs.get(LOCAL, ticket.run.id)).fence == ticket.run.fence


async def test_P9_after_three_attempts_a_run_is_given_up(bench: Bench) -> None:
    run = await lost(bench)
    for _ in range(limits.ATTEMPTS_MAX - 1):
        room = await bench.room(stuck)
        await room.recovery.sweep()
        await asyncio.sleep(0.05)
        await die(room)
        bench.clock.advance(limits.LEASE_MS + 1)  # type: ignore[union-attr]
    room = await bench.room()
    await room.recovery.sweep()
    ended = await room.runs.get(LOCAL, run.id)
    assert (ended.status, json.decode(ended.error)["code"]) == ("failed", "run_lost")


async def test_P8_the_old_workers_late_words_are_refused(bench: Bench) -> None:
    run = await lost(bench)
    room = await bench.room()
    await room.recovery.sweep()
    await room.turns.outcome(LOCAL, run.id, timeout_s=10)
    before = await record(room, run.branch)
    log = await room.runs.log(LOCAL, run.id)
    for late in (
        Log(run=run.id, fence=run.fence, rows=(NewRow("delta", 1, b"late"),)),
        Finish(run=run.id, fence=run.fence, status="completed", rows=(NewRow("end", 1),)),
    ):
        now = room.backend.clock.wall_ms()
        with pytest.raises(StaleFence):
            await room.backend.commit(Batch(id=ids.new(ids.home(run.id), now), scope=LOCAL, at=now, writes=(late,)))
    assert await record(room, run.branch) == before
    assert await room.runs.log(LOCAL, run.id) == log


async def test_P13_a_wall_that_jumps_neither_steals_nor_revives_a_lease(bench: Bench) -> None:
    clock = bench.clock = FrozenClock()
    alive = await bench.room(stuck)
    ticket = await take(alive, "hello")
    other = await bench.room()
    for jump in (86_400_000, -2 * 86_400_000):
        clock.wall += jump
        assert await other.recovery.sweep() == 0, "the wall jumped, no time has passed"
    clock.boot += limits.LEASE_MS + 1
    clock.wall -= 86_400_000
    assert await other.recovery.sweep() == 1, "time has passed, whatever the wall says"
    assert (await other.turns.outcome(LOCAL, ticket.run.id, timeout_s=10)).run.attempt == 2


async def test_P9_a_planned_stop_costs_no_attempt(bench: Bench) -> None:
    stopping = await bench.room(stuck)
    run = (await take(stopping, "hello")).run
    for _ in range(limits.ATTEMPTS_MAX + 1):
        await stopping.turns.workshop.close(0)
        stopping = await bench.room(stuck)
        await stopping.recovery.sweep()
        await asyncio.sleep(0.01)
    await stopping.turns.workshop.close(0)
    room = await bench.room()
    await room.recovery.sweep()
    answer = await room.turns.outcome(LOCAL, run.id, timeout_s=10)
    assert (answer.run.status, answer.run.attempt) == ("completed", 1)


async def test_P9_a_turn_whose_agent_nobody_has_ends_and_frees_its_conversation(bench: Bench) -> None:
    run = await lost(bench)
    other = await bench.room(Acts(echo, "another"))
    await other.recovery.sweep()
    assert (await other.runs.get(LOCAL, run.id)).status == "queued", "somebody who has it may come"
    waiting = await take(other, "next", conversation=run.conversation)
    bench.clock.advance(limits.AGENT_WAIT_MS + 1)  # type: ignore[union-attr]
    await other.recovery.sweep()
    ended = await other.runs.get(LOCAL, run.id)
    assert (ended.status, json.decode(ended.error)["code"]) == ("failed", "agent_unknown")
    bench.clock.advance(limits.QUEUE_LOOK_MS)  # type: ignore[union-attr]
    await other.recovery.sweep()
    assert (await other.turns.outcome(LOCAL, waiting.run.id, timeout_s=10)).run.status == "completed"


async def test_P8_P15_an_agent_whose_run_was_taken_over_is_stopped(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the next heartbeat: what it does from then on would be for nothing."""
    monkeypatch.setattr(limits, "HEARTBEAT_MS", 30)
    stopped = asyncio.Event()

    async def long(turn: Turn) -> AsyncIterator[AgentEvent]:
        try:
            await asyncio.sleep(3600 if turn.attempt == 1 else 0)
        except asyncio.CancelledError:
            stopped.set()
            raise
        yield Delta("done")

    room = await bench.room(long)
    run = (await take(room, "hello")).run
    write = Requeue(run=run.id, fence=run.fence, owner_gone=True, planned=False, rows=())
    await room.backend.commit(Batch(id=ids.new(ids.home(run.id), 1), scope=LOCAL, at=1, writes=(write,)))
    async with asyncio.timeout(5):
        await stopped.wait()
        while not await room.recovery.claim(LOCAL, await room.runs.get(LOCAL, run.id)):
            pass
    answer = await room.turns.outcome(LOCAL, run.id, timeout_s=10)
    assert (answer.run.status, answer.run.attempt) == ("completed", 2)
