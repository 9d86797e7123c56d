"""Figures that these tests measure are shown at the end of the run, whatever is captured and wherever they ran."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.crash.zygote import Zygote, zygotes


@pytest.fixture
def figure(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Say what was counted."""
    return lambda line: record_property("figure", line)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    reports = [report for found in terminalreporter.stats.values() for report in found]
    lines = [
        value
        for report in reports
        if getattr(report, "when", "") == "call"
        for name, value in report.user_properties
        if name == "figure"
    ]
    for line in lines:
        terminalreporter.write_line(f"crash: {line}")


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    """The parent of one child at a time."""
    with zygotes(1) as (made,):
        yield made
