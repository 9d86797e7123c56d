"""A process of the crowd's measurement, asked line by line: `python -m bench.session.worker URL SESSIONS`.

    ["fill", FIRST, COUNT]   sessions as the product writes them, many in a transaction
    ["work", NUMBERS]        hydrate these sessions, which it has not seen, and change a slot of each: both times, in s
    ["memory"]               bytes of memory that this process has (RSS)

Which sessions there are is computed, not kept: who knows a million of them may not be larger for it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import psutil

import stateroom
from stateroom import LOCAL, Room, ids
from stateroom.backends.sqlite.backend import SqliteBackend
from stateroom.backends.writer import Entry
from stateroom.batch import Batch
from stateroom.session.model import OpenSession, PatchSlots
from stateroom.session.service import patches_of

BORN_MS = 1_700_000_000_000
TTL_MS = 30 * 86_400_000  # each has a line in the table of what is due
SLOTS, TEXT = ("task", "cart"), "x" * 200
TOGETHER = 1_000  # in one transaction of the filling
AT_ONCE = 64  # of those who fill a store whose commits are its own


def session_of(number: int, count: int) -> bytes:
    """The id of the session with that number: spread over all homes, and in their order, so that filling goes on where it
    was."""
    home = number * 65_536 // count
    return home.to_bytes(2, "big") + BORN_MS.to_bytes(6, "big") + hashlib.sha256(str(number).encode()).digest()[:8]


def opening(number: int, count: int) -> Batch:
    """What `Sessions.open` commits, with an id and a time that are chosen."""
    id_, scope = session_of(number, count), LOCAL
    first = patches_of({name: {"number": number, "text": TEXT} for name in SLOTS})
    writes = (
        OpenSession(id=id_, owner=scope.principal, subject=scope.principal, metadata=b"{}", ttl_ms=TTL_MS),
        PatchSlots(session=id_, patches=tuple(first), by=scope.principal),
    )
    return Batch(id=ids.new(ids.home(id_), BORN_MS), scope=scope, at=BORN_MS + number, writes=writes)


class Worker:
    def __init__(self, room: Room, count: int) -> None:
        self.room, self.count = room, count

    async def fill(self, first: int, count: int) -> int:
        """Through the store's own writing. On SQLite in transactions that are larger than it would make them: the same rows,
        fewer fsyncs."""
        backend, batches = self.room.stack.backend, (opening(number, self.count) for number in range(first, first + count))
        if isinstance(backend, SqliteBackend):
            entries = [Entry(batch) for batch in batches]
            for start in range(0, count, TOGETHER):
                backend._commit_group(entries[start : start + TOGETHER])
            for entry in entries:
                entry.result()
        else:

            async def some() -> None:
                for batch in batches:
                    await backend.commit(batch)

            await asyncio.gather(*(some() for _ in range(AT_ONCE)))
        return count

    async def work(self, numbers: list[int]) -> tuple[list[float], list[float]]:
        hydrated, patched = list[float](), list[float]()
        for number in numbers:
            name, began = ids.text("session", session_of(number, self.count)), time.perf_counter()
            desk = await self.room.session(name)
            there = time.perf_counter()
            await desk.patch({"cart": {"number": number, "text": TEXT[::-1]}})
            patched.append(time.perf_counter() - there)
            hydrated.append(there - began)
            assert desk.version >= 2
            assert desk.state["task"] == {"number": number, "text": TEXT}, "what was filled is what is read"
        return hydrated, patched

    async def memory(self) -> int:
        return int(psutil.Process().memory_info().rss)


async def main(url: str, count: int) -> None:
    loop = asyncio.get_running_loop()
    async with await stateroom.open(url) as room:
        worker = Worker(room, count)
        answer("ready")
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            order, *given = json.loads(line)
            answer(await getattr(worker, order)(*given))


def answer(value: Any) -> None:
    print(json.dumps(value), flush=True)


def folder_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
