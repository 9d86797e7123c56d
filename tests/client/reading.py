"""A run that was recorded, the checker of what a client made of it, and both clients behind one call."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from stateroom.client import AsyncClient, Client, Event

Calls = Callable[..., list[list[Event]]]
FRAME = re.compile(rb"id: (\w+)\.(\d+)\n.*?\n\n", re.DOTALL)


def exactly_once(found: Sequence[Event], whole: Sequence[Event]) -> None:
    """What came is 1..n, each once, in order, with what each said. Red says what is lost and what is doubled."""
    numbers = [event.body["sequence_number"] for event in found]
    wanted = [event.body["sequence_number"] for event in whole]
    lost, doubled = sorted(set(wanted) - set(numbers)), sorted({number for number in numbers if numbers.count(number) > 1})
    assert (lost, doubled) == ([], []), f"lost {lost}, doubled {doubled}"
    assert numbers == wanted, "out of order"
    assert list(found) == list(whole), "changed"


class Tape:
    """A server's stream without the server: what comes behind a cursor."""

    def __init__(self, whole: bytes) -> None:
        self.whole = whole
        self.frames = [(int(match[2]), match[0]) for match in FRAME.finditer(whole)]
        assert b"".join(frame for _, frame in self.frames) == whole

    def behind(self, cursor: str | None) -> bytes:
        seen = int(cursor.partition(".")[2]) if cursor else 0
        return b"".join(frame for seq, frame in self.frames if seq > seen)


def waiting(url: str, calls: Iterable[Callable[[Any], Any]], **how: Any) -> list[list[Event]]:
    """Each call's events, with the client that waits."""
    with Client(url, **how) as client:
        return [list(call(client)) for call in calls]


def on_a_loop(url: str, calls: Iterable[Callable[[Any], Any]], **how: Any) -> list[list[Event]]:
    """The same on an event loop."""

    async def main() -> list[list[Event]]:
        async with AsyncClient(url, **how) as client:
            return [[event async for event in call(client)] for call in calls]

    return asyncio.run(main())
