"""P19 at SQLite's own door: a VFS that fails the n-th write or sync, for every n, while several batches share a group.

Whatever was acknowledged is there afterwards, whatever was refused is not, and the store works on.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from stateroom import ids
from stateroom.backends.sqlite.backend import SqliteBackend
from stateroom.batch import Batch
from stateroom.conversation.model import Append, CreateConversation, ItemQuery
from stateroom.conversation.rules import draft
from stateroom.errors import StateroomError, StorageFull, Unavailable
from stateroom.principal import LOCAL

pytestmark = pytest.mark.anyio
WRITERS, ROUNDS = 4, 3


class Faults:
    """Counts writes and syncs and fails the one it is told to, once."""

    def __init__(self) -> None:
        self.at, self.seen, self.kind, self.fired = 0, 0, "write", False
        self.always = False  # from that one on

    def tick(self, kind: str) -> None:
        if self.at and kind == self.kind:
            self.seen += 1
            if self.seen == self.at or (self.always and self.seen > self.at):
                self.fired = True
                raise apsw.FullError("no room") if kind == "write" else apsw.IOError("fsync failed")


class FaultyFile(apsw.VFSFile):
    def __init__(self, faults: Faults, name: Any, flags: list[int]) -> None:
        super().__init__("", name, flags)
        self._faults = faults

    def xWrite(self, data: bytes, offset: int) -> None:
        self._faults.tick("write")
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:
        self._faults.tick("sync")
        super().xSync(flags)


class FaultyVfs(apsw.VFS):
    def __init__(self, name: str, faults: Faults) -> None:
        self._faults = faults
        super().__init__(name, base="")

    def xOpen(self, name: Any, flags: list[int]) -> FaultyFile:
        return FaultyFile(self._faults, name, flags)


@pytest.fixture
def faults() -> Iterator[Faults]:
    made = Faults()
    vfs = FaultyVfs("faulty", made)
    yield made
    made.at = 0
    vfs.unregister()


def batch(*writes: Any) -> Batch:
    return Batch(id=ids.new(7, 1), scope=LOCAL, at=1, writes=writes)


def text(n: int, writer: int) -> bytes:
    return b'{"type":"message","role":"user","content":"%d of %d"}' % (n, writer)


def write_all(store: SqliteBackend, conversations: list[bytes]) -> tuple[list[tuple[bytes, bytes]], list[Exception]]:
    """Several threads append at once; what was acknowledged, and what was said otherwise."""
    acknowledged: list[tuple[bytes, bytes]] = []
    refused: list[Exception] = []

    def one(writer: int) -> None:
        for n in range(ROUNDS):
            body = text(n, writer)
            item = draft(ids.new(7, 1), {"type": "message", "role": "user"}, body)
            try:
                store.commit_now(batch(Append(branch=conversations[writer], items=(item,))))
                acknowledged.append((conversations[writer], body))
            except StateroomError as error:
                refused.append(error)

    threads = [threading.Thread(target=one, args=(writer,)) for writer in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads), "nobody waits for ever"
    return acknowledged, refused


async def trial(place: Path, faults: Faults, *, kind: str, at: int) -> bool:
    """One store, one fault. Whether it fired."""
    store = await SqliteBackend.open(place, vfs="faulty")
    conversations = [ids.new(7, 1) for _ in range(WRITERS)]
    for id_ in conversations:
        store.commit_now(batch(CreateConversation(id=id_, owner="local", subject="local")))
    faults.kind, faults.at, faults.seen, faults.fired = kind, at, 0, False
    acknowledged, refused = write_all(store, conversations)
    faults.at = 0
    assert all(isinstance(error, (StorageFull, Unavailable)) for error in refused), refused
    more, none = write_all(store, conversations)
    assert not none, "the store works on"
    await store.close()
    await verify(place, conversations, acknowledged + more)
    return faults.fired


async def verify(place: Path, conversations: list[bytes], acknowledged: list[tuple[bytes, bytes]]) -> None:
    again = await SqliteBackend.open(place)
    found = []
    for id_ in conversations:
        items = await again.items(LOCAL, ItemQuery(branch=id_, limit=100))
        assert [item.seq for item in items] == list(range(1, len(items) + 1))
        found += [(id_, item.body) for item in items]
    assert sorted(found) == sorted(acknowledged), "acknowledged is there exactly once, refused is not there"
    await again.close()
    db = apsw.Connection(str(place / "state.db"))
    assert db.execute("pragma integrity_check").fetchall() == [("ok",)]
    db.close()


@pytest.mark.parametrize("kind", ["write", "sync"])
async def test_P19_every_write_and_every_sync_may_fail(tmp_path: Path, faults: Faults, kind: str) -> None:
    tried = 0
    for at in range(1, 200):
        if not await trial(tmp_path / str(at), faults, kind=kind, at=at):
            break
        tried += 1
    assert tried >= 3, "the sweep reached the end of the work"
    print(f"{tried} {kind} faults, 0 acknowledged lost")
