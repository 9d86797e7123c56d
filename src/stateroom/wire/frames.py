"""Reading server-sent events from a stream that may be cut anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from stateroom.errors import LimitExceeded

FRAME_BYTES_MAX: Final = 16 << 20  # a final event repeats the whole answer and its tools


class Frame(msgspec.Struct, frozen=True):
    """One event as it was sent: its own `id` and `event` ("" where it names none), and the lines after `data:`."""

    id: str
    event: str
    body: bytes


class Frames:
    """Bytes in whatever pieces the network makes; out comes every frame that is complete. Half a frame is none.

    Lines end with LF or CRLF; a lone CR, which the standard allows and nobody sends, does not count.
    """

    def __init__(self) -> None:
        self._pieces: list[bytes] = []  # of a line that has not ended
        self._body: list[bytes] = []  # lines of a frame that has not ended
        self._id = self._event = ""
        self._size = 0

    def feed(self, piece: bytes) -> Iterator[Frame]:
        """LimitExceeded when a frame grows beyond FRAME_BYTES_MAX."""
        self._size += len(piece)
        if self._size > FRAME_BYTES_MAX:
            raise LimitExceeded(f"A frame may have {FRAME_BYTES_MAX} bytes.", code="frame_too_large")
        self._pieces.append(piece)
        if b"\n" not in piece:
            return
        *lines, rest = b"".join(self._pieces).split(b"\n")
        self._pieces = [rest]
        for line in map(_without_cr, lines):
            if line:
                self._line(line)
                continue
            if self._body:
                yield Frame(self._id, self._event, b"\n".join(self._body))
            self._body, self._id, self._event = [], "", ""
        self._size = len(rest) + sum(map(len, self._body))

    def _line(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._body.append(value)
        elif name == b"id":
            self._id = value.decode(errors="replace")
        elif name == b"event":
            self._event = value.decode(errors="replace")


def _without_cr(line: bytes) -> bytes:
    return line.removesuffix(b"\r")
