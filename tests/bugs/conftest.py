"""A store of each kind, that a test may open, leave and open again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from stateroom.backends.base import Backend
from stateroom.backends.ram.backend import RamBackend
from stateroom.backends.ram.store import RamStore
from stateroom.backends.sqlite.backend import SqliteBackend
from stateroom.clock import Clock, SystemClock
from stateroom.face import Room
from stateroom.flows.agent import Turn
from stateroom.hosting.callable import CallableAgent
from stateroom.principal import LOCAL, Scope
from stateroom.stack import Stateroom

Answer = Callable[[Turn], Any]


async def echo(turn: Turn) -> str:
    return f"You said: {turn.text}"


class Place:
    """Where one store lies. `opened` gives the whole stack over it, as another process would have it."""

    def __init__(self, kind: str, folder: Path, clock: Clock) -> None:
        self.kind, self._folder, self._clock = kind, folder, clock
        self._ram = RamStore(clock)

    async def backend(self) -> Backend:
        if self.kind == "ram":
            return RamBackend(self._ram)
        return await SqliteBackend.open(self._folder, clock=self._clock)

    @asynccontextmanager
    async def opened(self, answer: Answer = echo, *, scope: Scope = LOCAL) -> AsyncIterator[Room]:
        backend = await self.backend()
        agent = CallableAgent("agent", answer)
        stack = Stateroom(backend, {"agent": agent}, owner=backend.owner, default_agent="agent")
        await stack.start()
        try:
            yield Room(stack, scope)
        finally:
            await stack.close(grace_s=0)


@pytest.fixture(params=["ram", "sqlite"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def clock() -> Clock:
    return SystemClock()


@pytest.fixture
def place(kind: str, clock: Clock, tmp_path: Path) -> Place:
    return Place(kind, tmp_path / "store", clock)
