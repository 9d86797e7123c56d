"""A database that takes connections and never answers: whoever waits for it is told when patience is over, not later."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest

from stateroom import ids
from stateroom.backends.postgres.backend import PostgresBackend
from stateroom.backends.postgres.migrate import migrate
from stateroom.batch import Batch
from stateroom.conversation.model import CreateConversation
from stateroom.errors import Unavailable
from stateroom.ids import NIL
from stateroom.principal import LOCAL
from tests.services.postgres import Server
from tests.services.proxy import Proxy
from tests.services.store import as_role

pytestmark = pytest.mark.anyio
PATIENCE_S = 10.0  # of those who say nothing else


@pytest.fixture
def proxy(postgres_server: Server) -> Iterator[Proxy]:
    with Proxy.before(postgres_server.port) as made:
        yield made


@pytest.fixture
def through(proxy: Proxy, postgres_server: Server, postgres_store: str) -> str:
    return as_role(proxy.url(postgres_server.url(postgres_store.rpartition("/")[2].partition("?")[0], tcp=True)))


async def told_after(ask: Callable[[], Awaitable[object]]) -> float:
    began = asyncio.get_running_loop().time()
    with pytest.raises(Unavailable) as refused:
        await ask()
    assert refused.value.reason == "store_away"
    return asyncio.get_running_loop().time() - began


async def test_who_reads_or_writes_is_told_in_time_whenever_they_come(through: str, proxy: Proxy) -> None:
    backend = await PostgresBackend.open(through)

    def read() -> Awaitable[object]:
        return backend.conversations(LOCAL, after=NIL, limit=1)

    def write() -> Awaitable[object]:
        id_ = ids.new(ids.new_home(), 0)
        batch = Batch(id=ids.new(0, 0), scope=LOCAL, at=0, writes=(CreateConversation(id=id_, owner="local", subject="local"),))
        return backend.commit(batch)

    async def later(ask: Callable[[], Awaitable[object]]) -> float:
        await asyncio.sleep(4)
        return await told_after(ask)

    try:
        await read()
        await write()
        await asyncio.to_thread(proxy.stall)
        waited = await asyncio.gather(*map(told_after, [read, write] * 4), *map(later, [read, write] * 4))
        assert max(waited) < PATIENCE_S + 1.5, waited
        assert await told_after(read) < 3.5, "while it is known to be away nobody waits for long"
    finally:
        await asyncio.to_thread(proxy.cut)
        await asyncio.to_thread(proxy.resume)
    await asyncio.sleep(1.1)
    await write()
    await read()
    await backend.close()


async def test_who_opens_it_is_told_in_time(through: str, proxy: Proxy) -> None:
    await asyncio.to_thread(proxy.stall)
    try:
        assert await told_after(lambda: PostgresBackend.open(through)) < PATIENCE_S + 1.5
        assert await told_after(lambda: asyncio.to_thread(migrate, through, say=lambda line: None)) < PATIENCE_S + 1.5
    finally:
        await asyncio.to_thread(proxy.cut)
        await asyncio.to_thread(proxy.resume)
