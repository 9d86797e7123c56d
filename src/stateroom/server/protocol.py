"""HTTP on a connection, with a bound on what comes before a body. Uvicorn's fast parser has none of its own: a client
could fill the memory with header lines."""

from __future__ import annotations

from typing import Any

from stateroom import limits

try:
    from uvicorn.protocols.http import httptools_impl
except ImportError:  # no httptools here: h11 is slower, and bounded through its own setting
    httptools_impl = None  # type: ignore[assignment]


def protocol() -> Any:
    """What uvicorn's `http` option takes."""
    if httptools_impl is None:
        return "h11"

    class Bounded(httptools_impl.HttpToolsProtocol):
        """Cuts a connection whose request line and headers pass the limit."""

        _head = 0

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self._head >= 0:
                self._head += len(data)
                if self._head > limits.HEAD_BYTES_MAX and not self.transport.is_closing():
                    self.send_400_response("The request's head is too large.")

        def on_message_begin(self) -> None:
            self._head = 0
            super().on_message_begin()

        def on_headers_complete(self) -> None:
            self._head = -1
            super().on_headers_complete()

    return Bounded
