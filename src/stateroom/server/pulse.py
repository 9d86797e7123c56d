"""The pulse looks at every open stream once a second: signs of life, sockets that do not read, the end of the server.

One task for all of them. A stream that waits costs no timer, and one that is blocked nothing but its cursor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from starlette.types import Message, Send

from stateroom import limits
from stateroom.backends.base import Backend
from stateroom.connection.model import Cursor
from stateroom.connection.store import Bell
from stateroom.errors import StateroomError
from stateroom.principal import Scope

TICK_S = 1.0
LAST_WORD_S = 0.2  # a reader that does not read cannot hold up a server that stops
SHARE = 4  # heartbeats that are due at once go out in so many ticks: thousands of them are no pause for others

Why = Literal["", "gone", "stopping", "lagged"]


class Watched:
    """An open stream as the pulse sees it: whose, how far, and whether its socket keeps it waiting."""

    def __init__(self, scope: Scope, run: bytes, cursor: Cursor) -> None:
        self.scope, self.run, self.cursor = scope, run, cursor
        self.bell = Bell()
        self.why: Why = ""  # it has to end before the run does
        self.spoken = self.since = asyncio.get_running_loop().time()  # the last word, and when the present one began
        self._patience: asyncio.Timeout | None = None

    async def put(self, send: Send, message: Message) -> None:
        """Send, however long the socket takes; TimeoutError when somebody loses patience."""
        now = asyncio.get_running_loop().time
        self.since = now()
        try:
            async with asyncio.timeout(None) as self._patience:
                await send(message)
        finally:
            self._patience = None
        self.spoken = now()

    @property
    def blocked(self) -> bool:
        return self._patience is not None

    def end(self, why: Why, *, grace_s: float = 0.0) -> None:
        """Ask it to end. The first reason counts."""
        self.why = self.why or why
        if self._patience is not None:
            self._patience.reschedule(asyncio.get_running_loop().time() + grace_s)
        else:
            self.bell.ring()


class Pulse:
    """Everything that is open. `heartbeat_s`: how long a stream may be silent."""

    def __init__(self, backend: Backend, *, heartbeat_s: float) -> None:
        self._backend, self._heartbeat_s = backend, heartbeat_s
        self._open: set[Watched] = set()
        self._ticking: asyncio.Task[None] | None = None
        self._stopped = False

    def __len__(self) -> int:
        return len(self._open)

    @contextmanager
    def watching(self, stream: Watched) -> Iterator[None]:
        """For as long as the block takes."""
        self._open.add(stream)
        if self._stopped:
            stream.end("stopping")
        if self._ticking is None or self._ticking.done():
            self._ticking = asyncio.create_task(self._tick(), name="pulse")
        try:
            yield
        finally:
            self._open.discard(stream)

    def stop(self) -> None:
        """The server goes down: every stream ends, between two events."""
        self._stopped = True
        for stream in self._open:
            stream.end("stopping", grace_s=LAST_WORD_S)

    async def drained(self, timeout_s: float) -> None:
        """Until nothing is open, or `timeout_s` is over."""
        end = asyncio.get_running_loop().time() + timeout_s
        while self._open and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(0.01)

    def is_quiet(self, stream: Watched) -> bool:
        """Whether it has to give a sign of life."""
        return asyncio.get_running_loop().time() - stream.spoken >= self._heartbeat_s

    async def _tick(self) -> None:
        while self._open:
            await asyncio.sleep(min(TICK_S, self._heartbeat_s))
            self._ring()
            await self._cut()

    def _ring(self) -> None:
        """Wake those who were silent for too long, some at a time."""
        left = max(64, len(self._open) // SHARE)
        for stream in self._open:
            if not stream.blocked and self.is_quiet(stream):
                stream.bell.ring()
                left -= 1
                if not left:
                    return

    async def _cut(self) -> None:
        """End those whose socket took nothing for too long, or who are too far behind and still do not read."""
        now = asyncio.get_running_loop().time()
        slow = dict[Scope, list[Watched]]()
        for stream in self._open:
            if stream.blocked and now - stream.since > limits.STALL_S:
                stream.end("lagged")
            elif stream.blocked:
                slow.setdefault(stream.scope, []).append(stream)
        for scope, streams in slow.items():
            try:
                heads = await self._backend.heads(scope, list({stream.run for stream in streams}))
            except StateroomError:  # a store that is away shows on the streams themselves
                return
            for stream in streams:
                head, _ = heads.get(stream.run, (0, False))
                if stream.blocked and head - stream.cursor.seq > limits.LAG_EVENTS_MAX:
                    stream.end("lagged")
