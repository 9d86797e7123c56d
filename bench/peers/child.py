"""One peer in a process of its own. Reads orders from its parent, a JSON line each, and answers with one.

Nothing runs between two orders, so the parent can go round the peers in small steps: what the machine does in a minute
then hits all of them alike.
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import os
import re
import resource
import sqlite3
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from bench import peers
from bench.peers import replay
from bench.peers.base import Peer

ORDER_S_MAX = 240


class Child:
    def __init__(self, name: str, folder: Path, conversations: int, store: str = "sqlite") -> None:
        self.name, self.folder, self.store = name, folder, store
        self.loop = asyncio.new_event_loop()
        self.conversations = replay.conversations(conversations)
        self.more: dict[str, list[replay.Turn]] = {}
        self.peer: Peer
        self.open("replay")
        for n, turns in enumerate(self.conversations):
            self.prepare(f"real-{n}", turns)

    def open(self, folder: str) -> None:
        """A fresh store, with one conversation to warm up: caches of statements, pools, imports made late."""
        (self.folder / folder).mkdir()
        self.peer = peers.make(self.name, self.folder / folder, self.store)
        self.loop.run_until_complete(self.peer.open())
        self.prepare("warm", self.conversations[0])
        self.timed("warm", self.conversations[0])

    def close(self) -> None:
        self.loop.run_until_complete(self.peer.close())

    def end(self) -> None:
        self.close()
        self.loop.close()

    def prepare(self, name: str, turns: list[replay.Turn]) -> None:
        for n, turn in enumerate(turns):
            turn.native = self.peer.native(turn, f"{name}-{n}")

    def timed(self, conversation: str, turns: list[replay.Turn]) -> dict[str, Any]:
        spent: list[float] = []

        async def work() -> None:
            for turn in turns:
                start = time.perf_counter()
                await self.peer.turn(conversation, turn)
                spent.append(time.perf_counter() - start)

        cpu = time.process_time()
        self.loop.run_until_complete(work())
        return {"s": spent, "cpu_s": time.process_time() - cpu}

    def check(self, conversation: str, turns: list[replay.Turn]) -> None:
        kept, due = self.loop.run_until_complete(self.peer.kept(conversation)), sum(len(turn.items) for turn in turns)
        assert kept == due, f"{self.name} kept {kept} items of {due}"

    # ── orders ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def about(self) -> dict[str, Any]:
        return {"stores": self.peer.stores, "survives": self.peer.survives}

    def real(self, number: int) -> dict[str, Any]:
        """A real conversation from its first turn to its last."""
        figures = self.timed(f"real-{number}", self.conversations[number])
        self.check(f"real-{number}", self.conversations[number])
        return figures

    def end_real(self) -> dict[str, Any]:
        """Figures of the whole replay. From here on the growth run, in a store of its own."""
        self.close()
        disk = self.peer.disk()
        self.open("growth")
        payload = sum(turn.bytes for turns in (*self.conversations, self.conversations[0]) for turn in turns)
        return {"rss_mb": peak_mb(), "disk": disk / payload}

    def fill(self, length: int, unit: str, more: int) -> dict[str, Any]:
        name = f"{length} {unit}"
        past, self.more[name] = replay.grown(length, unit, more)
        self.prepare(name, past + self.more[name])
        self.loop.run_until_complete(self.peer.fill(name, past))
        self.check(name, past)
        return {"items": sum(len(turn.items) for turn in past)}

    def probe(self, length: int, unit: str, count: int) -> dict[str, Any]:
        """`count` turns at that length."""
        name = f"{length} {unit}"
        turns, self.more[name] = self.more[name][:count], self.more[name][count:]
        return self.timed(name, turns)

    def commits(self) -> dict[str, Any]:
        """Durable transactions a turn, over one real conversation. Last, because counting them costs time."""
        self.close()
        counted = count_commits()
        self.open("commits")
        turns = max(self.conversations, key=len)
        self.prepare("commits", turns)
        before = counted[0] if self.peer.commits is None else self.peer.commits
        self.timed("commits", turns)
        after = counted[0] if self.peer.commits is None else self.peer.commits
        return {"per_turn": (after - before) / len(turns)}


def count_commits() -> list[int]:
    """Counts the COMMITs of every connection that Python's sqlite3 opens from now on."""
    counted, connect = [0], sqlite3.connect

    def note(statement: str) -> None:
        counted[0] += statement.strip().upper().startswith("COMMIT")

    def counting(*args: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*args, **options)
        connection.set_trace_callback(note)
        return connection

    sqlite3.connect = counting  # type: ignore[assignment]
    return counted


def peak_mb() -> float:
    """The most memory this process had. getrusage would count what its parent had when it was started."""
    status = Path("/proc/self/status")
    if status.exists():
        return int(re.search(r"VmHWM:\s*(\d+)", status.read_text())[1]) / 1024  # type: ignore[index]
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def serve() -> None:
    name, folder, conversations, store = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints is no answer
    child = Child(name, Path(folder), int(conversations), store)
    print(json.dumps(child.about()), file=answers, flush=True)
    for line in sys.stdin:
        order, *given = json.loads(line)
        faulthandler.dump_traceback_later(ORDER_S_MAX, exit=True)
        print(json.dumps(getattr(child, order)(*given)), file=answers, flush=True)
        faulthandler.cancel_dump_traceback_later()
    child.end()


def main() -> None:
    """Ends at once, whatever the outcome: some peers leave a thread behind that never would."""
    try:
        serve()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main()
