"""What people pick today beside us, in one run: the same turns, side by side, as ratios to our turn flow.

    python -m bench.compare [--store postgres] [--reps 3] [--conversations 24] [--peers NAME,NAME] [--dir FOLDER] [--json FILE]

Each repetition starts one process per peer and goes round them conversation by conversation, so that a slow minute of
the machine hits all of them alike; every ratio is taken inside one round. Absolute figures belong to this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench import peers
from bench.children import Child
from bench.peers import report

LENGTHS = ((10, "turns"), (100, "turns"), (1000, "items"), (1000, "turns"))
ROUNDS, PROBES = 6, 3  # so many rounds of so many turns at each length


class Process(Child):
    """A peer at work, and what it answers."""

    def __init__(self, name: str, folder: Path, conversations: int, store: str) -> None:
        self.name = name
        folder.mkdir()
        quiet = {"LANGSMITH_TRACING": "false", "OPENAI_AGENTS_DISABLE_TRACING": "1"}
        super().__init__("bench.peers.child", name, str(folder), str(conversations), store, log=folder / "log", env=quiet)


class Repetition:
    """One process per peer, all alive, one working at a time."""

    def __init__(self, names: Sequence[str], folder: Path, args: argparse.Namespace) -> None:
        self.folder, self.conversations, self.lengths = folder, args.conversations, args.lengths
        self.names, self.store = names, args.store
        self.processes: list[Process] = []
        self.about: dict[str, dict[str, Any]] = {}
        self.probes: list[dict[str, float]] = []

    def run(self) -> dict[str, Any]:
        try:
            for n, name in enumerate(self.names):
                self.processes.append(Process(name, self.folder / str(n), self.conversations, self.store))
            self.about = {process.name: process.answer() for process in self.processes}
            return {"peers": self.measure(), "probes": self.probes}
        finally:
            for process in self.processes:
                process.end()

    def measure(self) -> dict[str, Any]:
        found: dict[str, Any] = {name: {**about, "real": [], "growth": defaultdict(list)} for name, about in self.about.items()}
        for number in range(self.conversations):
            for process in self.round(number):
                found[process.name]["real"].append(process.ask("real", number))
        for process in self.processes:
            found[process.name] |= process.ask("end_real")
        for length, unit in self.lengths:
            for process in self.processes:
                found[process.name][f"items at {length} {unit}"] = process.ask("fill", length, unit, ROUNDS * PROBES)["items"]
            for number in range(ROUNDS):
                for process in self.round(number):
                    found[process.name]["growth"][f"{length} {unit}"].append(process.ask("probe", length, unit, PROBES))
        for process in self.processes:
            found[process.name]["commits"] = process.ask("commits")["per_turn"]
        return found

    def round(self, number: int) -> Iterator[Process]:
        """Every peer once, another one first each time; the disk and the processor are looked at before."""
        self.probes.append(probe(self.folder))
        first = number % len(self.processes)
        yield from self.processes[first:] + self.processes[:first]


def probe(folder: Path) -> dict[str, float]:
    """A 4 KB append with fsync, a fixed piece of arithmetic, and how busy the machine is."""
    with (folder / "probe").open("ab") as file:
        spent = []
        for _ in range(5):
            file.write(b"x" * 4096)
            file.flush()
            start = time.perf_counter()
            os.fsync(file.fileno())
            spent.append(time.perf_counter() - start)
    start = time.perf_counter()
    sum(range(300_000))
    return {"fsync_s": statistics.median(spent), "cpu_s": time.perf_counter() - start, "load": os.getloadavg()[0]}


@contextmanager
def place(store: str, folder: Path) -> Iterator[None]:
    """Where the peers' databases are made, if they are on a server: one that lives as long."""
    if store != "postgres":
        yield
        return
    from bench.peers.on_postgres import SERVER
    from bench.postgres import server

    with server.served(folder / "server") as running:
        os.environ[SERVER] = running.url()
        yield


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", default="sqlite", choices=peers.STORES)
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--conversations", type=int, default=24)
    parser.add_argument("--peers", default="", help="parts of names, with commas between; ours is always there")
    parser.add_argument("--lengths", default=LENGTHS, type=lengths, help="such as '10 turns,1000 items'; '' for no growth run")
    parser.add_argument("--dir", default=None, help="a folder on the disk that is meant; a RAM disk makes fsync free")
    parser.add_argument("--json", type=Path, default=None, help="write every figure here")
    args = parser.parse_args(given)
    names = [n for n in peers.STORES[args.store] if n == peers.OURS or any(part in n for part in args.peers.split(","))]
    folder, repetitions = Path(tempfile.mkdtemp(prefix="bench-", dir=args.dir)), []
    try:
        with place(args.store, folder):
            for n in range(args.reps):
                (folder / str(n)).mkdir()
                repetitions.append(Repetition(names, folder / str(n), args).run())
                print(f"repetition {n + 1} of {args.reps} done, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if args.json:
        args.json.write_text(json.dumps(repetitions))
    print(report.text(repetitions))


def lengths(text: str) -> list[tuple[int, str]]:
    return [(int(length), unit) for length, unit in (part.split() for part in text.split(",") if part)]


if __name__ == "__main__":
    main()
