"""A network between a client and a service that fails when it is told to: a TCP proxy in a thread of its own.

with Proxy.before(server.port) as proxy:
    url = proxy.url(server.url(tcp=True))
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, Self
from urllib.parse import urlsplit, urlunsplit

from tests.services.processes import free_port

HOST: Final = "127.0.0.1"
RESET: Final = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends RST instead of FIN
PATIENCE_S: Final = 10.0
PIECE: Final = 65536


class Proxy:
    """What it is told is in force when the call returns."""

    def __init__(self, target: int) -> None:
        self.port: Final = free_port()
        self.connections = 0  # that came through so far
        self._target = target
        self._loop = asyncio.new_event_loop()
        self._listening: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()
        self._asking = asyncio.Event()
        self._answers = asyncio.Event()

    @classmethod
    @contextmanager
    def before(cls, port: int) -> Iterator[Self]:
        """In front of a loopback port, until the end of the block."""
        proxy = cls(port)
        thread = threading.Thread(target=proxy._loop.run_forever, name="proxy")
        thread.start()
        try:
            proxy.resume()
            yield proxy
        finally:
            proxy.refuse()
            proxy.cut()
            proxy.cut()  # who was only just let in
            proxy._loop.call_soon_threadsafe(proxy._loop.stop)
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
            proxy._loop.close()

    def url(self, direct: str) -> str:
        """The same place, reached through the proxy."""
        parts = urlsplit(direct)
        who, at, _ = parts.netloc.rpartition("@")
        return urlunsplit(parts._replace(netloc=f"{who}{at}{HOST}:{self.port}"))

    # ── what it can be told ─────────────────────────────────────────────────────────────────────────────────────────

    def cut(self) -> None:
        """Reset every connection, on both sides, whatever was under way. New ones are welcome."""
        self._do(self._cut())

    def stall(self, *, answers_only: bool = False) -> None:
        """Connections stay and new ones are taken, and nothing gets through any more; with `answers_only` what is asked does."""
        self._do(self._stall(answers_only))

    def refuse(self) -> None:
        """Nobody listens any more; connections that are there stay."""
        self._do(self._refuse())

    def resume(self) -> None:
        """Everything gets through again, also what was held back."""
        self._do(self._resume())

    # ── in its thread ───────────────────────────────────────────────────────────────────────────────────────────────

    def _do(self, what: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(what, self._loop).result(PATIENCE_S)

    async def _cut(self) -> None:
        cut = list(self._open)
        for connection in cut:
            connection.cancel()
        await asyncio.gather(*cut, return_exceptions=True)
        await asyncio.sleep(0)

    async def _stall(self, answers_only: bool) -> None:
        self._answers.clear()
        if not answers_only:
            self._asking.clear()

    async def _refuse(self) -> None:
        if self._listening is not None:
            self._listening.close()
            self._listening = None

    async def _resume(self) -> None:
        self._asking.set()
        self._answers.set()
        if self._listening is None:
            self._listening = await asyncio.start_server(self._welcome, HOST, self.port, reuse_address=True)

    def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        connection = self._loop.create_task(self._connection(reader, writer))
        self._open.add(connection)
        connection.add_done_callback(self._open.discard)
        connection.add_done_callback(lambda cut: reset(writer) if cut.cancelled() else None)  # maybe before it began

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Both directions to their ends. A service that is not there, or is gone, is a reset to the client."""
        ends = [writer]
        try:
            answers, asking = await asyncio.open_connection(HOST, self._target)
            ends.append(asking)
            async with asyncio.TaskGroup() as directions:
                directions.create_task(pump(reader, asking, self._asking))
                directions.create_task(pump(answers, writer, self._answers))
        except* (OSError, asyncio.CancelledError):
            for end in ends:
                reset(end)
        finally:
            for end in ends:
                end.close()


async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter, may_pass: asyncio.Event) -> None:
    """One direction, to its end."""
    while piece := await source.read(PIECE):
        await may_pass.wait()
        target.write(piece)
        await target.drain()
    await may_pass.wait()
    target.write_eof()


def reset(end: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        end.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    end.transport.abort()
