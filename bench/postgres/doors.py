"""Our doors on PostgreSQL beside the hand-written limit, in one run on one server: interleaved blocks, medians of ratios.

    python -m bench.postgres.doors [--blocks 9] [--turns 48] [--dir FOLDER] [--json]

Both sides write the same tables with the same bytes and checks, in two commits a turn, with full fsync. The hand-written
side speaks libpq's pipeline mode itself; psycopg's own cursors cost about twice as much and are shown beside it. Absolute
figures belong to this machine; the ratios are the result.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from bench.doors import report
from bench.postgres import server
from bench.postgres.sides import ByHand, Ours, Work, together
from bench.postgres.workers import Crowd
from bench.workload import BenchTurn, turns
from tests.services.postgres import Server

CLIENTS = (1, 8, 64)
Blocks = dict[str, list[tuple[float, float, float, float]]]  # side: seconds, of our processor, of the server's, commits/turn


class Bench:
    def __init__(self, running: Server, blocks: int, size: int) -> None:
        self.running, self.blocks, self.size = running, blocks, size
        self.turns = turns(4 * blocks * size)

    def block(self, number: int, size: int) -> list[BenchTurn]:
        start = number * size % (len(self.turns) - size)
        return self.turns[start : start + size]

    async def clients(self, clients: int) -> dict[str, float]:
        """Door and flow against the hand-written side, at so many clients."""
        ours = await Ours.open(server.store(self.running, f"ours_{clients}"))
        await ours.settle(clients)
        url = server.store(self.running, f"hand_{clients}")
        by_hand, cursors = await ByHand.open(url, clients), await ByHand.open(url, clients, cursors=True)
        sides: dict[str, Work] = {
            "hand": by_hand.turn, "door": ours.by_door, "hand_whole": by_hand.whole, "flow": ours.by_flow, "cursors": cursors.turn,
        }  # fmt: skip
        try:
            return self.figures(await self.interleave(sides, clients, ours), clients)
        finally:
            for side in (ours, by_hand, cursors):
                await side.close()

    async def interleave(self, sides: dict[str, Work], clients: int, ours: Ours) -> Blocks:
        """Every side on the same turns, another one first each time. The first round only warms up."""
        found: Blocks = defaultdict(list)
        names, size = list(sides), max(self.size, 2 * clients)
        for number in range(self.blocks + 1):
            block, first = self.block(number, size), number % len(names)
            for name in names[first:] + names[:first]:
                cpu, served, before = time.process_time(), server.cpu_s(self.running), ours.backend.commits
                seconds = await together(clients, block, sides[name])
                spent = time.process_time() - cpu, server.cpu_s(self.running) - served
                if number:
                    found[name].append((seconds, *spent, (ours.backend.commits - before) / size))
        return found

    async def growth(self) -> dict[str, float]:
        """Rows that PostgreSQL walks for a turn, in a short and in a long life of a new store that nobody has analyzed."""
        ours = await Ours.open(server.store(self.running, name := "growth"))
        await ours.settle(1)
        walked = []
        for length in (100, 1000):
            await together(1, self.block(0, length - ours.number), ours.by_door)
            before = await self.walked(ours, name)
            await together(1, self.block(1, 20), ours.by_door)
            walked.append((await self.walked(ours, name) - before) / 21)
        await ours.close()
        names = (f"rows_walked_per_turn_at_{length}_turns" for length in (100, 1000))
        return dict(zip(names, walked, strict=True)) | {"rows_walked_growth": walked[1] / walked[0]}

    async def walked(self, ours: Ours, database: str) -> int:
        """So far. A backend tells with a transaction that ends more than a second after it told last."""
        await asyncio.sleep(1.1)
        await together(1, self.block(2, 1), ours.by_door)
        indexes = "(select sum(idx_tup_read) from pg_stat_user_indexes)"
        ((found,),) = self.running.execute(f"select {indexes} + sum(seq_tup_read) from pg_stat_user_tables", database=database)
        return int(found)

    def figures(self, found: Blocks, clients: int) -> dict[str, float]:
        size, name = max(self.size, 2 * clients), f"{clients}_client{'s' if clients > 1 else ''}"
        out = {
            f"{name}_store_door_turns_per_s_vs_hand": ratio(found, "hand", "door"),
            f"{name}_turn_flow_turns_per_s_vs_hand": ratio(found, "hand_whole", "flow"),
            f"{name}_psycopg_cursors_turns_per_s_vs_hand": ratio(found, "hand", "cursors"),
        }
        for side in ("hand", "door", "hand_whole", "flow"):
            seconds, own, served, commits = (statistics.median(column) for column in zip(*found[side], strict=True))
            if side in ("door", "flow"):  # a heartbeat now and then is none of a turn's
                out[f"{name}_{side}_commits_per_turn"] = commits
            out[f"{name}_{side}_turns_per_s"] = size / seconds
            out[f"{name}_{side}_cpu_ms_per_turn_client"] = own / size * 1000
            out[f"{name}_{side}_cpu_ms_per_turn_server"] = served / size * 1000
        return out


def ratio(found: Blocks, theirs: str, ours: str) -> float:
    """How many turns/s ours makes of theirs: the median over the blocks."""
    return statistics.median(limit[0] / own[0] for limit, own in zip(found[theirs], found[ours], strict=True))


TARGETS = {
    **{f"1_client_{side}_commits_per_turn": ("exactly", 2.0) for side in ("door", "flow")},
    **{f"{n}_client{'s' if n > 1 else ''}_{door}_turns_per_s_vs_hand": ("at least", 0.7) for n in CLIENTS for door in ("store_door", "turn_flow")},
    "4_workers_cpu_per_turn_vs_1": ("at most", 1.3),
    "hot_tenant_turns_per_s_vs_many": ("at least", 0.7),
    "rows_walked_growth": ("at most", 1.2),
}  # fmt: skip


async def measure(args: argparse.Namespace) -> dict[str, float]:
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=args.dir))
    try:
        with server.served(folder / "server") as running:
            bench = Bench(running, args.blocks, args.turns)
            figures = await bench.growth()
            for clients in args.clients:
                figures |= await bench.clients(clients)
            if args.workers:
                with Crowd(running, folder, args.workers) as crowd:
                    figures |= crowd.measure(args.blocks)
            return figures
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=9)
    parser.add_argument("--turns", type=int, default=48, help="turns in one block; at many clients two each, if that is more")
    parser.add_argument("--clients", default=CLIENTS, type=lambda text: [int(part) for part in text.split(",") if part])
    parser.add_argument("--workers", type=int, default=4, help="processes beside one; 0 leaves them out")
    parser.add_argument("--dir", default=None, help="a folder on the disk that is meant; a RAM disk makes fsync free")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(given)
    figures = asyncio.run(measure(args))
    if args.json:
        print(json.dumps(figures))
    else:
        report(figures, TARGETS)


if __name__ == "__main__":
    main()
