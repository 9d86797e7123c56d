"""Serves a store until it is told to stop: SIGTERM or SIGINT ends it in order, a second one at once."""

from __future__ import annotations

import asyncio
import ipaddress
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import socket

import uvicorn
from starlette.applications import Starlette

from stateroom import limits, stack
from stateroom.errors import InvalidInput
from stateroom.flows.agent import Agent
from stateroom.server.app import create_app
from stateroom.server.auth import read_tokens
from stateroom.server.call import Server
from stateroom.server.protocol import protocol

STOP_S = 2  # connections that are still open by then are cut
GRACE_S = 1.0  # for turns that are being worked on; what is not done by then is recovered at the next start
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
    known = None if tokens is None else read_tokens(tokens)
    if known is None and not is_loopback(host):
        raise InvalidInput(f"Without --tokens only loopback is served, not {host!r}.", code="tokens_needed", param="tokens")
    room = await stack.open(url, agents=agents)
    try:
        await HttpServer(create_app(room, tokens=known), host=host, port=port, ready=greet).serve()
    finally:
        await room.close(grace_s=GRACE_S)


def greet(url: str) -> None:
    """What a newcomer sees."""
    print(_GREETING.replace("URL", url), flush=True)


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
            app, host=host, port=port, http=protocol(), ws="none", lifespan="on", log_config=None, access_log=False,
            server_header=False, timeout_graceful_shutdown=STOP_S, h11_max_incomplete_event_size=limits.HEAD_BYTES_MAX,
        )  # fmt: skip
        super().__init__(config)
        self._face: Server = app.state.server
        self._ready = ready

    async def startup(self, sockets: list[socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            self._ready(f"http://{f'[{host}]' if ':' in host else host}:{port}")

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        self._face.stopping.set()
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
