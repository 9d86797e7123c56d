"""Wires everything: a backend from a URL, the rooms over it, the flows over those. The only module that sees them all."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType

from stateroom.backends import urls
from stateroom.backends.base import Backend
from stateroom.backends.ram.backend import RamBackend
from stateroom.backends.ram.store import RamStore
from stateroom.backends.sqlite.backend import SqliteBackend
from stateroom.clock import SystemClock
from stateroom.conversation.service import Conversations
from stateroom.errors import InvalidInput, StateroomError
from stateroom.flows.agent import Agent
from stateroom.flows.answer import Answers
from stateroom.flows.cancel import Cancels
from stateroom.flows.failpoint import Failpoints
from stateroom.flows.follow import Followers
from stateroom.flows.prefetch import Prefetcher
from stateroom.flows.recover import Recovery
from stateroom.flows.turn import Turns
from stateroom.flows.watch import Watchers
from stateroom.hosting.clerk import Clerk
from stateroom.run.service import Runs
from stateroom.session.service import Sessions

log = logging.getLogger("stateroom")
SWEEP_S = 1.0


class Stateroom:
    """An open store with its rooms and flows. Use as an async context manager, or `close` it."""

    def __init__(self, backend: Backend, agents: Mapping[str, Agent], *, owner: str, default_agent: str) -> None:
        failpoints = Failpoints(os.environ)
        self.backend = backend
        self.agents = agents
        self.default_agent = default_agent
        self.conversations = Conversations(backend)
        self.sessions = Sessions(backend)
        self.runs = Runs(backend)
        self.turns = Turns(backend, agents, owner=owner, failpoints=failpoints)
        self.followers = Followers(backend, self.turns)
        self.watchers = Watchers(backend)
        self.hydrator = self.turns.hydrator
        self.prefetch = Prefetcher(backend, self.hydrator)
        self.turns.workshop.finished = self.prefetch.finished
        self.cancels = Cancels(backend, self.turns, failpoints)
        self.recovery = Recovery(backend, self.turns.workshop, failpoints)
        self.answers = Answers(backend, self.recovery)
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Recover what a crash left, and keep looking. Does not wait for the recovered runs to end."""
        await self.recovery.sweep()
        self._sweeper = asyncio.create_task(self._sweep(), name="sweeper")

    async def close(self, *, grace_s: float = 5.0) -> None:
        """Let running turns end within `grace_s`, then close the store. What is left is recovered at the next start."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
        await self.turns.workshop.close(grace_s)
        await self.prefetch.close()
        await self.backend.close()

    async def __aenter__(self) -> Stateroom:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        await self.close()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            try:
                await self.recovery.sweep()
            except StateroomError as error:  # a full disk must not end the sweeping
                log.warning("sweep failed, trying again: %s", error)


async def open(url: str = "sqlite:///stateroom-data", *, agents: Iterable[Agent] = ()) -> Stateroom:
    """Open a store and everything over it.

    `url`: `sqlite:///folder` (relative), `sqlite:////folder` (absolute), `postgresql://role@host/database`, `ram://` (gone
    at the end). `agents` answer turns; the first one is the default. Without any, the built-in shop assistant `clerk`
    answers.
    """
    chosen = {agent.name: agent for agent in agents} or {"clerk": Clerk()}
    backend = await open_backend(url)
    owner = backend.owner
    room = Stateroom(backend, chosen, owner=owner, default_agent=next(iter(chosen)))
    try:
        await room.start()
    except BaseException:
        await backend.close()
        raise
    return room


async def open_backend(url: str) -> Backend:
    """The backend a URL names."""
    scheme, separator, rest = url.partition("://")
    if separator and scheme == "ram":
        return RamBackend(RamStore(SystemClock()))
    if separator and scheme == "sqlite" and rest.startswith("/") and len(rest) > 1:
        return await SqliteBackend.open(Path(rest[1:]))
    if urls.is_postgres(url):
        return await _postgres(url)
    raise InvalidInput(
        f"A store is 'sqlite:///folder', 'postgresql://…' or 'ram://', not {urls.shown(url)[:80]!r}.", code="store_url_invalid"
    )


async def _postgres(url: str) -> Backend:
    try:
        from stateroom.backends.postgres.backend import PostgresBackend  # noqa: PLC0415  an optional extra
    except ImportError as error:
        if error.name is not None and error.name.startswith("stateroom"):
            raise
        raise InvalidInput(
            "A PostgreSQL store needs the extra: pip install 'stateroom[postgres]'.", code="extra_missing", extra="postgres"
        ) from error
    return await PostgresBackend.open(url)
