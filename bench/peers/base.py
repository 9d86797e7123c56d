"""What a peer implements to be measured."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.peers.replay import Turn


class Peer:
    """A store of conversations with a small state each, in `folder`.

    `stores` and `survives` are printed beside its figures: what it keeps of a turn, and what a turn that returned
    survives. `commits` counts durable transactions; None lets the harness count them in Python's own sqlite3.
    """

    stores = ""
    survives = ""
    commits: int | None = None

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def open(self) -> None: ...

    def native(self, turn: Turn, name: str) -> Any:
        """What the peer's interface takes for a turn; `name` is unique. Not timed."""
        return None

    async def turn(self, conversation: str, turn: Turn) -> None:
        """Read the newest 50 items and the state, parsed, as an agent needs them; add the turn's items; change the
        state. Durable on return, as far as the peer goes. Makes the conversation when there is none."""
        raise NotImplementedError

    async def fill(self, conversation: str, turns: Sequence[Turn]) -> None:
        """Make a past of these turns. Not timed; in bulk where the peer can, which flatters it."""
        for turn in turns:
            await self.turn(conversation, turn)

    async def kept(self, conversation: str) -> int:
        """How many items the store has: it must be all of them."""
        raise NotImplementedError

    async def close(self) -> None: ...

    def disk(self) -> int:
        """Bytes that it takes, once it is closed. Whatever log lies beside a file of SQLite is folded in first."""
        for log in self.folder.rglob("*-wal"):
            connection = sqlite3.connect(str(log)[:-4])
            connection.execute("pragma wal_checkpoint(truncate)")
            connection.close()
        return sum(file.stat().st_size for file in self.folder.rglob("*") if file.is_file())


def arguments(text: str) -> dict[str, Any]:
    """A call's arguments as an object, which some peers insist on."""
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    return value if isinstance(value, dict) else {"raw": value}
