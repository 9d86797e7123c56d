"""One server over a ram store for all tests of a module, without tokens; each test uses objects of its own."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2 as httpx
import pytest

from tests.server.serving import Served, asking, cut_short, echo, failing, odd, pieces, serving, tools


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(echo(), pieces(count=4), failing(), cut_short(), tools(), odd(), asking()) as running:
        yield running


@pytest.fixture
def http(served: Served) -> Iterator[httpx.Client]:
    with served.client() as client:
        yield client
