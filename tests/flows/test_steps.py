"""Steps and questions: each class keeps its promise at every crash window, answers are bound, waiting holds no compute."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from stateroom import limits
from stateroom.clock import FrozenClock
from stateroom.errors import Conflict, Gone
from stateroom.flows.agent import AgentEvent, Delta, Turn
from stateroom.flows.steps import Doing
from stateroom.principal import LOCAL, Scope, operator
from stateroom.stack import Stateroom
from stateroom.wire import json
from tests.flows.conftest import Acts, Bench, ask, die, record, take

pytestmark = pytest.mark.anyio


class World:
    """What is outside: counts effects by the key they came with, and dies on demand."""

    def __init__(self) -> None:
        self.effects: Counter[str] = Counter()
        self.calls = 0
        self.die_after_effect = False
        self.stuck = asyncio.Event()

    async def act(self, doing: Doing) -> dict[str, Any]:
        self.calls += 1
        self.effects[doing.key] += 1
        if self.die_after_effect:
            self.stuck.set()
            await asyncio.sleep(3600)  # the worker is closed here: the effect happened, the result is not recorded
        return {"charged": 42}


def charging(world: World, **given: Any) -> Acts:
    async def work(turn: Turn) -> AsyncIterator[AgentEvent]:
        result = await turn.step("charge", world.act, **given)
        yield Delta(f"charged {result['charged']}")

    return Acts(work)


async def crashed(bench: Bench, world: World, **given: Any) -> tuple[Stateroom, bytes]:
    """A run whose worker died right after the effect; the room of the next worker."""
    clock = bench.clock = FrozenClock()
    world.die_after_effect = True
    dead = await bench.room(charging(world, **given))
    run = (await take(dead, "buy")).run.id
    await asyncio.wait_for(world.stuck.wait(), 5)
    await die(dead)
    clock.advance(limits.LEASE_MS + 1)
    world.die_after_effect = False
    return await bench.room(charging(world, **given)), run


async def test_a_step_is_recorded_with_its_result(bench: Bench) -> None:
    world = World()
    room = await bench.room(charging(world, effect="idempotent", arguments={"sum": 42}))
    answer = await ask(room, "buy")
    (step,) = await room.backend.steps(LOCAL, answer.run.id)
    assert (step.key, step.effect, step.status, json.decode(step.body)) == ("charge#1", "idempotent", "done", {"charged": 42})
    assert world.calls == 1


@pytest.mark.parametrize("effect", ["pure", "idempotent"])
async def test_P15_a_pure_or_idempotent_step_is_done_again_with_the_same_key(bench: Bench, effect: str) -> None:
    world = World()
    room, run = await crashed(bench, world, effect=effect)
    await room.recovery.sweep()
    answer = await room.turns.outcome(LOCAL, run, timeout_s=10)
    assert answer.run.status == "completed"
    assert world.calls == 2
    assert len(world.effects) == 1, "both tries came with one key: the receiver can tell"


async def test_P15_a_once_step_is_never_done_again_by_itself(bench: Bench) -> None:
    world = World()
    room, run = await crashed(bench, world)
    await room.recovery.sweep()
    waiting = await until(room, run, "requires_action")
    (action,) = await room.answers.pending(LOCAL, run)
    assert (action.kind, json.decode(action.body)["step"], waiting.lease_owner) == ("reconcile", "charge#1", "")
    (step,) = await room.backend.steps(LOCAL, run)
    assert step.status == "unknown"
    await room.answers.resolve(LOCAL, run, action.id, resolution=b'{"outcome":"succeeded","result":{"charged":7}}')
    answer = await room.turns.outcome(LOCAL, run, timeout_s=10)
    assert json.decode(answer.outputs[0].body)["content"][0]["text"] == "charged 7"
    assert world.calls == 1


async def test_P15_a_once_step_that_did_not_happen_is_done_when_somebody_says_so(bench: Bench) -> None:
    world = World()
    room, run = await crashed(bench, world)
    await room.recovery.sweep()
    await until(room, run, "requires_action")
    (action,) = await room.answers.pending(LOCAL, run)
    await room.answers.resolve(LOCAL, run, action.id, resolution=b'{"outcome":"did_not_happen"}')
    assert (await room.turns.outcome(LOCAL, run, timeout_s=10)).run.status == "completed"
    assert world.calls == 2


async def test_P15_a_once_step_is_verified_when_the_outside_can_tell(bench: Bench) -> None:
    world = World()

    async def verify(doing: Doing) -> tuple[bool, Any]:
        return doing.key in world.effects, {"charged": 99}

    room, run = await crashed(bench, world, verify=verify)
    await room.recovery.sweep()
    answer = await room.turns.outcome(LOCAL, run, timeout_s=10)
    assert json.decode(answer.outputs[0].body)["content"][0]["text"] == "charged 99"
    assert world.calls == 1


async def test_P15_a_transactional_step_lands_with_its_result_or_not_at_all(bench: Bench) -> None:
    clock = bench.clock = FrozenClock()
    stuck = asyncio.Event()
    dying = True

    def transfer(doing: Doing) -> str:
        doing.set("balance", 58)
        return "moved"

    async def work(turn: Turn) -> AsyncIterator[AgentEvent]:
        await turn.step("transfer", transfer, effect="transactional")
        if dying:
            stuck.set()
            await asyncio.sleep(3600)
        yield Delta("ok")

    dead = await bench.room(work)
    run = (await take(dead, "move")).run
    await asyncio.wait_for(stuck.wait(), 5)
    assert await dead.sessions.state(LOCAL, run.session) == {"balance": 58}
    await die(dead)
    clock.advance(limits.LEASE_MS + 1)
    dying = False
    room = await bench.room(work)
    await room.recovery.sweep()
    await room.turns.outcome(LOCAL, run.id, timeout_s=10)
    (slot,) = await room.sessions.slots(LOCAL, run.session)
    assert (slot.body, slot.version) == (b"58", 1), "done once, found done by the second attempt"


async def test_a_failed_once_step_stays_failed(bench: Bench) -> None:
    def refuse(doing: Doing) -> None:
        raise ValueError("card declined")

    async def work(turn: Turn) -> AsyncIterator[AgentEvent]:
        try:
            await turn.step("charge", refuse)
        except ValueError:
            yield Delta("declined")

    room = await bench.room(work)
    answer = await ask(room, "buy")
    (step,) = await room.backend.steps(LOCAL, answer.run.id)
    assert (step.status, json.decode(step.body)["message"]) == ("failed", "ValueError: card declined")


async def test_a_retrieval_records_query_and_digests_and_no_text(bench: Bench) -> None:
    async def work(turn: Turn) -> AsyncIterator[AgentEvent]:
        found = await turn.retrieve("shell companies", lambda: [{"id": "d1", "text": "canary"}], rewritten="shells")
        yield Delta(found[0]["text"][:3])

    room = await bench.room(work)
    answer = await ask(room, "look")
    (step,) = await room.backend.steps(LOCAL, answer.run.id)
    told = json.decode(step.body)
    assert (told["query"], told["rewritten"], told["documents"][0]["id"]) == ("shell companies", "shells", "d1")
    assert len(told["documents"][0]["sha256"]) == 64
    assert b"canary" not in step.body


# ── questions ───────────────────────────────────────────────────────────────────────────────────────────────────────


def approving(spent: list[str]) -> Callable[[Turn], AsyncIterator[AgentEvent]]:
    async def work(turn: Turn) -> AsyncIterator[AgentEvent]:
        if await turn.approval("refund", {"sum": 100}, wait_s=60):
            await turn.step("refund", lambda: spent.append("refund") or "done", arguments={"sum": 100})
            yield Delta("refunded")
        else:
            yield Delta("not refunded")

    return work


async def paused(bench: Bench, work: Callable[[Turn], AsyncIterator[AgentEvent]]) -> tuple[Stateroom, bytes, Any]:
    room = await bench.room(work)
    run = (await take(room, "please")).run.id
    await until(room, run, "requires_action")
    (action,) = await room.answers.pending(LOCAL, run)
    return room, run, action


async def test_P16_an_approved_action_happens_once_and_a_denied_one_never(bench: Bench) -> None:
    spent: list[str] = []
    room, run, action = await paused(bench, approving(spent))
    assert room.turns.workshop.busy == 0, "nobody waits in a worker"
    await room.answers.resolve(LOCAL, run, action.id, resolution=b'{"approved":true}', digest=action.digest)
    answer = await room.turns.outcome(LOCAL, run, timeout_s=10)
    assert (spent, answer.run.status) == (["refund"], "completed")
    (used,) = await room.answers.all(LOCAL, run)
    assert used.status == "used"

    room, run, action = await paused(bench, approving(spent))
    await room.answers.resolve(LOCAL, run, action.id, resolution=b'{"approved":false}', digest=action.digest)
    assert (await room.turns.outcome(LOCAL, run, timeout_s=10)).run.status == "completed"
    assert spent == ["refund"]


async def test_P15_P16_a_run_that_asks_more_than_a_hundred_times_forgets_no_answer(bench: Bench) -> None:
    done: list[str] = []

    async def work(turn: Turn) -> AsyncIterator[AgentEvent]:
        for n in range(102):
            await turn.ask(f"question {n}", "?")
        await turn.step("charge", lambda: done.append("charge"))
        await turn.ask("the last one", "?")
        yield Delta("done")

    room = await bench.room(work)
    run = (await take(room, "please")).run.id
    for _ in range(103):
        await until(room, run, "requires_action")
        (action,) = await room.answers.pending(LOCAL, run)
        await room.answers.resolve(LOCAL, run, action.id, resolution=b'{"answer":"yes"}', digest=action.digest)
    assert (await room.turns.outcome(LOCAL, run, timeout_s=10)).run.status == "completed"
    assert done == ["charge"]


async def test_P16_an_approval_is_bound_to_its_arguments_and_its_giver(bench: Bench) -> None:
    room, run, action = await paused(bench, approving([]))
    with pytest.raises(Conflict) as other:
        await room.answers.resolve(LOCAL, run, action.id, resolution=b'{"approved":true}', digest=b"x" * 32)
    assert other.value.reason == "digest_mismatch"
    await room.answers.resolve(LOCAL, run, action.id, resolution=b'{"approved":true}', digest=action.digest)
    await room.turns.outcome(LOCAL, run, timeout_s=10)
    with pytest.raises(Conflict) as twice:
        eve = Scope("local", "eve", sees_all=True)
        await room.answers.resolve(eve, run, action.id, resolution=b'{"approved":true}', digest=action.digest)
    assert twice.value.reason == "action_resolved"


async def test_P16_arguments_that_changed_meanwhile_are_not_approved(bench: Bench) -> None:
    sums = iter([100, 100_000])

    async def work(turn: Turn) -> AsyncIterator[AgentEvent]:
        if await turn.approval("refund", {"sum": next(sums)}):
            yield Delta("refunded")

    room, run, action = await paused(bench, work)
    await room.answers.resolve(LOCAL, run, action.id, resolution=b'{"approved":true}', digest=action.digest)
    answer = await room.turns.outcome(LOCAL, run, timeout_s=10)
    assert (answer.run.status, json.decode(answer.run.error)["code"]) == ("failed", "step_changed")


async def test_P16_nobody_answers_in_time(bench: Bench) -> None:
    clock = bench.clock = FrozenClock()
    room, run, action = await paused(bench, approving([]))
    clock.advance(61_000)
    with pytest.raises(Gone):
        await room.answers.resolve(LOCAL, run, action.id, resolution=b'{"approved":true}', digest=action.digest)
    await room.recovery.sweep()
    answer = await room.turns.outcome(LOCAL, run, timeout_s=10)
    assert json.decode(answer.outputs[0].body)["content"][0]["text"] == "not refunded"


@pytest.mark.parametrize(("policy", "status"), [("expire", "expired"), ("fail", "failed")])
async def test_an_action_that_expires_may_end_the_run(bench: Bench, policy: str, status: str) -> None:
    clock = bench.clock = FrozenClock()

    async def work(turn: Turn) -> AsyncIterator[AgentEvent]:
        await turn.ask("size", "Which size?", wait_s=10, policy=policy)  # type: ignore[arg-type]
        yield Delta("never")

    room, run, _ = await paused(bench, work)
    clock.advance(11_000)
    await room.recovery.sweep()
    assert (await room.runs.get(LOCAL, run)).status == status


async def test_a_timer_survives_its_worker(bench: Bench) -> None:
    clock = bench.clock = FrozenClock()

    async def work(turn: Turn) -> AsyncIterator[AgentEvent]:
        await turn.sleep("tea", 240)
        yield Delta("tea is ready")

    dead = await bench.room(work)
    run = (await take(dead, "tea")).run.id
    await until(dead, run, "requires_action")
    await die(dead)
    room = await bench.room(work)
    assert await room.recovery.sweep() == 0
    clock.advance(240_001)
    await room.recovery.sweep()
    assert (await room.turns.outcome(LOCAL, run, timeout_s=10)).run.status == "completed"


async def test_every_kind_of_question_is_answered_by_what_was_said(bench: Bench) -> None:
    async def work(turn: Turn) -> AsyncIterator[AgentEvent]:
        size = await turn.ask("size", "Which size?")
        place = await turn.client_tool("where", {"precise": True})
        nurse = await turn.handoff("nurses", {"risk": "high"})
        yield Delta(f"{size} {place} {nurse['who']}")

    room = await bench.room(work)
    run = (await take(room, "hello")).run.id
    for kind, resolution in (("input", b'{"answer":10}'), ("tool", b'{"output":"home"}'), ("handoff", b'{"who":"Ann"}')):
        await until(room, run, "requires_action")
        (action,) = await room.answers.pending(LOCAL, run)
        assert action.kind == kind
        if kind == "handoff":
            assert [found.id for found in await room.answers.queue(LOCAL, "nurses")] == [action.id]
            assert await room.answers.queue(operator("elsewhere"), "nurses") == []
        await room.answers.resolve(LOCAL, run, action.id, resolution=resolution)
        await asyncio.sleep(0.05)
    answer = await room.turns.outcome(LOCAL, run, timeout_s=10)
    assert json.decode(answer.outputs[0].body)["content"][0]["text"] == "10 home Ann"


async def test_P12_a_waiting_run_is_cancelled_and_its_branch_is_free(bench: Bench) -> None:
    room, run, _ = await paused(bench, approving([]))
    row = await room.runs.get(LOCAL, run)
    waiting = await take(room, "next", conversation=row.conversation)
    assert waiting.run.status == "queued", "nobody comes between a question and its answer"
    assert (await room.cancels.cancel(LOCAL, run)).status == "cancelled"
    assert [action.status for action in await room.answers.all(LOCAL, run)] == ["closed"]
    await asyncio.sleep(limits.QUEUE_LOOK_MS / 1000 + 0.05)
    await room.recovery.sweep()
    await until(room, waiting.run.id, "requires_action")
    assert (await record(room, row.branch))[:2] == ["please [failed]", "next"]


async def until(room: Stateroom, run: bytes, status: str) -> Any:
    for _ in range(400):
        row = await room.runs.get(LOCAL, run)
        if row.status == status:
            return row
        await asyncio.sleep(0.01)
    raise AssertionError(f"the run is {row.status}, not {status}: {row.error!r}")
