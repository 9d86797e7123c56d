"""Workers on one database, each a process and a server of its own: killed, they are started again."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2 as httpx

from tests.crash import plays
from tests.crash.zygote import Forked, Zygote, zygotes
from tests.services.processes import free_port


class Fleet:
    """`how`: what each worker's play is given (`plays.serves`)."""

    def __init__(self, folder: Path, hosts: Sequence[Zygote], **how: Any) -> None:
        self._folder, self._hosts, self._how = folder, hosts, how
        self.ports = [free_port() for _ in hosts]
        self._workers: dict[int, Forked] = {}
        self.kills = 0

    async def start(self, number: int) -> None:
        self._workers[number] = await self._hosts[number].fork(
            plays.serves, self._folder, port=self.ports[number], pause_s=0.0, **self._how
        )

    async def kill(self, number: int) -> None:
        """SIGKILL, and another one begins to start."""
        status = await self._workers[number].killed()
        assert status == -signal.SIGKILL, f"a worker had ended by itself:\n{self._workers[number].last_words()}"
        self.kills += 1
        await self.start(number)

    async def restart(self, number: int) -> None:
        """In order: it ends by itself, and another one serves."""
        assert await self.stop(number) == 0, self.last_words()
        await self.start(number)
        await self.ready(number)

    async def stop(self, number: int) -> int:
        self._workers[number].signal(signal.SIGTERM)
        return await asyncio.wait_for(self._workers[number].ended(), 30)

    async def ready(self, number: int) -> None:
        async with httpx.AsyncClient(timeout=5) as http:
            for _ in range(1500):
                with suppress(httpx.TransportError):
                    if (await http.get(f"http://127.0.0.1:{self.ports[number]}/readyz")).is_success:
                        return
                await asyncio.sleep(0.02)
        raise AssertionError(f"a worker does not start:\n{self.last_words()}")

    def pid(self, number: int) -> int:
        return self._workers[number].pid

    async def end(self) -> list[int]:
        """All of them in order; their statuses."""
        return await asyncio.gather(*(self.stop(number) for number in self._workers))

    def last_words(self) -> str:
        return (self._folder / "child.log").read_text(errors="replace")[-6000:]


@asynccontextmanager
async def fleet(folder: Path, count: int, **how: Any) -> AsyncIterator[Fleet]:
    """So many workers, all ready."""
    with zygotes(count) as hosts:
        made = Fleet(folder, hosts, **how)
        try:
            await asyncio.gather(*(made.start(number) for number in range(count)))
            await asyncio.gather(*(made.ready(number) for number in range(count)))
            yield made
        finally:
            for worker in made._workers.values():
                with suppress(ProcessLookupError):
                    worker.signal(signal.SIGKILL)
