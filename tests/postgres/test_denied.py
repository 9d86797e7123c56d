"""Who is turned away for good is told so at once; who may come back later waits."""

from __future__ import annotations

import asyncio

import pytest

from stateroom.backends.postgres.backend import PostgresBackend
from stateroom.errors import Unavailable
from tests.services.store import as_role

pytestmark = pytest.mark.anyio


async def test_a_role_or_a_database_that_does_not_exist_is_no_reason_to_wait(postgres_store: str) -> None:
    for url in (as_role(postgres_store, "nobody_at_all"), as_role(postgres_store).replace("/store_", "/nowhere_")):
        began = asyncio.get_running_loop().time()
        with pytest.raises(Unavailable) as refused:
            await PostgresBackend.open(url)
        assert refused.value.reason == "store_denied"
        assert "does not exist" in refused.value.message
        assert asyncio.get_running_loop().time() - began < 5
