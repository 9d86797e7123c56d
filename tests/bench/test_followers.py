"""Thousands of readers, bounded: 500 idle ones, one event for all of them, stalled sockets, readers that come back. The whole
measurement is `python -m bench.followers`."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import followers

LOOSE = {"producer beside 100 stalled sockets": 0.6}  # a ratio of one second each, beside other tests


@pytest.mark.slow
def test_P7_readers_cost_little_and_slow_nobody(tmp_path: Path) -> None:
    figures = followers.measure(tmp_path, sockets=500, idle_s=4, rounds=1)
    assert len(figures) == 10
    for figure in figures:
        met = figure.value >= LOOSE[figure.what] if figure.what in LOOSE else figure.met
        assert met, str(figure)


@pytest.mark.parametrize(
    ("value", "at_least", "met"), [(1.0, False, True), (3.0, False, False), (3.0, True, True), (1.0, True, False)]
)
def test_a_target_is_met_or_missed(value: float, at_least: bool, met: bool) -> None:
    figure = followers.Figure("what", value, 2.0, "ms", at_least)
    assert figure.met is met
    assert str(figure).endswith("MET" if met else "MISSED")
