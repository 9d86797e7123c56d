"""Reading server-sent events from a stream that may be cut anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from stateroom.errors import LimitExceeded

FRAME_BYTES_MAX: Final = 16 << 20  # a final event repeats the whole answer and its tools


class Frames:
    """Bytes in whatever pieces the network makes; out comes the data of every frame that is complete.

    Lines end with LF or CRLF; a lone CR, which the standard allows and nobody sends, does not count.
    """

    def __init__(self) -> None:
        self._pieces: list[bytes] = []  # of a line that has not ended
        self._data: list[bytes] = []  # lines of a frame that has not ended
        self._size = 0

    def feed(self, piece: bytes) -> Iterator[bytes]:
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
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                yield b"\n".join(self._data)
                self._data = []
        self._size = len(rest) + sum(map(len, self._data))


def _without_cr(line: bytes) -> bytes:
    return line.removesuffix(b"\r")
