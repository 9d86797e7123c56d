"""A network that fails on purpose: a TCP proxy that cuts, resets, stalls or refuses connections as it is told."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

How = Literal["close", "reset", "stall", "refuse", "unavailable"]
STALL_S = 2.0  # longer than any client here is patient with a silent connection
BUSY = b"HTTP/1.1 502 Bad Gateway\r\ncontent-type: text/html\r\ncontent-length: 14\r\nconnection: close\r\n\r\n<h1>oops</h1>\n"


class Fault(NamedTuple):
    """What happens to one connection after so many bytes of the answer."""

    how: How
    after: int = 0


class Chaos:
    """The proxy. Each new connection meets the next of `faults`; when there are none left, it is passed through."""

    def __init__(self, server: str) -> None:
        place = urlsplit(server)
        self._server = (place.hostname or "", place.port or 0)
        self.faults: deque[Fault] = deque()
        self.connections = 0
        self.answers: list[bytes] = []  # what the server sent on each
        self._listening = listening()
        self.url = "http://{}:{}".format(*self._listening.getsockname())

    async def serve(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        with self._listening:
            async with asyncio.TaskGroup() as connections:
                while True:
                    client, _ = await loop.sock_accept(self._listening)
                    self.connections += 1
                    connections.create_task(self._connection(client, self.faults.popleft() if self.faults else None))

    async def _connection(self, client: socket.socket, fault: Fault | None) -> None:
        with client, suppress(OSError):
            if fault is not None and fault.how == "unavailable":
                loop = asyncio.get_running_loop()
                await loop.sock_recv(client, 65536)
                await loop.sock_sendall(client, BUSY)
            elif fault is None or fault.how != "refuse":
                await self._pass(client, fault)
            if fault is not None and fault.how == "reset":  # RST instead of FIN
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    async def _pass(self, client: socket.socket, fault: Fault | None) -> None:
        loop = asyncio.get_running_loop()
        with new_socket() as server:
            await loop.sock_connect(server, self._server)
            asking = asyncio.create_task(pump(client, server))
            try:
                await self._answer(server, client, fault)
            finally:
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)

    async def _answer(self, server: socket.socket, client: socket.socket, fault: Fault | None) -> None:
        loop, at, answer = asyncio.get_running_loop(), len(self.answers), b""
        self.answers.append(answer)
        while piece := await loop.sock_recv(server, 65536):
            allowed = len(piece) if fault is None else min(len(piece), fault.after - len(answer))
            self.answers[at] = answer = answer + piece
            await loop.sock_sendall(client, piece[:allowed])
            if fault is None or len(answer) < fault.after:
                continue
            if fault.how == "stall":
                await asyncio.sleep(STALL_S)
            return


async def pump(source: socket.socket, target: socket.socket) -> None:
    """One direction, to its end."""
    loop = asyncio.get_running_loop()
    while piece := await loop.sock_recv(source, 65536):
        await loop.sock_sendall(target, piece)
    target.shutdown(socket.SHUT_WR)


def new_socket() -> socket.socket:
    made = socket.socket()
    made.setblocking(False)
    return made


def listening() -> socket.socket:
    made = new_socket()
    made.bind(("127.0.0.1", 0))
    made.listen(100)
    return made


@contextmanager
def between(server: str) -> Iterator[Chaos]:
    """The proxy in front of a server, in a thread of its own."""
    chaos, loop = Chaos(server), asyncio.new_event_loop()
    serving = loop.create_task(chaos.serve())

    def run() -> None:
        with suppress(asyncio.CancelledError):
            loop.run_until_complete(serving)
        loop.close()

    thread = threading.Thread(target=run, name="chaos")
    thread.start()
    try:
        yield chaos
    finally:
        loop.call_soon_threadsafe(serving.cancel)
        thread.join(10)
        assert not thread.is_alive()
