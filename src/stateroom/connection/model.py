"""The connection room: one socket and its cursor. Disposable by design: nothing here is durable."""

from __future__ import annotations

import hashlib

import msgspec

from stateroom.errors import CursorInvalid, Gone


class Cursor(msgspec.Struct, frozen=True):
    """How far a reader has come in one run's stream: `epoch.seq`, the SSE id and `Last-Event-ID`.

    `epoch` names the incarnation of this run's stream, so that a cursor of another run or of a log that was reset is
    told apart from a good one instead of showing other content (P6). `seq` is the last event seen; 0: none yet.
    """

    epoch: str
    seq: int

    def __str__(self) -> str:
        return f"{self.epoch}.{self.seq}"


def epoch_of(store_epoch: int, run: bytes, log_epoch: int = 0) -> str:
    """The epoch of a run's stream in this incarnation of the store and of its log (a compaction starts another)."""
    told = store_epoch.to_bytes(8, "big") + run + (log_epoch.to_bytes(4, "big") if log_epoch else b"")
    return hashlib.sha256(told).hexdigest()[:8]


def parse(given: str, *, epoch: str) -> Cursor:
    """Read a cursor for the stream with this epoch. CursorInvalid (400) when malformed, Gone (410) when it belongs to
    another run or to a stream that was reset."""
    named, dot, seq = given.partition(".")
    if not dot or len(named) != 8 or not seq.isascii() or not seq.isdigit() or len(seq) > 15:
        raise CursorInvalid("A cursor looks like 'epoch.seq', as in the SSE id.", param="Last-Event-ID")
    if named != epoch:
        raise Gone("This cursor belongs to another stream, or the stream was reset: read from the start.", code="cursor_gone")
    return Cursor(epoch=named, seq=int(seq))
