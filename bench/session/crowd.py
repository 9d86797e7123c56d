"""A store with very many sessions beside one with few: each behind a process of its own, block by block in turn.

Both stores are filled by the store's own writing (on SQLite in transactions larger than it would make them), so that their
rows are what the product writes; every session that is read is compared with what was filled. The same number of sessions is
worked on in both, each of them once, spread over the whole store.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

from bench.children import Child
from bench.session.blocks import Blocks, beyond_ms, p50_ms, ratio, rotated

FEW = 1_000
PAGE = 20_000  # sessions between two words of progress


class Store:
    """One of the two: where it is and how many sessions are in it."""

    def __init__(self, name: str, url: str, count: int, log: Path) -> None:
        self.name, self.url, self.count, self.log = name, url, count, log
        self.order = random.Random(count).sample(range(count), min(count, FEW))

    def child(self) -> Child:
        made = Child("bench.session.worker", self.url, str(self.count), log=self.log)
        assert made.answer() == "ready"
        return made

    def fill(self, say: Callable[[str], None]) -> None:
        """In a process that ends then: what filling leaves in its memory is not what is measured."""
        filling, began = self.child(), time.perf_counter()
        for first in range(0, self.count, PAGE):
            filling.ask("fill", first, min(PAGE, self.count - first))
            done = min(first + PAGE, self.count)
            say(f"filling: {done:,} of {self.count:,} sessions, {done / (time.perf_counter() - began):,.0f}/s")
        filling.end()


def measure(urls: Mapping[str, str], folder: Path, *, sessions: int, blocks: int) -> dict[str, float]:
    """`urls` of two empty stores, `few` and `many`."""
    counts = {"few": min(FEW, sessions), "many": sessions}
    stores = [Store(name, urls[name], count, folder / f"{name}.log") for name, count in counts.items()]
    for store in stores:
        store.fill(say)
    say("")
    size = max(1, min(len(store.order) for store in stores) // (blocks + 1))
    found: dict[str, list[list[float]]] = {f"{what}_{name}": [] for what in ("hydrate", "patch") for name in counts}
    with ExitStack() as ends:
        children = {store.name: store.child() for store in stores}
        for child in children.values():
            ends.callback(child.end)
        for number in range(blocks + 1):  # the first one only warms up
            for name in rotated(list(counts), number):
                store = next(one for one in stores if one.name == name)
                took = children[name].ask("work", store.order[number * size : (number + 1) * size])
                for what, seconds in zip(("hydrate", "patch"), took, strict=True):
                    found[f"{what}_{name}"] += [seconds] if number else []
        memory = {name: children[name].ask("memory") for name in counts}
    return figures(found, memory, sessions)


def figures(found: Blocks, memory: Mapping[str, int], sessions: int) -> dict[str, float]:
    return {
        "crowd_sessions": float(sessions),
        "crowd_patch_p50_vs_few": ratio(found, "patch_many", "patch_few"),
        "crowd_hydrate_us_beyond_few": 1000 * beyond_ms(found, "hydrate_many", "hydrate_few"),
        "crowd_memory_vs_few": memory["many"] / memory["few"],
        "crowd_memory_MB": memory["many"] / 1e6,
        **{f"crowd_{side}_ms_p50": p50_ms(found, side) for side in found},
    }


def say(what: str) -> None:
    """Progress, for whoever waits."""
    print(f"\r{what:70}", end="" if what else "\r", file=sys.stderr, flush=True)
