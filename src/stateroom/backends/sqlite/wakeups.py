"""Wake-ups for a file that several processes write: our own commits at once, others' by looking now and then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from stateroom import limits
from stateroom.backends.wakeups import LocalWakeups
from stateroom.connection.store import Bell

SETTLE_TICKS = 50  # after others wrote, everybody looks once within this many ticks (5 s), whatever the heads said


class SqliteWakeups(LocalWakeups):
    """One watcher per process, and only while somebody waits. When another process wrote, it reads the heads of the runs
    that are going on and wakes those who wait on one that moved; a late look by everybody makes it a guarantee."""

    def __init__(self, data_version: Callable[[], int | None], heads: Callable[[], Mapping[bytes, int]]) -> None:
        super().__init__()
        self._data_version, self._heads = data_version, heads
        self._seen: int | None = None
        self._known: Mapping[bytes, int] = {}
        self._settle = 0
        self._poller: asyncio.Task[None] | None = None

    async def wait(self, topic: bytes, seen: int, timeout_s: float | None, *, bell: Bell | None = None) -> None:
        if self._poller is None or self._poller.done() or self._poller.get_loop() is not asyncio.get_running_loop():
            self._seen = None
            self._poller = asyncio.get_running_loop().create_task(self._poll(), name="watcher")
        await super().wait(topic, seen, timeout_s, bell=bell)

    def close(self) -> None:
        if self._poller is not None and not self._poller.get_loop().is_closed():
            self._poller.cancel()

    async def _poll(self) -> None:
        """Ends by itself when nobody has waited for a while."""
        idle = 0
        while idle < 10:
            self._look()
            idle = 0 if self.watched else idle + 1
            await asyncio.sleep(limits.POLL_MS / 1000)

    def _look(self) -> None:
        version = self._data_version()
        if self._settle:
            self._settle -= 1
            if not self._settle:
                self.touch_all()
        if version is None or version == self._seen:
            return
        if self._seen is None:  # what happened before the first look may have been missed
            self.touch_all()
        self._seen = version
        heads = self._heads()
        moved = {run for run, head in heads.items() if self._known.get(run) != head} | (self._known.keys() - heads.keys())
        self._known, self._settle = heads, self._settle or SETTLE_TICKS
        self.touch(*moved)
