"""Somebody who breaks things: workers, the database and the network between them, one after the other, by dice."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from random import Random
from typing import NamedTuple

from tests.crash.postgres.fleet import Fleet
from tests.services.postgres import Server
from tests.services.proxy import Proxy


class Back(NamedTuple):
    """From when on the database could be reached again, on the wall clock in ms, and what it was that it came back from."""

    at_ms: int
    fault: str


class Nemesis:
    """`backs`: after each fault of the database or its network, when all was well again."""

    def __init__(self, server: Server, proxy: Proxy, fleet: Fleet, *, dice: Random) -> None:
        self._server, self._proxy, self._fleet, self._dice = server, proxy, fleet, dice
        self.faults: Counter[str] = Counter()
        self.backs: list[Back] = []
        self._every: dict[str, Callable[[], Awaitable[None]]] = {
            "worker killed": self._kill_worker,
            "database killed": self._kill_database,
            "connections cut": self._cut,
            "network stalled": self._stall,
            "questions lost": self._questions_lost,
            "answers lost": self._answers_lost,
            "network refused": self._refuse,
        }

    async def rage(self, seconds: float) -> None:
        """Every fault once, in random order, then any, for so long."""
        until = asyncio.get_running_loop().time() + seconds
        coming = self._dice.sample(sorted(self._every), len(self._every))
        while asyncio.get_running_loop().time() < until:
            name = coming.pop() if coming else self._dice.choice(sorted(self._every))
            await self._every[name]()
            self.faults[name] += 1
            if name != "worker killed":
                self.backs.append(Back(time.time_ns() // 1_000_000, name))
            await asyncio.sleep(self._dice.uniform(0.3, 2.0))

    async def _kill_worker(self) -> None:
        await self._fleet.kill(self._dice.randrange(len(self._fleet.ports)))

    async def _kill_database(self) -> None:
        await asyncio.to_thread(self._server.kill)
        await asyncio.sleep(self._dice.uniform(0, 1.0))
        await asyncio.to_thread(self._server.restart)

    async def _cut(self) -> None:
        for _ in range(self._dice.randint(1, 3)):
            await asyncio.to_thread(self._proxy.cut)
            await asyncio.sleep(self._dice.uniform(0, 0.1))

    async def _stall(self) -> None:
        await asyncio.to_thread(self._proxy.stall)
        await asyncio.sleep(self._dice.uniform(0.2, 4.0))
        await asyncio.to_thread(self._proxy.resume)

    async def _questions_lost(self) -> None:
        await asyncio.to_thread(self._proxy.stall)
        await self._lost()

    async def _answers_lost(self) -> None:
        """What is committed while answers are held back is not acknowledged to anybody."""
        await asyncio.to_thread(lambda: self._proxy.stall(answers_only=True))
        await self._lost()

    async def _lost(self) -> None:
        await asyncio.sleep(self._dice.uniform(0.05, 1.0))
        await asyncio.to_thread(self._proxy.cut)
        await asyncio.to_thread(self._proxy.resume)

    async def _refuse(self) -> None:
        await asyncio.to_thread(self._proxy.refuse)
        await asyncio.to_thread(self._proxy.cut)
        await asyncio.sleep(self._dice.uniform(0.2, 2.0))
        await asyncio.to_thread(self._proxy.resume)
