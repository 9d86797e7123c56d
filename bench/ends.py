"""Both ends of the measurement of followers, each a process of its own that is asked line by line.

python -m bench.ends serve FOLDER       a server whose agents say what they are told
python -m bench.ends crowd              raw sockets
"""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import urlsplit

try:
    from uvloop import new_event_loop
except ImportError:
    new_event_loop = asyncio.new_event_loop

PIECE = "x" * 1_000


# ── the server ──────────────────────────────────────────────────────────────────────────────────────────────────────


class Server:
    """A server whose agent says what it is told through stdin: `say`, or as fast as it can until `quiet`."""

    def __init__(self, folder: str) -> None:
        self.folder, self.said, self.loud, self.reads = folder, asyncio.Queue[str](), False, 0
        self.pieces = 0

    async def main(self) -> None:
        from stateroom import stack
        from stateroom.backends.sqlite.backend import SqliteBackend
        from stateroom.hosting.callable import CallableAgent
        from stateroom.server.app import create_app
        from stateroom.server.run import HttpServer, collect_seldom

        collect_seldom()
        agents = [CallableAgent("told", self.tell), CallableAgent("asks", self.ask), CallableAgent("loud", self.shout)]
        room = await stack.open(f"sqlite:///{self.folder}", agents=agents)
        assert isinstance(room.backend, SqliteBackend)
        read = room.backend._look

        def counted(*given: Any) -> Any:
            self.reads += 1
            return read(*given)

        room.backend._look = counted  # type: ignore[method-assign]
        app = create_app(room, own_room=True)
        self.pulse = app.state.server.pulse
        server = HttpServer(app, host="127.0.0.1", port=0, ready=lambda url: reply(url))
        listening = asyncio.create_task(self.listen(server))
        await server.serve()
        listening.cancel()

    async def listen(self, server: Any) -> None:
        orders = await lines_of(sys.stdin)
        while order := (await orders.readline()).decode().strip():
            if order == "stats":
                blocked = sum(stream.blocked for stream in self.pulse._open)
                stats = {"rss": rss(), "cpu": time.process_time(), "reads": self.reads, "pieces": self.pieces}
                reply({**stats, "open": len(self.pulse), "blocked": blocked})
            elif order == "quiet":
                self.loud = False
            else:
                await self.said.put(order)
        server.stop()

    async def tell(self, turn: Any) -> AsyncIterator[str]:
        """A delta for each order, with the moment it was said."""
        yield "hello "
        while (await self.said.get()) != "end":
            yield f"@{time.monotonic_ns()}@"

    async def ask(self, turn: Any) -> str:
        return str(await turn.approval("wait", {}))

    async def shout(self, turn: Any) -> AsyncIterator[str]:
        self.loud = True
        while self.loud:
            yield PIECE
            self.pieces += 1
            await asyncio.sleep(0)


# ── the sockets ─────────────────────────────────────────────────────────────────────────────────────────────────────


class Reader(asyncio.Protocol):
    """One socket that follows a run; it notes when it was told something."""

    def __init__(self, crowd: Crowd, request: bytes) -> None:
        self.crowd, self.request, self.tail = crowd, request, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.write(self.request)  # type: ignore[attr-defined]
        self.crowd.transports.append(transport)  # type: ignore[arg-type]

    def data_received(self, data: bytes) -> None:
        now = time.monotonic_ns()
        if not self.tail:
            self.crowd.opened += data.startswith(b"HTTP/1.1 200")
            self.tail = b"."
        for said in data.split(b"@")[1::2]:
            if said.isdigit():
                self.crowd.took.append((now - int(said)) / 1e6)

    def connection_lost(self, error: Exception | None) -> None:
        self.crowd.lost += 1


class Crowd:
    """Sockets in a process of their own, opened and asked through stdin."""

    def __init__(self) -> None:
        self.transports: list[asyncio.Transport] = []
        self.took: list[float] = []
        self.opened = self.lost = 0
        self.stalled: list[socket.socket] = []

    async def main(self) -> None:
        orders = await lines_of(sys.stdin)
        while line := await orders.readline():
            order, *given = json.loads(line)
            reply(await getattr(self, order)(*given))

    async def open(self, url: str, paths: list[str], cursor: str) -> int:
        place = urlsplit(url)
        for at in range(0, len(paths), 200):
            before = self.opened
            for path in paths[at : at + 200]:
                request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nLast-Event-ID: {cursor}\r\n\r\n".encode()
                await asyncio.get_running_loop().create_connection(
                    lambda request=request: Reader(self, request), place.hostname, place.port
                )
            await until(lambda: self.opened >= before + len(paths[at : at + 200]))
        return self.opened

    async def heard(self, count: int) -> list[float]:
        """How long each of `count` readers waited for what was said, in ms."""
        try:
            await until(lambda: len(self.took) >= count)
        except TimeoutError:
            pass
        took, self.took = self.took, []
        return took

    async def stall(self, url: str, path: str, count: int) -> int:
        place = urlsplit(url)
        for _ in range(count):
            made = socket.socket()
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            made.connect((place.hostname, place.port))
            made.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
            self.stalled.append(made)
        return count

    async def leave(self) -> int:
        for made in self.stalled:
            made.close()
        for transport in self.transports:
            transport.abort()
        self.stalled, self.transports = [], []
        return self.lost


async def lines_of(file: Any) -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=64 << 20)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), file)
    return reader


async def until(done: Callable[[], bool], timeout_s: float = 30) -> None:
    async with asyncio.timeout(timeout_s):
        while not done():
            await asyncio.sleep(0.005)


def reply(value: Any) -> None:
    print(json.dumps(value), flush=True)


def rss() -> float:
    """MB of this process."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 1e6


def main(order: str, *folder: str) -> None:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(Server(*folder).main() if order == "serve" else Crowd().main())


if __name__ == "__main__":
    main(*sys.argv[1:])
