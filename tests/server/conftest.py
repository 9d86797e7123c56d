"""One server on each kind of store for all tests of a module, without tokens; each test uses objects of its own."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2 as httpx
import pytest

from tests.server.serving import Served, asking, cut_short, echo, failing, odd, pieces, serving, tools
from tests.services.places import Place


@pytest.fixture(scope="module")
def served(module_place: Place) -> Iterator[Served]:
    agents = (echo(), pieces(count=4), failing(), cut_short(), tools(), odd(), asking())
    with serving(*agents, url=module_place.url) as running:
        yield running


@pytest.fixture
def http(served: Served) -> Iterator[httpx.Client]:
    with served.client() as client:
        yield client
