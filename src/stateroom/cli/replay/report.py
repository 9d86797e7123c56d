"""The figures of a replay."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from stateroom.cli.replay.compare import Verdict
from stateroom.cli.terminal import show_json, size


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What a replay measured. `disk_bytes`: what a store that holds nothing else takes."""

    verdict: Verdict
    turns: int
    seconds: float
    p50_ms: float
    p99_ms: float
    payload_bytes: int
    retries: int
    interrupted: bool
    place: str
    disk_bytes: int | None = None


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of the others lie; 0.0 without any."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def folder_bytes(folder: Path) -> int:
    """What the files of a folder take."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) if folder.exists() else 0


def show(figures: Figures, *, as_json: bool) -> None:
    """Print them; the comparison last."""
    if as_json:
        show_json(figures)
        return
    verdict = figures.verdict
    if figures.interrupted:
        print("Interrupted: what was acknowledged until then was compared.")
    rate = figures.turns / figures.seconds if figures.seconds else 0.0
    print(
        f"{figures.turns} turns in {figures.seconds:.1f} s: {rate:.0f} turns/s,"
        f" p50 {figures.p50_ms:.1f} ms, p99 {figures.p99_ms:.1f} ms"
    )
    if figures.disk_bytes is not None and figures.payload_bytes:
        ratio = figures.disk_bytes / figures.payload_bytes
        beyond = (figures.disk_bytes - 1.3 * figures.payload_bytes) / max(figures.turns, 1)
        print(
            f"{size(figures.disk_bytes)} on disk for {size(figures.payload_bytes)} of items: {ratio:.2f} x;"
            f" beyond 1.3 x: {size(max(beyond, 0))} per turn"
        )
    for difference in verdict.differences:
        print(f"  {difference}")
    print(
        f"{verdict.conversations} conversations, {verdict.items} items, {verdict.equal} equal, {verdict.different} different"
        f" ({figures.place})"
    )
