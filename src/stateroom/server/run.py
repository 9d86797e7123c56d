"""Serves a store until it is told to stop: SIGTERM or SIGINT ends it in order, a second one at once."""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import socket
from typing import Any

import uvicorn
from starlette.applications import Starlette

from stateroom import limits, stack
from stateroom.errors import InvalidInput
from stateroom.flows.agent import Agent
from stateroom.server import protocol
from stateroom.server.app import create_app
from stateroom.server.auth import Token, read_tokens
from stateroom.server.call import Server

DRAIN_S = 0.5  # for streams to end between two events
STOP_S = 1  # after that for other answers; connections that are still open by then are cut
_GREETING = """Stateroom is ready at URL

Take a turn, go on with it (put the id in), and see what is there:
  curl -s URL/v1/responses -d '{"input": "I need black running shoes in size 10"}'
  curl -s URL/v1/responses -d '{"input": "show me cheaper ones", "previous_response_id": "resp_…"}'
  curl -s URL/v1/runs
"""


async def serve(
    url: str, agents: Iterable[Agent] = (), *, host: str = "127.0.0.1", port: int = 8700, tokens: Path | None = None
) -> None:
    """Open a store and serve it until a signal comes. `port` 0 takes a free one; `tokens` is the file auth reads. Says
    on stdout where it is and how to try it, once requests are taken. Refuses to serve others without tokens."""
    known = known_tokens(tokens, host)
    collect_seldom()
    room = await stack.open(url, agents=agents)
    app = create_app(room, tokens=known)
    try:
        await HttpServer(app, host=host, port=port, ready=greet).serve()
    finally:
        await room.close(grace_s=app.state.server.grace_s())


def collect_seldom() -> None:
    """For a process that does nothing but serve. The collector of cycles walks through all that is alive: beside thousands of
    open streams that takes most of a second, in which nobody is served; and next to nothing of ours is a cycle."""
    gc.set_threshold(50_000, 20, 50)


def known_tokens(tokens: Path | None, host: str) -> tuple[Token, ...] | None:
    """Who may come in; None: everybody on this machine. InvalidInput when that would be everybody elsewhere too."""
    if tokens is None and not is_loopback(host):
        raise InvalidInput(f"Without --tokens only loopback is served, not {host!r}.", code="tokens_needed", param="tokens")
    return None if tokens is None else read_tokens(tokens)


def greet(url: str) -> None:
    """What a newcomer sees."""
    print(_GREETING.replace("URL", url), flush=True)


def url_of(name: tuple[Any, ...]) -> str:
    """The address of a listening socket, by its name."""
    host, port = name[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach that address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class HttpServer(uvicorn.Server):
    """Uvicorn with our order of ending: streams first, then connections, then the room."""

    def __init__(self, app: Starlette, *, host: str, port: int, ready: Callable[[str], None]) -> None:
        config = uvicorn.Config(
            app, host=host, port=port, lifespan="on", log_config=None, access_log=False, server_header=False,
            http=protocol.http(), h11_max_incomplete_event_size=limits.HEAD_BYTES_MAX, timeout_graceful_shutdown=STOP_S,
            ws=protocol.websocket(), ws_max_size=limits.BODY_BYTES_MAX, ws_per_message_deflate=False,
        )  # fmt: skip
        super().__init__(config)
        self._face: Server = app.state.server
        self._ready = ready

    async def startup(self, sockets: list[socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready(url_of(self.servers[0].sockets[0].getsockname()))

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        self._face.stop()
        await self._face.pulse.drained(DRAIN_S)
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals end the loop in order, and the process with status 0. Only the main thread hears them."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        signals = (signal.SIGINT, signal.SIGTERM)
        for number in signals:
            loop.add_signal_handler(number, self.stop)
        try:
            yield
        finally:
            for number in signals:
                loop.remove_signal_handler(number)

    def stop(self) -> None:
        """End in order; asked again, at once."""
        self.force_exit = self.should_exit
        self.should_exit = True
