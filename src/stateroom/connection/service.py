"""Attach, resume, detach: a reader owns a cursor and nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from stateroom.connection.model import Cursor
from stateroom.connection.store import Bell, Wakeups
from stateroom.errors import CursorInvalid

# What a stream is read from: events with seq > cursor (seq, event), whether the stream has ended, and its head.
Page = tuple[list[tuple[int, Any]], bool, int]
ReadPage = Callable[[int], Awaitable[Page]]
T = TypeVar("T")


async def wait_for(
    read: Callable[[], Awaitable[T]], enough: Callable[[T], bool], wakeups: Wakeups, *, topic: bytes, poll_s: float = 1.0
) -> T:
    """Read until it is `enough`, sleeping on the topic's wake-ups in between; the poll makes it a guarantee."""
    while True:
        seen = wakeups.generation(topic)
        if enough(value := await read()):
            return value
        await wakeups.wait(topic, seen, poll_s)


async def follow(
    read: ReadPage, wakeups: Wakeups, *, topic: bytes, start: Cursor, poll_s: float | None, bell: Bell | None = None
) -> AsyncIterator[tuple[Cursor, Any] | None]:
    """Every event after `start`, in order, until the stream's end; None when `poll_s` passed without one, or when
    somebody rang `bell` (a chance to say that one is still there, or to leave). Holds one page at a time, whatever the
    writer does (P7)."""
    seq = start.seq
    while True:
        seen = wakeups.generation(topic)
        events, ended, head = await read(seq)
        if seq > head:
            raise CursorInvalid(f"The stream has {head} events; the cursor says {seq}.", code="cursor_ahead")
        for number, event in events:
            seq = number
            yield Cursor(start.epoch, number), event
        if ended and seq >= head:
            return
        while not events and wakeups.generation(topic) == seen:  # nothing new: nothing is read
            await wakeups.wait(topic, seen, poll_s, bell=bell)
            if wakeups.generation(topic) == seen:
                yield None
