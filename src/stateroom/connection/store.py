"""Wake-ups: how a reader learns that there may be something new."""

from __future__ import annotations

import asyncio
from typing import Protocol


class Bell:
    """Wakes the one who waits on it: rung when a topic was touched, or by whoever wants it to look up. One that nobody
    waits on rings as soon as somebody does. Belongs to one event loop; a wait without a timeout costs no timer."""

    __slots__ = ("_rung", "_waiter")

    def __init__(self) -> None:
        self._rung = False
        self._waiter: asyncio.Future[None] | None = None

    def ring(self) -> None:
        if self._waiter is None:
            self._rung = True
        elif not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self, timeout_s: float | None) -> None:
        if self._rung:
            self._rung = False
            return
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = None if timeout_s is None else loop.call_later(timeout_s, self.ring)
        try:
            await self._waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()


class Wakeups(Protocol):
    """Hints, never delivery: a wake-up may be missed or false; reading by cursor is the guarantee (D9)."""

    def generation(self, topic: bytes) -> int:
        """A number that changes when the topic was touched. Take it before reading, wait on it after."""
        ...

    async def wait(self, topic: bytes, seen: int, timeout_s: float | None, *, bell: Bell | None = None) -> None:
        """Return when the topic's generation is no longer `seen`, after `timeout_s`, or when somebody rings `bell`."""
        ...
