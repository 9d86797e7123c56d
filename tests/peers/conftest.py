"""The official openai client, unmodified, against a real server over each kind of store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.server.serving import Served, cut_short, echo, failing, odd, pieces, serving, tools
from tests.services.places import Place


@pytest.fixture(scope="module")
def served(module_place: Place) -> Iterator[Served]:
    with serving(echo(), pieces(count=6), failing(), cut_short(), tools(), odd(), url=module_place.url) as running:
        yield running


@pytest.fixture
def client(served: Served) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{served.url}/v1", api_key="any", max_retries=0, timeout=10) as made:
        yield made


@pytest.fixture
async def aclient(served: Served) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{served.url}/v1", api_key="any", max_retries=0, timeout=10) as made:
        yield made


def pytest_report_header() -> str:
    return f"openai client {openai.__version__}"
