"""An ephemeral desk beside a conversation, written until the process is killed: by chance, or at a write into the second file.

    python ephemeral_plays.py FOLDER        writes for ever; each acknowledged change is a line on stdout

Every tenth change of the desk says something in the conversation as well, in the same batch: the number that the desk has then.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import apsw

from stateroom import ids
from stateroom.backends.base import Backend
from stateroom.backends.sql import ephemeral
from stateroom.backends.sqlite import backend
from stateroom.backends.sqlite.backend import SqliteBackend
from stateroom.batch import Batch, Write
from stateroom.conversation.model import Append, CreateConversation, ItemQuery
from stateroom.conversation.rules import draft
from stateroom.errors import StateroomError
from stateroom.principal import LOCAL
from stateroom.session.model import OpenSession, PatchSlots, SlotPatch

HOME = 7
CONVERSATION, DESK = (HOME.to_bytes(2, "big") + name.ljust(14, b"\0") for name in (b"conversation", b"desk"))


class Killer(apsw.VFS):
    """Kills the process at the n-th write into the second file's log."""

    def __init__(self) -> None:
        self.left = 0
        super().__init__("killer", base="")

    def xOpen(self, name: Any, flags: list[int]) -> KillerFile:
        file = name.filename() if isinstance(name, apsw.URIFilename) else str(name or "")
        return KillerFile(self, name, flags, watched=file.endswith("ephemeral.db-wal"))


class KillerFile(apsw.VFSFile):
    def __init__(self, killer: Killer, name: Any, flags: list[int], *, watched: bool) -> None:
        super().__init__("", name, flags)
        self._killer, self._watched = killer, watched

    def xWrite(self, data: bytes, offset: int) -> None:
        if self._watched and self._killer.left:
            self._killer.left -= 1
            if not self._killer.left:
                os.kill(os.getpid(), signal.SIGKILL)
        super().xWrite(data, offset)


async def commit(store: Backend, *writes: Write) -> None:
    await store.commit(Batch(id=ids.new(HOME, store.clock.wall_ms()), scope=LOCAL, at=1, writes=writes))


async def begins(store: Backend) -> None:
    desk = OpenSession(
        id=DESK, owner="local", subject="local", conversation=CONVERSATION, agent="a", durability="ephemeral", ttl_ms=3_600_000
    )
    await commit(store, CreateConversation(id=CONVERSATION, owner="local", subject="local"), desk)


def changes(n: int) -> PatchSlots:
    """Two slots that always say the same."""
    body = str(n).encode()
    return PatchSlots(session=DESK, by="local", patches=tuple(SlotPatch(name=name, body=body) for name in ("n", "m")))


def says(n: int) -> Append:
    body = b'{"type":"message","role":"user","content":"%d"}' % n
    return Append(branch=CONVERSATION, items=(draft(ids.new(HOME, 1), {"type": "message", "role": "user"}, body),))


async def dies(folder: Path, *, at: int, build: str = "") -> None:
    """Ten changes, every other one said as well, and death at the `at`-th write."""
    killer = Killer()
    if build == "no redo":
        backend.number = lambda db, statements: None  # type: ignore[assignment]
    if build == "neither":
        backend.number, ephemeral.raise_floors = (lambda db, statements: None), (lambda tx: None)  # type: ignore[assignment]
    store = await SqliteBackend.open(folder / "store", vfs="killer")
    await begins(store)
    await commit(store, changes(1), says(1))
    killer.left = at
    for n in range(2, 12):
        await commit(store, changes(n), *([says(n)] if n % 2 else []))
    killer.left = 0
    await store.close()


class Found:
    """What is there afterwards."""

    def __init__(self, said: list[int], desk: list[int], error: str) -> None:
        self.said, self.desk, self.error = said, desk, error

    def faults(self, every: int) -> list[str]:
        """What must not be, whatever happened."""
        if self.error:
            return [] if self.error == "state_lost" else [self.error]
        found, last = set(self.desk), max(self.said, default=0)
        if len(found) != 1:
            return [f"half of a change: {self.desk}"]
        (n,) = found
        due = max((k for k in range(n + 1) if k % every == every - 1), default=0)
        faults = [f"the desk is at {n}, and {last} was said"] if n < last else []
        return faults + ([f"the desk is at {n}, and {due} was never said"] if last < due else [])


async def found(store: Backend) -> Found:
    items = await store.items(LOCAL, ItemQuery(branch=CONVERSATION, limit=1000, newest_first=True))
    said = [int(item.body.split(b'"content":"')[1].split(b'"')[0]) for item in items]
    try:
        desk = [int(slot.body or b"0") for slot in await store.slots(LOCAL, DESK)]
    except StateroomError as error:
        return Found(said, [], error.reason)
    return Found(said, desk or [0, 0], "")


async def main(folder: Path) -> None:
    store = await SqliteBackend.open(folder)
    await begins(store)
    n = 0
    while True:
        n += 1
        await commit(store, changes(n), *([says(n)] if n % 10 == 9 else []))
        os.write(1, b"%d\n" % n)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
