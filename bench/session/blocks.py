"""Interleaved blocks of something, timed one by one, and what they say: medians of the blocks' ratios."""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

Side = Callable[[], Awaitable[object]]
Blocks = Mapping[str, list[list[float]]]  # side: seconds of each, block by block


async def timed(work: Side) -> float:
    start = time.perf_counter()
    await work()
    return time.perf_counter() - start


async def interleave(sides: Mapping[str, Side], *, blocks: int, size: int) -> Blocks:
    """`size` of every side in a block, another side first each time. The first block only warms up."""
    found: dict[str, list[list[float]]] = {name: [] for name in sides}
    for number in range(blocks + 1):
        for name in rotated(list(sides), number):
            took = [await timed(sides[name]) for _ in range(size)]
            found[name] += [took] if number else []
    return found


def rotated(names: list[str], number: int) -> list[str]:
    first = number % len(names)
    return names[first:] + names[:first]


def ratio(found: Blocks, ours: str, theirs: str) -> float:
    """How long one of ours takes beside one of theirs: the median over the blocks of the ratio of their medians."""
    return statistics.median(median(own) / median(other) for own, other in zip(found[ours], found[theirs], strict=True))


def beyond_ms(found: Blocks, ours: str, theirs: str) -> float:
    """How much longer: the median over the blocks of the difference of their medians."""
    return 1000 * statistics.median(median(own) - median(other) for own, other in zip(found[ours], found[theirs], strict=True))


def median(took: Sequence[float]) -> float:
    return statistics.median(took)


def p50_ms(found: Blocks, side: str) -> float:
    return 1000 * statistics.median(flat(found, side))


def flat(found: Blocks, side: str) -> list[float]:
    return [one for block in found[side] for one in block]


def quantile(took: Sequence[float], at: float) -> float:
    return sorted(took)[min(len(took) - 1, int(len(took) * at))]
