"""What comes between an agent's last word and the batch that ends or pauses its run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from stateroom import ids
from stateroom.backends.base import Backend
from stateroom.batch import Batch, Write
from stateroom.flows.agent import AgentEvent, Delta, Turn
from stateroom.flows.turn import Answer, TurnRequest
from stateroom.hosting.callable import CallableAgent
from stateroom.principal import LOCAL
from stateroom.run.model import Cancel
from stateroom.session.model import PatchSlots, SlotPatch
from stateroom.stack import Stateroom
from stateroom.wire import json, rows
from tests.crash.invariants import violations
from tests.services.places import Place

pytestmark = pytest.mark.anyio

Work = Callable[[Turn], AsyncIterator[AgentEvent]]


async def answered(place: Place, work: Callable[[Backend], Work]) -> tuple[Stateroom, Answer]:
    """One turn of an agent that may write to the store behind the back of its own run."""
    backend = await place.backend()
    agent = CallableAgent("agent", work(backend))
    room = Stateroom(backend, {"agent": agent}, owner=backend.owner, default_agent="agent")
    say = b'{"type":"message","role":"user","content":"go"}'
    ticket = await room.turns.take(LOCAL, TurnRequest(agent="agent", input=(say,), options=b'{"stream":true}'))
    return room, await room.turns.outcome(LOCAL, ticket.run.id, timeout_s=5)


async def write(backend: Backend, write: Write) -> None:
    await backend.commit(Batch(id=ids.new(7, 1), scope=LOCAL, at=1, writes=(write,)))


async def test_P12_a_cancel_that_comes_just_before_a_run_begins_to_wait_cancels_it(place: Place) -> None:
    def work(backend: Backend) -> Work:
        async def agent(turn: Turn) -> AsyncIterator[AgentEvent]:
            yield Delta("one moment")
            await turn.step("look", lambda: 1, effect="idempotent")
            await write(backend, Cancel(run=ids.parse("run", turn.run), rows=(rows.end_row(),)))
            await turn.approval("pay", {})
            yield Delta("never")

        return agent

    room, answer = await answered(place, work)
    assert (answer.run.status, json.decode(answer.run.error)["code"]) == ("cancelled", "cancelled")
    (step,) = await room.backend.steps(LOCAL, answer.run.id)
    assert step.status == "done", "what was done is recorded all the same"
    assert await room.answers.all(LOCAL, answer.run.id) == []
    await room.close()
    assert violations(place.inside) == []


async def test_P15_P16_a_desk_that_changed_meanwhile_costs_no_result_of_a_step(place: Place) -> None:
    """The batch that ends the run is refused once, and comes again without what the desk refused, but with its steps."""

    def work(backend: Backend) -> Work:
        async def agent(turn: Turn) -> AsyncIterator[AgentEvent]:
            turn.set("size", 10)
            session = ids.parse("session", turn.session)
            patch = SlotPatch(name="size", body=b"11", origin="user", trust=100)
            await write(backend, PatchSlots(session=session, patches=(patch,), by="local"))
            if await turn.approval("pay", {}):
                await turn.step("pay", lambda: "paid")
            yield Delta("done")

        return agent

    backend = await place.backend()
    agent = CallableAgent("agent", work(backend))
    room = Stateroom(backend, {"agent": agent}, owner=backend.owner, default_agent="agent")
    say = b'{"type":"message","role":"user","content":"go"}'
    ticket = await room.turns.take(LOCAL, TurnRequest(agent="agent", input=(say,)))
    while not (asked := await room.answers.pending(LOCAL, ticket.run.id)):
        await asyncio.sleep(0.01)
    await room.answers.resolve(LOCAL, ticket.run.id, asked[0].id, resolution=b'{"approved":true}', digest=asked[0].digest)
    answer = await room.turns.outcome(LOCAL, ticket.run.id, timeout_s=5)
    assert (answer.run.status, json.decode(answer.run.error)["code"]) == ("completed", "state_conflict")
    (step,) = await backend.steps(LOCAL, ticket.run.id)
    (action,) = await room.answers.all(LOCAL, ticket.run.id)
    assert (step.status, action.status) == ("done", "used")
    await room.close()
    assert violations(place.inside) == []
