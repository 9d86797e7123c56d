"""HTTP as it is on the wire: a real server over an open room, and a socket that counts what comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple
from urllib.parse import urlsplit

from stateroom import stack
from stateroom.server.app import create_app
from stateroom.server.run import HttpServer


class Answer(NamedTuple):
    status: int
    size: int  # of all of it: status line, headers, body
    body: bytes


class Wire:
    """One connection that is kept."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self, method: str, path: str, body: bytes = b"") -> Answer:
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        self.writer.write(head.encode() + body)
        headers = await self.reader.readuntil(b"\r\n\r\n")
        status, _, fields = headers.partition(b"\r\n")
        length = next(int(line[15:]) for line in fields.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        content = await self.reader.readexactly(length)
        return Answer(int(status.split()[1]), len(headers) + length, content)

    async def good(self, method: str, path: str, body: bytes = b"") -> Answer:
        answer = await self.ask(method, path, body)
        assert answer.status == 200, answer
        return answer


@asynccontextmanager
async def served(room: stack.Stateroom) -> AsyncIterator[Wire]:
    """A server on a loopback port of its own, in this loop, and a connection to it."""
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    server = HttpServer(create_app(room), host="127.0.0.1", port=0, ready=ready.set_result)
    serving = asyncio.create_task(server.serve())
    place = urlsplit(await ready)
    reader, writer = await asyncio.open_connection(place.hostname, place.port, limit=64 << 20)
    try:
        yield Wire(reader, writer)
    finally:
        writer.close()
        server.stop()
        await serving
