"""What lies under HTTP and WebSocket: a bound on what comes before a body, bounds on what waits to be sent, and a last word
to a socket that does not read. Uvicorn's fast parser has none of these: a client could fill the memory with header
lines, and one that stops reading could never be told so.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any, cast

from stateroom import limits

try:
    from uvicorn.protocols.http import httptools_impl
except ImportError:  # no httptools here: h11 is slower, and bounded through its own setting
    httptools_impl = None  # type: ignore[assignment]
try:
    from uvicorn.protocols.websockets import websockets_sansio_impl
except ImportError:  # no websockets here: only HTTP is served
    websockets_sansio_impl = None  # type: ignore[assignment]

# ASGI extensions: say something behind what is buffered, whether it is read or not, and close; or cut the socket now.
LAST_WORD, CUT = "stateroom.last_word", "stateroom.cut"
_UNSENT: int | None = getattr(socket, "TCP_NOTSENT_LOWAT", None)


def http() -> Any:
    """What uvicorn's `http` option takes."""
    if httptools_impl is None:
        return "h11"

    class Bounded(httptools_impl.HttpToolsProtocol):
        """Cuts a connection whose request line and headers pass the limit."""

        _head = 0

        def connection_made(self, transport: Any) -> None:
            bound(transport)
            super().connection_made(transport)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self._head >= 0:
                self._head += len(data)
                if self._head > limits.HEAD_BYTES_MAX and not self.transport.is_closing():
                    self.send_400_response("The request's head is too large.")

        def on_message_begin(self) -> None:
            self._head = 0
            super().on_message_begin()
            cast(dict[str, Any], self.scope)["extensions"] = {LAST_WORD: self.last_word, CUT: self.cut}

        def on_headers_complete(self) -> None:
            self._head = -1
            super().on_headers_complete()

        def last_word(self, data: bytes) -> None:
            """The end of an answer that is sent in chunks."""
            self.cycle.response_complete = True
            say_last(self.transport, b"%x\r\n%s\r\n0\r\n\r\n" % (len(data), data))

        def cut(self) -> None:
            self.cycle.response_complete = True
            self.transport.abort()

    return Bounded


def websocket() -> Any:
    """What uvicorn's `ws` option takes."""
    if websockets_sansio_impl is None:
        return "none"

    class Bounded(websockets_sansio_impl.WebSocketsSansIOProtocol):
        def connection_made(self, transport: Any) -> None:
            bound(transport)
            super().connection_made(transport)

        async def run_asgi(self) -> None:
            cast(dict[str, Any], self.scope)["extensions"] |= {LAST_WORD: self.last_word, CUT: self.transport.abort}
            await super().run_asgi()

        def last_word(self, data: bytes, code: int, reason: str) -> None:
            """A frame and the close of the socket."""
            self.conn.send_text(data)
            self.conn.send_close(code, reason)
            self.close_sent = True
            say_last(self.transport, b"".join(self.conn.data_to_send()))

    return Bounded


def bound(transport: asyncio.Transport) -> None:
    """Half of what may wait for one reader lies here, half in the kernel, where it would else be megabytes."""
    transport.set_write_buffer_limits(high=limits.SOCKET_BYTES_MAX // 2)
    if _UNSENT is not None and (under := transport.get_extra_info("socket")) is not None:
        under.setsockopt(socket.IPPROTO_TCP, _UNSENT, limits.SOCKET_BYTES_MAX // 2)


def say_last(transport: asyncio.Transport, data: bytes) -> None:
    """Close behind these bytes; cut when they are not read in time."""

    def cut() -> None:
        if transport.get_write_buffer_size():
            transport.abort()

    transport.write(data)
    transport.close()
    asyncio.get_running_loop().call_later(limits.STALL_S, cut)
