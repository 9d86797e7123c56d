"""Sessions, measured: a patch and a delta cost what is new, whatever the state's size and however many sessions there are.

    python -m bench.session [--store sqlite|postgres] [--parts state,past,window,by_hand,crowd] [--sessions 1000000] [--json]

Ratios of one run: interleaved blocks, the median of the blocks' ratios. Absolute figures belong to this machine. Part
`by_hand` needs the packages of the bench's environment.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.doors import report
from bench.postgres import server
from bench.session import by_hand, crowd, past, sensor, state
from bench.session.worker import folder_bytes
from tests.services.postgres import Server

PARTS = ("state", "past", "window", "by_hand", "crowd")
CROWDS: Mapping[str, int] = {"sqlite": 1_000_000, "postgres": 100_000}  # the latter takes one commit each
SIZED = ("patch_service_1MiB_vs_1KiB", "patch_desk_1MiB_vs_1KiB")
EMBEDDED = {f"hydrate_{kind}_64KiB_ms_p50": ("at most", 1.0) for kind in ("very_first", "cold", "warm", "delta")}
TARGETS: Mapping[str, tuple[str, float]] = {
    **{name: ("at most", 1.3) for name in SIZED},
    **{f"delta_{k}_{face}_bytes_over_content": ("at most", 1.3) for k in state.DELTAS for face in ("python", "http")},
    **{f"past_{what}_long_vs_short": ("at most", 2.0) for what in ("compaction", "told")},
    "window_append_ms_p99": ("at most", 20.0),
    "window_append_once_full_ms_p99": ("at most", 20.0),
    "window_disk_bytes_over_window": ("at most", 1.2),
    "window_as_of_newest_ms_p99": ("at most", 5.0),
    "window_as_of_one_second_ms_p99": ("at most", 5.0),
    "crowd_patch_p50_vs_few": ("at most", 1.3),
    "crowd_hydrate_us_beyond_few": ("at most", 50.0),
    "crowd_memory_vs_few": ("at most", 1.05),
}


class Places:
    """Empty stores, and how much of the disk each takes."""

    def __init__(self, folder: Path, running: Server | None) -> None:
        self.folder, self.running = folder, running

    def url(self, name: str) -> str:
        if self.running is not None:
            return server.store(self.running, name)
        return f"sqlite:///{self.folder / name}"

    def disk(self, name: str) -> int:
        if self.running is None:
            return folder_bytes(self.folder / name)
        ((size,),) = self.running.execute("select pg_total_relation_size('stateroom.slot_entry')", database=name)
        return int(size)


@contextmanager
def places(store: str, parent: str | None) -> Iterator[Places]:
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=parent)).resolve()
    try:
        if store == "postgres":
            with server.served(folder / "server") as running:
                yield Places(folder, running)
        else:
            yield Places(folder, None)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure(args: argparse.Namespace, told: Callable[[dict[str, float]], None] = lambda _: None) -> dict[str, float]:
    """All parts that are wanted, one after another; `told` of each as it is done."""
    found: dict[str, float] = {}
    with places(args.store, args.dir) as at:
        for part in args.parts:
            figures = measured(part, at, args)
            told(figures)
            found |= figures
    return found


def measured(part: str, at: Places, args: argparse.Namespace) -> dict[str, float]:
    blocks, size = args.blocks, args.size
    if part == "state":
        return asyncio.run(state.measure(at.url("state"), blocks=blocks, size=size))
    if part == "past":
        return asyncio.run(past.measure(at.url("past"), blocks=blocks, size=max(1, size // 4)))
    if part == "window":
        plain = at.folder / "plain"
        return asyncio.run(sensor.measure(at.url("window"), lambda: at.disk("window"), plain, seconds=args.seconds))
    if part == "by_hand":
        return asyncio.run(by_hand.measure(at.url("by_hand"), at.folder / "valkey", blocks=blocks, size=size))
    urls = {name: at.url(name) for name in ("few", "many")}
    return crowd.measure(urls, at.folder, sessions=args.sessions or CROWDS[args.store], blocks=blocks)


def targets(store: str) -> Mapping[str, tuple[str, float]]:
    return TARGETS | EMBEDDED if store == "sqlite" else TARGETS


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--parts", default=PARTS, type=lambda text: [part for part in text.split(",") if part])
    parser.add_argument("--blocks", type=int, default=30)
    parser.add_argument("--size", type=int, default=20, help="of each side in one block")
    parser.add_argument("--seconds", type=float, default=30, help="what the window keeps; it goes on for half as long again")
    parser.add_argument("--sessions", type=int, default=0, help=f"in the large store; default {CROWDS}")
    parser.add_argument("--dir", default=None, help="a folder on the disk that is meant; a RAM disk makes fsync free")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(given)
    if not {*args.parts} <= {*PARTS}:
        parser.error(f"parts are {', '.join(PARTS)}")
    if args.json:
        print(json.dumps(measure(args)))
    else:
        measure(args, lambda figures: report(figures, targets(args.store)))


if __name__ == "__main__":
    main()
