"""Lists are read from a standby as long as it keeps up, and from the primary when it does not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from stateroom.backends.postgres.backend import PostgresBackend
from stateroom.conformance.kit import Actor
from stateroom.ids import NIL
from stateroom.session.model import OpenSession
from tests.services.postgres import Server
from tests.services.store import as_role, migrated

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Server, Server]]:
    with Server.start() as primary:
        migrated(primary.create_database("pair"))
        with Server.standby(None, primary, synchronous=False) as standby:
            yield primary, standby


async def test_lists_come_from_the_standby_and_from_the_primary_when_it_is_gone(pair: tuple[Server, Server]) -> None:
    primary, standby = pair
    url = as_role(primary.url("pair", tcp=True))
    backend = await PostgresBackend.open(f"{url}?replica=127.0.0.1:{standby.port}")
    try:
        alice = Actor(backend)
        made = await alice.opens_conversation("hello")

        async def listed() -> list[bytes]:
            return [row.id for row in await backend.conversations(alice.scope, after=NIL, limit=10)]

        async with asyncio.timeout(10):
            while made not in await listed():
                await asyncio.sleep(0.05)
        assert backend._replica is not None
        while not backend._replica.reads:
            await asyncio.sleep(0.05)
            assert await listed() == [made]
        durable, brief = await alice.opens_session(), alice.new_id()
        await alice.does(OpenSession(id=brief, owner="alice", subject="someone", durability="ephemeral"))
        for _ in range(20):  # what is not logged is on no standby: the primary answers, and the standby is asked other things
            found = {row.id for row in await backend.sessions(alice.scope, after=NIL, limit=10)}
            await asyncio.sleep(0.05)
        assert found == {durable, brief}
        read = backend._replica.reads
        assert await listed() == [made]
        assert backend._replica.reads == read + 1
        read = backend._replica.reads
        standby.kill()
        assert await listed() == [made]
        assert backend._replica.reads == read, "the primary answered"
        assert await alice.reads(made) == ["hello"], "what must be fresh never asks the standby"
    finally:
        await backend.close()
