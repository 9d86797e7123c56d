"""Wake-ups for a file that several processes write: our own commits at once, others' by looking now and then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from stateroom import limits
from stateroom.backends.wakeups import LocalWakeups


class SqliteWakeups(LocalWakeups):
    """One watcher per process, and only while somebody waits."""

    def __init__(self, data_version: Callable[[], int | None]) -> None:
        super().__init__()
        self._data_version = data_version
        self._seen: int | None = None
        self._poller: asyncio.Task[None] | None = None

    async def wait(self, topic: bytes, seen: int, timeout_s: float) -> None:
        if self._poller is None or self._poller.done() or self._poller.get_loop() is not asyncio.get_running_loop():
            self._poller = asyncio.get_running_loop().create_task(self._poll(), name="watcher")
        await super().wait(topic, seen, timeout_s)

    def close(self) -> None:
        if self._poller is not None and not self._poller.get_loop().is_closed():
            self._poller.cancel()

    async def _poll(self) -> None:
        """Ends by itself when nobody has waited for a while."""
        idle = 0
        while idle < 10:
            version = self._data_version()
            if version is not None and version != self._seen:
                if self._seen is not None:
                    self.touch_all()
                self._seen = version
            idle = 0 if self.watched else idle + 1
            await asyncio.sleep(limits.POLL_MS / 1000)
