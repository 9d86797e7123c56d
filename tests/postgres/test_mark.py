"""Store time never goes back behind what was given out, although nobody was there while the server's clock was set (P13)."""

from __future__ import annotations

import psycopg
import pytest

from stateroom.backends.postgres.backend import PostgresBackend
from stateroom.clock import SystemClock
from tests.services.store import as_role

pytestmark = pytest.mark.anyio


class Elsewhere(SystemClock):
    """A worker on another machine: what this one's boot time says means nothing to it."""

    def boot_id(self) -> str:
        return "another machine"


async def test_P13_a_clock_that_is_set_back_while_nobody_is_there_does_not_take_time_back(postgres_fresh_store: str) -> None:
    url = as_role(postgres_fresh_store)
    backend = await PostgresBackend.open(url)
    assert await backend.on_duty("sweep", 1_000)
    given_out = backend.now()
    await backend.close()
    with psycopg.connect(postgres_fresh_store, autocommit=True) as db:
        db.execute(
            "create or replace function stateroom.clock_ms() returns bigint language sql volatile"
            " as $$ select (extract(epoch from clock_timestamp()) * 1000)::bigint - 86400000 $$"
        )
    later = await PostgresBackend.open(url, clock=Elsewhere())
    assert later.now() >= given_out - 1_000
    await later.close()
