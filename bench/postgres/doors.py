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
Blocks = dict[str, list[tuple[float, float, float]]]  # side: seconds, of our processor, of the server's; a block each


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
        found = await self.interleave(sides, clients, ours)
        for side in (ours, by_hand, cursors):
            await side.close()
        return self.figures(found, clients)

    async def interleave(self, sides: dict[str, Work], clients: int, ours: Ours) -> Blocks:
        """Every side on the same turns, another one first each time. The first round only warms up."""
        found: Blocks = defaultdict(list)
        names, size = list(sides), max(self.size, 2 * clients)
        for number in range(self.blocks + 1):
            block, first = self.block(number, size), number % len(names)
            for name in names[first:] + names[:first]:
                cpu, served, before = time.process_time(), server.cpu_s(self.running), ours.backend.commits
                seconds = await together(clients, block, sides[name])
                if number:
                    found[name].append((seconds, time.process_time() - cpu, server.cpu_s(self.running) - served))
                if clients == 1 and name in ("door", "flow"):
                    assert ours.backend.commits - before == 2 * size, "an ordinary turn costs exactly two commits"
        return found

    def figures(self, found: Blocks, clients: int) -> dict[str, float]:
        size, name = max(self.size, 2 * clients), f"{clients}_client{'s' if clients > 1 else ''}"
        out = {
            f"{name}_store_door_turns_per_s_vs_hand": ratio(found, "hand", "door"),
            f"{name}_turn_flow_turns_per_s_vs_hand": ratio(found, "hand_whole", "flow"),
            f"{name}_psycopg_cursors_turns_per_s_vs_hand": ratio(found, "hand", "cursors"),
        }
        for side in ("hand", "door", "hand_whole", "flow"):
            seconds, own, served = (statistics.median(column) for column in zip(*found[side], strict=True))
            out[f"{name}_{side}_turns_per_s"] = size / seconds
            out[f"{name}_{side}_cpu_ms_per_turn_client"] = own / size * 1000
            out[f"{name}_{side}_cpu_ms_per_turn_server"] = served / size * 1000
        return out


def ratio(found: Blocks, theirs: str, ours: str) -> float:
    """How many turns/s ours makes of theirs: the median over the blocks."""
    return statistics.median(limit[0] / own[0] for limit, own in zip(found[theirs], found[ours], strict=True))


TARGETS = {
    **{f"{n}_client{'s' if n > 1 else ''}_{door}_turns_per_s_vs_hand": ("at least", 0.7) for n in CLIENTS for door in ("store_door", "turn_flow")},
    "4_workers_cpu_per_turn_vs_1": ("at most", 1.3),
    "hot_tenant_turns_per_s_vs_many": ("at least", 0.7),
}  # fmt: skip


async def measure(args: argparse.Namespace) -> dict[str, float]:
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=args.dir))
    try:
        with server.served(folder / "server") as running:
            bench, figures = Bench(running, args.blocks, args.turns), dict[str, float]()
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
