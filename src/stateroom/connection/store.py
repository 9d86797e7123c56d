"""Wake-ups: how a reader learns that there may be something new."""

from __future__ import annotations

from typing import Protocol


class Wakeups(Protocol):
    """Hints, never delivery: reading by cursor is what delivers (D9). A wake-up may be false or late, by seconds where
    another process wrote; it is never left out, so that a reader with nothing to read need not ask the store."""

    def generation(self, topic: bytes) -> int:
        """A number that changes when the topic was touched. Take it before reading, wait on it after."""
        ...

    async def wait(self, topic: bytes, seen: int, timeout_s: float) -> None:
        """Return when the topic's generation is no longer `seen`, or after `timeout_s`."""
        ...
