"""Ids: 16 bytes inside, prefixed text at the faces. The only place that draws random numbers.

    2 bytes home · 6 bytes milliseconds · 8 bytes random

The home (16 bits) says which shard an object lives on; what is made in an object's context inherits it. The
milliseconds keep neighbours together on disk; nothing is ever ordered by them.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from typing import Final

from stateroom.errors import NotFound

PREFIXES = {
    "conversation": "conv",
    "session": "sess",
    "run": "run",
    "action": "act",
    "response": "resp",
    "item": "item",
    "branch": "br",
    "memory": "mem",
    "turn": "turn",
    "batch": "batch",
}
ID_BYTES = 16
NIL = bytes(ID_BYTES)


class Dice:
    """Random bytes, drawn many at once: whoever asks the kernel lets go of the interpreter, and with several threads at
    work waits to get it back. Each is given out once; a forked process begins with none of its parent's."""

    SIZE = 4096

    def __init__(self) -> None:
        self._drawn: deque[bytes] = deque()
        os.register_at_fork(after_in_child=self._drawn.clear)

    def eight(self) -> bytes:
        """8 of them; from any thread."""
        while True:
            try:
                return self._drawn.popleft()
            except IndexError:
                drawn = os.urandom(self.SIZE)
                self._drawn.extend(drawn[at : at + 8] for at in range(0, self.SIZE, 8))


_dice: Final = Dice()


def new(home: int, wall_ms: int) -> bytes:
    """A fresh id at `home` (0..65535)."""
    return home.to_bytes(2, "big") + (wall_ms & 0xFFFFFFFFFFFF).to_bytes(6, "big") + _dice.eight()


def new_home() -> int:
    """A home for an object that has no context yet."""
    return int.from_bytes(_dice.eight()[:2], "big")


def home(id_: bytes) -> int:
    """The home an id carries."""
    return (id_[0] << 8) | id_[1]


def key_home(tenant: str, principal: str, key: str) -> int:
    """Where a turn key lives: always the same place for the same key, so that two racing requests meet."""
    digest = hashlib.sha256(f"{tenant}\0{principal}\0{key}".encode()).digest()
    return int.from_bytes(digest[:2], "big")


def salt() -> bytes:
    """16 random bytes that make a digest unguessable."""
    return _dice.eight() + _dice.eight()


def text(kind: str, id_: bytes) -> str:
    """`conv_0123…`: how an id looks outside."""
    return f"{PREFIXES[kind]}_{id_.hex()}"


def parse(kind: str, given: str) -> bytes:
    """The 16 bytes of a textual id. Raises NotFound for anything that is no id of this kind: a malformed id is
    answered exactly like an unknown one."""
    prefix, _, body = given.partition("_")
    if prefix == PREFIXES[kind]:
        return _bytes_of(kind, body, given)
    raise missing(kind, given)


def parse_any(kind: str, given: str) -> bytes:
    """Like `parse`, whatever the prefix: faces show items as `msg_`, `fc_` and so on."""
    return _bytes_of(kind, given.partition("_")[2], given)


def _bytes_of(kind: str, body: str, given: str) -> bytes:
    """The 16 bytes of an id's body. All zeros is no id: inside, it means that there is none."""
    if len(body) == 2 * ID_BYTES and body.isalnum():  # fromhex would skip spaces
        try:
            id_ = bytes.fromhex(body)
        except ValueError:
            id_ = NIL
        if id_ != NIL:
            return id_
    raise missing(kind, given)


def missing(kind: str, given: str | bytes = "") -> NotFound:
    """The one answer for unknown, foreign and malformed ids."""
    shown = given if isinstance(given, str) else text(kind, given)
    return NotFound(f"No {kind} with id '{shown[:80]}'.", facts_kind=kind)
