"""One server over a ram store for the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server.serving import Gate, Served, echo, failing, pieces, serving


@pytest.fixture(scope="module")
def gate() -> Gate:
    return Gate()


@pytest.fixture(scope="module")
def served(gate: Gate) -> Iterator[Served]:
    with serving(echo(), pieces(gate, count=4), failing(), heartbeat_s=0.1) as running:
        yield running
        gate.opened.set()
