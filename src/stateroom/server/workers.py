"""Many processes on one store: a parent that binds the socket, and workers that all take connections from it.

They share that socket and the store, and nothing else: any of them answers any request, and what one works on, the others
show, follow, cancel and, when it dies, take up. The parent knows of no request. It starts a worker that died again, tells
all of them to end when it is told, and is gone when they are; when it is gone first, they end too.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import signal
import socket
from asyncio.subprocess import Process
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, cast

import uvicorn

from stateroom import stack
from stateroom.errors import Unavailable
from stateroom.flows.agent import Agent
from stateroom.server.app import create_app
from stateroom.server.run import HttpServer, collect_seldom, known_tokens, url_of

log = logging.getLogger("stateroom.workers")
BACKLOG: Final = 2048
END_S_MAX: Final = 10.0  # what has not ended by then is killed
STEADY_S: Final = 10.0  # a worker that lived this long did not die of its start
RESTART_S: Final = 0.1  # after its second death in a row, doubled with every other one, up to …
RESTART_S_MAX: Final = 5.0
TURN_S: Final = 0.001  # after a connection was taken, while others may take the next
ACCEPT_AGAIN_S: Final = 0.1
_READY: Final = b"r"


def listen(host: str, port: int) -> socket.socket:
    """The socket that the workers share. Unavailable (`port_taken`) when somebody listens there already."""
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
        made.listen(BACKLOG)
    except OSError as error:
        made.close()
        raise Unavailable(f"{host}:{port} cannot be listened on: {error.strerror}.", code="port_taken", param="port") from error
    made.setblocking(False)
    return made


async def work(
    url: str, agents: Iterable[Agent], *, listening: socket.socket, parent: socket.socket, tokens: Path | None = None
) -> None:
    """Be a worker: serve what `listening` takes until a signal comes or the parent is gone. Tells the parent when ready."""
    host, port = listening.getsockname()[:2]
    known = known_tokens(tokens, host)
    collect_seldom()
    room = await stack.open(url, agents=agents)
    app = create_app(room, tokens=known)
    server = _Sharing(app, host=host, port=port, ready=lambda _: parent.sendall(_READY))
    orphaned = asyncio.create_task(_stop_without(parent, server))
    try:
        await server.serve(sockets=[listening])
    finally:
        orphaned.cancel()
        await room.close(grace_s=app.state.server.grace_s())
        parent.close()


class _Sharing(HttpServer):
    """Takes one connection, then lets the others have their turn. The loop's own server takes all that wait, so that one
    worker would get a whole burst (measured: 16 of 16) and keep it for as long as the connections live."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        assert sockets
        listening = sockets[0]
        await uvicorn.Server.startup(self, [])
        listening.setblocking(False)
        self._accepting = asyncio.create_task(self._accept(listening), name="accepting")
        self._accepting.add_done_callback(self._deaf)
        self._ready(url_of(listening.getsockname()))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._accepting.cancel()
        await asyncio.gather(self._accepting, return_exceptions=True)
        await super().shutdown(sockets)

    def _deaf(self, accepting: asyncio.Task[None]) -> None:
        """A worker that can take nothing any more makes room for one that can."""
        if not accepting.cancelled():
            log.error("a worker takes no more connections", exc_info=accepting.exception())
            self.stop()

    async def _accept(self, listening: socket.socket) -> None:
        loop, made = asyncio.get_running_loop(), cast(Any, self.config.http_protocol_class)
        protocol = functools.partial(
            made, config=self.config, server_state=self.server_state, app_state=self.lifespan.state, _loop=loop
        )
        while True:
            try:
                connection, _ = await loop.sock_accept(listening)
                await loop.connect_accepted_socket(protocol, connection)
                await asyncio.sleep(TURN_S)
            except OSError as error:  # too many files are open, or it was gone before it was taken
                log.warning("a connection could not be taken: %s", error)
                await asyncio.sleep(ACCEPT_AGAIN_S)


async def _stop_without(parent: socket.socket, server: HttpServer) -> None:
    parent.setblocking(False)
    while await asyncio.get_running_loop().sock_recv(parent, 1):
        pass
    server.stop()


class Workers:
    """`count` processes of `command`, which gets two descriptors and then `argv` as its last arguments."""

    def __init__(self, command: Sequence[str], argv: Sequence[str], *, listening: socket.socket, count: int) -> None:
        self._command, self._argv, self._listening, self._count = command, argv, listening, count
        self._processes: set[Process] = set()
        self._stopping = asyncio.Event()
        self._status = 0

    async def run(self, ready: Callable[[str], None]) -> int:
        """Until a signal came and all are gone. Calls `ready` with the address once all take requests. Returns 0, or the
        status of a worker that could not even start."""
        loop, signals = asyncio.get_running_loop(), (signal.SIGINT, signal.SIGTERM)
        for number in signals:
            loop.add_signal_handler(number, self.stop)
        try:
            async with asyncio.TaskGroup() as group:
                await self._begin(group, 1)  # alone: it makes the store, or says why it cannot
                await self._begin(group, self._count - 1)
                if not self._stopping.is_set():
                    ready(url_of(self._listening.getsockname()))
        finally:
            for number in signals:
                loop.remove_signal_handler(number)
        return self._status

    def stop(self) -> None:
        """All end in order; asked again, at once."""
        self._stopping.set()
        for process in self._processes:
            with suppress(ProcessLookupError):
                process.terminate()

    async def _begin(self, group: asyncio.TaskGroup, count: int) -> None:
        """So many workers that are kept alive; returns when all of them are up, or will never be."""
        ups = [asyncio.Event() for _ in range(0 if self._stopping.is_set() else count)]
        for up in ups:
            group.create_task(self._keep(up))
        for up in ups:
            await up.wait()

    async def _keep(self, up: asyncio.Event) -> None:
        """One worker after the other, until we stop. `up` is set when the first takes requests, or is gone."""
        loop, deaths = asyncio.get_running_loop(), 0
        while not self._stopping.is_set():
            began = loop.time()
            status = await self._live(up)
            if self._stopping.is_set():
                break
            if not up.is_set():  # what is wrong with it is wrong with all of them, and it has said what
                self._status = abs(status) or 1
                self.stop()
                break
            deaths = 1 if loop.time() - began > STEADY_S else deaths + 1
            log.warning("a worker ended with status %d, another one starts", status)
            await self._pause(restart_s(deaths))
        up.set()

    async def _live(self, up: asyncio.Event) -> int:
        """One worker from its start to its end; its status."""
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                fds = (self._listening.fileno(), theirs.fileno())
                process = await asyncio.create_subprocess_exec(
                    *self._command, *map(str, fds), *self._argv, pass_fds=fds,
                    start_new_session=True,  # a Ctrl-C at the terminal is ours to pass on
                )  # fmt: skip
            self._processes.add(process)
            if self._stopping.is_set():
                process.terminate()
            ours.setblocking(False)
            if await asyncio.get_running_loop().sock_recv(ours, len(_READY)):
                up.set()
            status = await self._end(process)
        self._processes.discard(process)
        return status

    async def _end(self, process: Process) -> int:
        """Wait for it, and not for ever once we stop."""
        ended, stopping = asyncio.ensure_future(process.wait()), asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait({ended, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        await asyncio.wait({ended}, timeout=END_S_MAX)
        if not ended.done():
            log.warning("a worker did not end within %.0f s and is killed", END_S_MAX)
            process.kill()
        return await ended

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)


def restart_s(deaths: int) -> float:
    """How long to wait after so many deaths in a row: not at all after the first."""
    return 0.0 if deaths <= 1 else min(RESTART_S * 2 ** min(deaths - 2, 16), RESTART_S_MAX)
