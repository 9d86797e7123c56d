"""Every kind of store, opened with agents of the test's own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from stateroom.clock import Clock
from stateroom.flows.agent import AgentEvent, Delta, Turn
from stateroom.flows.turn import Answer, Ticket, TurnRequest
from stateroom.ids import NIL
from stateroom.principal import LOCAL, Scope
from stateroom.stack import Stateroom
from tests.services.places import EVERY, Kind, Place

Work = Callable[[Turn], AsyncIterator[AgentEvent]]


class Acts:
    """An agent made of one async generator."""

    style = "responses"

    def __init__(self, work: Work, name: str = "agent") -> None:
        self.name, self._work = name, work
        self.turns: list[Turn] = []

    def work(self, turn: Turn) -> AsyncIterator[AgentEvent]:
        self.turns.append(turn)
        return self._work(turn)


async def echo(turn: Turn) -> AsyncIterator[AgentEvent]:
    yield Delta(f"you said {turn.text}")


class Bench:
    """Opens rooms on one store, as many as a test wants, and closes them all."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._rooms: list[Stateroom] = []

    @property
    def clock(self) -> Clock:
        return self.place.clock

    @clock.setter
    def clock(self, clock: Clock) -> None:
        self.place.clock = clock

    async def room(self, agent: Acts | Work = echo) -> Stateroom:
        acts = agent if isinstance(agent, Acts) else Acts(agent)
        backend = await self.place.backend()
        self._rooms.append(Stateroom(backend, {acts.name: acts}, owner=backend.owner, default_agent=acts.name))
        return self._rooms[-1]

    async def close(self) -> None:
        for room in self._rooms:
            await room.close(grace_s=0)


@pytest.fixture(params=EVERY)
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
async def bench(place: Place) -> AsyncIterator[Bench]:
    made = Bench(place)
    yield made
    await made.close()


def says(text: str) -> bytes:
    return b'{"type":"message","role":"user","content":"%s"}' % text.encode()


async def take(room: Stateroom, text: str, *, scope: Scope = LOCAL, **given: Any) -> Ticket:
    return await room.turns.take(scope, TurnRequest(agent=room.default_agent, input=(says(text),), **given))


async def ask(room: Stateroom, text: str, *, scope: Scope = LOCAL, **given: Any) -> Answer:
    ticket = await take(room, text, scope=scope, **given)
    return await room.turns.outcome(scope, ticket.run.id, timeout_s=10)


async def record(room: Stateroom, branch: bytes) -> list[str]:
    """The texts a branch shows, oldest first, with their marks."""
    from stateroom.conversation.model import ItemQuery
    from stateroom.flows.agent import text_of
    from stateroom.wire import json

    items = await room.conversations.items(LOCAL, ItemQuery(branch=branch, limit=1000))
    return [text_of(json.decode_trusted(item.body)) + (f" [{item.mark}]" if item.mark else "") for item in items]


def heard(turn: Turn) -> list[str]:
    from stateroom.flows.agent import text_of

    return [text_of(item) for item in turn.window]


__all__ = ["LOCAL", "NIL", "Acts", "Awaitable", "Bench", "Iterator", "ask", "echo", "heard", "record", "says", "take"]


async def die(room: Stateroom) -> None:
    """The room's worker is gone in the middle of its work, as by SIGKILL: nothing is let go, nothing is told."""
    tasks = [job.task for job in list(room.turns.workshop._jobs.values()) if job.task is not None]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
