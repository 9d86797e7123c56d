"""Several worker processes on one database: what a turn costs them all together, and what one hot tenant does.

A process of this module is a worker; it takes turns by the whole flow, with so many clients at once.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from bench.children import Child
from bench.postgres import server
from bench.postgres.sides import Ours, together
from bench.workload import turns
from stateroom.principal import operator
from tests.services.postgres import Server

CLIENTS, TENANTS, TURNS = 8, 16, 96  # clients and turns of each worker in a block


class Load(NamedTuple):
    seconds: float
    cpu_s: float  # of the workers
    served_s: float  # of the server
    turns: int


class Crowd:
    """So many workers, all alive; some of them work at a time."""

    def __init__(self, running: Server, folder: Path, count: int) -> None:
        self.running, self.url = running, server.store(running, "workers")
        self.workers = [Child("bench.postgres.workers", self.url, str(n), log=folder / f"worker-{n}.log") for n in range(count)]

    def __enter__(self) -> Self:
        for worker in self.workers:
            worker.answer()
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.end()

    def ask(self, workers: Sequence[Child], *order: Any) -> list[Any]:
        """The same of each, at the same time."""
        for worker in workers:
            worker.tell(json.dumps(order))
        return [worker.answer() for worker in workers]

    def load(self, count: int, clients: int, tenants: int = 1) -> Load:
        """`count` workers with so many clients each, in so many tenants."""
        workers, size = self.workers[:count], TURNS * clients // CLIENTS
        self.ask(workers, "settle", clients, tenants)
        served, start = server.cpu_s(self.running), time.perf_counter()
        spent = self.ask(workers, "turns", size)
        seconds = time.perf_counter() - start
        return Load(seconds, sum(spent), server.cpu_s(self.running) - served, size * count)

    def measure(self, blocks: int) -> dict[str, float]:
        """Interleaved, another one first each time: one worker, all of them, one with the clients of all, many tenants."""
        count, found = len(self.workers), defaultdict[str, list[Load]](list)
        kinds = {
            "one": (1, CLIENTS, 1), "all": (count, CLIENTS, 1), "crowded": (1, CLIENTS * count, 1),
            "many": (count, CLIENTS, TENANTS),
        }  # fmt: skip
        names = list(kinds)
        for number in range(blocks + 1):
            first = number % len(names)
            for name in names[first:] + names[:first]:
                load = self.load(*kinds[name])
                found[name] += [load] if number else []  # the first round only warms up
        one, all_, crowded, many = (found[name] for name in names)
        figures = {
            f"{count}_workers_cpu_per_turn_vs_1": ratio(all_, one, cpu),
            f"{count}_workers_cpu_per_turn_vs_1_with_all_clients": ratio(all_, crowded, cpu),
            f"{count}_workers_turns_per_s_vs_1": ratio(all_, one, pace),
            f"{count}_workers_turns_per_s_vs_1_with_all_clients": ratio(all_, crowded, pace),
            "hot_tenant_turns_per_s_vs_many": ratio(all_, many, pace),
            "hot_tenant_cpu_per_turn_vs_many": ratio(all_, many, cpu),
        }
        for name, found in (
            (f"{count}_workers", all_),
            ("1_worker", one),
            ("1_worker_with_all_clients", crowded),
            ("many_tenants", many),
        ):
            figures[f"{name}_cpu_ms_per_turn_workers"] = statistics.median(load.cpu_s / load.turns for load in found) * 1000
            figures[f"{name}_cpu_ms_per_turn_server"] = statistics.median(load.served_s / load.turns for load in found) * 1000
            figures[f"{name}_turns_per_s"] = statistics.median(pace(load) for load in found)
        return figures


def cpu(load: Load) -> float:
    return (load.cpu_s + load.served_s) / load.turns


def pace(load: Load) -> float:
    return load.turns / load.seconds


def ratio(these: Sequence[Load], those: Sequence[Load], what: Any) -> float:
    return statistics.median(what(this) / what(that) for this, that in zip(these, those, strict=True))


# ── a worker ────────────────────────────────────────────────────────────────────────────────────────────────────────


class Worker:
    def __init__(self, url: str, number: int) -> None:
        self.url, self.turns, self.done = url, turns(4096, seed=number), 0

    async def open(self) -> None:
        self.ours = await Ours.open(self.url)
        self.ours.number = os.getpid() * 1_000_000  # keys of its own
        self.clients = 0

    async def settle(self, clients: int, tenants: int) -> bool:
        self.clients = clients
        await self.ours.settle(clients, [operator(f"tenant-{n}", "local") for n in range(tenants)])
        return True

    async def take(self, count: int) -> float:
        """The processor's seconds that so many turns took."""
        start = self.done % (len(self.turns) - count)
        block, self.done = self.turns[start : start + count], self.done + count
        before = time.process_time()
        await together(self.clients, block, self.ours.by_flow)
        return time.process_time() - before


async def serve(url: str, number: int) -> None:
    worker = Worker(url, number)
    await worker.open()
    print("true", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        order, *given = json.loads(line)
        answer = await {"settle": worker.settle, "turns": worker.take}[order](*given)
        print(json.dumps(answer), flush=True)
    await worker.ours.close()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2])))
