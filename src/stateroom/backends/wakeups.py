"""Wake-ups inside one process: a generation per topic and the waiters of each event loop.

A waiter in another loop or thread is woken through its own loop, all of a loop's in one call: whoever touches a topic
pays the same for one reader and for thousands. Nothing is kept for topics nobody waits for, beyond one number per
recently touched topic.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Iterable

from stateroom.connection.store import Bell

_TOPICS_MAX = 4_096


class LocalWakeups:
    """`touch` is called after a commit, from any thread; `touch_all` when another process may have committed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._floor = 0  # generation of every topic not listed
        self._generations: OrderedDict[bytes, int] = OrderedDict()
        self._waiters: dict[bytes, dict[asyncio.AbstractEventLoop, set[Bell]]] = {}

    @property
    def watched(self) -> bool:
        """Whether anybody waits: an idle process need not poll."""
        return bool(self._waiters)

    def topics(self) -> set[bytes]:
        """What somebody waits for."""
        with self._lock:
            return set(self._waiters)

    def generation(self, topic: bytes) -> int:
        return self._generations.get(topic, self._floor)

    def touch(self, *topics: bytes) -> None:
        with self._lock:
            for topic in topics:
                self._generations[topic] = self._generations.get(topic, self._floor) + 1
                self._generations.move_to_end(topic)
                self._wake(topic)
            while len(self._generations) > _TOPICS_MAX:
                _, generation = self._generations.popitem(last=False)
                self._floor = max(self._floor, generation + 1)  # forgotten topics look touched: a false hint, not a missed one

    def touch_all(self) -> None:
        with self._lock:
            self._floor = max([self._floor, *self._generations.values()]) + 1
            self._generations.clear()
            for topic in list(self._waiters):
                self._wake(topic)

    def _wake(self, topic: bytes) -> None:
        for loop, bells in self._waiters.pop(topic, {}).items():
            if not loop.is_closed():
                loop.call_soon_threadsafe(_ring, bells)

    async def wait(self, topic: bytes, seen: int, timeout_s: float | None, *, bell: Bell | None = None) -> None:
        loop, bell = asyncio.get_running_loop(), bell or Bell()
        with self._lock:
            if self.generation(topic) != seen:
                return
            self._waiters.setdefault(topic, {}).setdefault(loop, set()).add(bell)
        try:
            await bell.wait(timeout_s)
        finally:
            with self._lock:
                self._leave(topic, loop, bell)

    def _leave(self, topic: bytes, loop: asyncio.AbstractEventLoop, bell: Bell) -> None:
        """Nothing is left of a waiter that was not woken by a touch."""
        loops = self._waiters.get(topic)
        if loops is None or (bells := loops.get(loop)) is None:
            return
        bells.discard(bell)
        if not bells:
            del loops[loop]
        if not loops:
            del self._waiters[topic]


def _ring(bells: Iterable[Bell]) -> None:
    for bell in bells:
        bell.ring()
