"""Wires everything: a backend from a URL, the rooms over it, the flows over those. The only module that sees them all."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

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
from stateroom.flows.archive import Archives
from stateroom.flows.bundle import Bundles
from stateroom.flows.cancel import Cancels
from stateroom.flows.cold import ColdStore, FileCold
from stateroom.flows.expire import Expiry
from stateroom.flows.failpoint import Failpoints
from stateroom.flows.follow import Followers
from stateroom.flows.fork import Forks
from stateroom.flows.prefetch import Prefetcher
from stateroom.flows.recover import Recovery
from stateroom.flows.rollback import Rollbacks
from stateroom.flows.told import NOTHING, Archive, Hook, Told
from stateroom.flows.turn import Turns
from stateroom.flows.watch import Watchers
from stateroom.hosting.clerk import Clerk
from stateroom.run.service import Runs
from stateroom.session.service import Sessions

log = logging.getLogger("stateroom")
SWEEP_S = 1.0
OnExpiry = str | Callable[[dict[str, Any]], Awaitable[None] | None] | None


class Stateroom:
    """An open store with its rooms and flows. Use as an async context manager, or `close` it."""

    def __init__(
        self,
        backend: Backend,
        agents: Mapping[str, Agent],
        *,
        owner: str,
        default_agent: str,
        on_expiry: OnExpiry = None,
    ) -> None:
        failpoints = Failpoints(os.environ)
        self._no_hook = on_expiry == NOTHING
        on_expiry = None if self._no_hook else on_expiry
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
        self.rollbacks = Rollbacks(backend, failpoints)
        self.forks = Forks(backend)
        self.bundles = Bundles(backend, failpoints)
        self.archives = Archives(backend, cold_of(backend, on_expiry), failpoints)
        rest = 3 if isinstance(backend, SqliteBackend) else 1  # where there is one writer, a turn rarely meets what expires
        self.expiry = Expiry(backend, hook_of(backend, self.archives, on_expiry), failpoints, rest=rest)
        self._sweepers: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Recover what a crash left, and keep looking. Does not wait for the recovered runs to end."""
        await self.recovery.sweep()
        await (self.expiry.end() if self._no_hook else self.expiry.begin())
        self._sweepers = [
            asyncio.create_task(_again(self.recovery.sweep), name="sweeper"),
            asyncio.create_task(_again(self.expiry.sweep), name="expiry"),
        ]

    async def close(self, *, grace_s: float = 5.0) -> None:
        """Let running turns end within `grace_s`, then close the store. What is left is recovered at the next start."""
        for sweeper in self._sweepers:
            sweeper.cancel()
        await asyncio.gather(*self._sweepers, return_exceptions=True)
        self.turns.doubts.close()
        await self.turns.workshop.close(grace_s)
        await self.prefetch.close()
        await self.backend.close()

    async def __aenter__(self) -> Stateroom:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        await self.close()


async def _again(sweep: Callable[[], Awaitable[int]]) -> None:
    while True:
        await asyncio.sleep(SWEEP_S)
        try:
            await sweep()
        except StateroomError as error:  # a full disk must not end the sweeping
            log.warning("sweep failed, trying again: %s", error)


def cold_of(backend: Backend, on_expiry: OnExpiry) -> ColdStore | None:
    """Where archives lie: in the folder that is named, or in `archive/` beside an embedded store."""
    kind, _, folder = on_expiry.partition(":") if isinstance(on_expiry, str) else ("", "", "")
    if kind == "archive" and folder:
        return FileCold(Path(folder))
    return FileCold(backend.folder / "archive") if isinstance(backend, SqliteBackend) else None


def hook_of(backend: Backend, archives: Archives, on_expiry: OnExpiry) -> Hook | None:
    """What is done with a desk that has expired, before it is purged; None: nothing."""
    if not on_expiry:
        return None
    if not isinstance(on_expiry, str):
        return Told(backend, on_expiry)
    if on_expiry.partition(":")[0] == "archive":
        if not archives.possible:
            raise InvalidInput("Say in which folder archives lie: archive:/folder.", code="archive_unset")
        return Archive(archives)
    if on_expiry.startswith(("http://", "https://")):
        webhook: Any = importlib.import_module("stateroom.flows.webhook")  # few have one, and it brings an HTTP client
        hook: Hook = webhook.Webhook(backend, on_expiry, private=os.environ.get("STATEROOM_WEBHOOK_PRIVATE") == "1")
        return hook
    raise InvalidInput("On expiry: 'archive', 'archive:/folder', an http(s) address or 'nothing'.", code="on_expiry_invalid")


async def open(url: str = "sqlite:///stateroom-data", *, agents: Iterable[Agent] = (), on_expiry: OnExpiry = None) -> Stateroom:
    """Open a store and everything over it.

    `url`: `sqlite:///folder` (relative), `sqlite:////folder` (absolute), `postgresql://role@host/database`, `ram://` (gone
    at the end). `agents` answer turns; the first one is the default. Without any, the built-in shop assistant `clerk`
    answers. `on_expiry`: what is done with a session that has expired, before it is purged: `archive` (into the folder
    `archive/` of an embedded store), `archive:/folder`, an http(s) address that is told, or a callable; without it the
    setting STATEROOM_ON_EXPIRY. The store remembers it: a process that was told nothing purges only where nobody was told
    anything, until somebody says `nothing`.
    """
    chosen = {agent.name: agent for agent in agents} or {"clerk": Clerk()}
    backend = await open_backend(url)
    owner = backend.owner
    given = on_expiry or os.environ.get("STATEROOM_ON_EXPIRY")
    try:
        room = Stateroom(backend, chosen, owner=owner, default_agent=next(iter(chosen)), on_expiry=given)
        await room.start()
    except BaseException:
        await backend.close()
        raise
    return room


async def open_backend(url: str, *, reading: bool = False) -> Backend:
    """The backend a URL names. `reading`: nothing will be written; on PostgreSQL a role will do that may only look."""
    scheme, separator, rest = url.partition("://")
    if separator and scheme == "ram":
        return RamBackend(RamStore(SystemClock()))
    if separator and scheme == "sqlite" and rest.startswith("/") and len(rest) > 1:
        return await SqliteBackend.open(Path(rest[1:]))
    if urls.is_postgres(url):
        return await _postgres(url, reading=reading)
    raise InvalidInput(
        f"A store is 'sqlite:///folder', 'postgresql://…' or 'ram://', not {urls.shown(url)[:80]!r}.", code="store_url_invalid"
    )


async def _postgres(url: str, *, reading: bool) -> Backend:
    try:
        from stateroom.backends.postgres.backend import PostgresBackend  # noqa: PLC0415  an optional extra
    except ImportError as error:
        if error.name is not None and error.name.startswith("stateroom"):
            raise
        raise InvalidInput(
            "A PostgreSQL store needs the extra: pip install 'stateroom[postgres]'.", code="extra_missing", extra="postgres"
        ) from error
    return await PostgresBackend.open(url, reading=reading)
