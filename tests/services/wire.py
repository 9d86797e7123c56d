"""A network that fails between two messages of PostgreSQL's protocol: after the k-th that is asked, or answered.

async with Wire.before(server.port) as wire:
    url = wire.url(server.url(tcp=True))
    wire.arm(Cut("answers", 3))
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Final, Literal, NamedTuple, Self
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from tests.services.proxy import HOST, reset

PIECE: Final = 65536
QUIET_S: Final = 0.01  # who sends in one go has sent it all by then
PLAIN: Final = {"sslmode": "disable", "gssencmode": "disable"}
Way = Literal["questions", "late questions", "answers"]


class Cut(NamedTuple):
    """What becomes of a connection after `after` more messages went this way.

    questions: the next ones reach nobody, and both ends are reset. late questions: the client is reset, and the server gets
    the next ones `late_s` later. answers: the client is reset before the next one, and the server finds out then.
    """

    way: Way
    after: int
    late_s: float = 0.1


class Messages:
    """The bytes of one direction, in whole messages. The first of a client has no type."""

    def __init__(self, *, typed: bool) -> None:
        self._typed, self._bytes = typed, b""

    def feed(self, piece: bytes) -> Iterator[bytes]:
        self._bytes += piece
        while len(self._bytes) >= 5:
            head = 1 if self._typed else 0
            size = head + struct.unpack_from(">i", self._bytes, head)[0]
            if len(self._bytes) < size:
                return
            whole, self._bytes = self._bytes[:size], self._bytes[size:]
            self._typed = True
            yield whole


class Wire:
    """Runs in the loop of whoever opens it. `fired`: how many of the cuts were made."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._cuts: list[Cut] = []
        self._left = 0
        self.fired = 0
        self.port = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    @asynccontextmanager
    async def before(cls, port: int) -> AsyncIterator[Self]:
        wire = cls(port)
        server = await asyncio.start_server(wire._welcome, HOST, 0)
        wire.port = server.sockets[0].getsockname()[1]
        try:
            yield wire
        finally:
            server.close()
            for task in wire._tasks:
                task.cancel()
            await asyncio.gather(*wire._tasks, return_exceptions=True)

    def url(self, direct: str) -> str:
        """The same place, reached through this."""
        parts = urlsplit(direct)
        who = parts.netloc.rpartition("@")[0]
        query = urlencode({**dict(parse_qsl(parts.query)), **PLAIN})
        return urlunsplit(parts._replace(netloc=f"{who}@{HOST}:{self.port}", query=query))

    def arm(self, *cuts: Cut) -> None:
        """From the next message on; one cut after the other."""
        self._cuts, self.fired = list(cuts), 0
        self._left = cuts[0].after if cuts else 0

    def disarm(self) -> int:
        """How many were made."""
        self._cuts = []
        return self.fired

    # ── inside ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._carry(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _cut_at(self, way: str) -> Cut | None:
        """The cut that this message runs into, if it does."""
        if not self._cuts or not self._cuts[0].way.endswith(way):
            return None
        if self._left:
            self._left -= 1
            return None
        self.fired += 1
        made = self._cuts.pop(0)
        self._left = self._cuts[0].after if self._cuts else 0
        return made

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            answers, asking = await asyncio.open_connection(HOST, self._target)
        except OSError:
            return reset(writer)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._ask(reader, asking, writer))
                group.create_task(self._answer(answers, writer, asking))
        except* (OSError, asyncio.CancelledError, _Over):
            pass
        finally:
            reset(writer)
            asking.close()

    async def _ask(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, client: asyncio.StreamWriter) -> None:
        messages = Messages(typed=False)
        while piece := await source.read(PIECE):
            coming = messages.feed(piece)
            for message in coming:
                if (cut := self._cut_at("questions")) is not None:
                    if cut.way == "late questions":
                        await self._late(b"".join([message, *coming]), source, (target, client), late_s=cut.late_s)
                    else:
                        reset(target)
                    raise _Over
                target.write(message)
            await target.drain()
        raise _Over

    async def _late(
        self, held: bytes, source: asyncio.StreamReader, ends: tuple[asyncio.StreamWriter, asyncio.StreamWriter], *, late_s: float
    ) -> None:
        target, client = ends
        with suppress(TimeoutError):
            async with asyncio.timeout(QUIET_S):
                while piece := await source.read(PIECE):
                    held += piece
        reset(client)
        await asyncio.sleep(late_s)
        target.write(held)
        await target.drain()

    async def _answer(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, asking: asyncio.StreamWriter) -> None:
        messages = Messages(typed=True)
        while piece := await source.read(PIECE):
            for message in messages.feed(piece):
                if self._cut_at("answers") is not None:
                    raise _Over
                target.write(message)
            await target.drain()
        raise _Over


class _Over(Exception):
    """This connection."""
