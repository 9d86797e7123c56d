"""A network that goes silent: whoever waits is woken again when it is back, a worker can always end, and no effect is begun
whose intent was acknowledged too late."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from stateroom.backends.postgres import wakeups
from stateroom.backends.postgres.backend import PostgresBackend
from stateroom.conformance.kit import Actor
from tests.services.postgres import Server
from tests.services.proxy import Proxy
from tests.services.store import as_role

pytestmark = [pytest.mark.anyio, pytest.mark.crash]


@pytest.fixture
def proxy(postgres_server: Server) -> Iterator[Proxy]:
    with Proxy.before(postgres_server.port) as made:
        yield made


@pytest.fixture
def through(proxy: Proxy, postgres_server: Server, postgres_store: str) -> str:
    """The store, as workers reach it."""
    return as_role(proxy.url(postgres_server.url(postgres_store.rpartition("/")[2].partition("?")[0], tcp=True)))


async def heard(backend: PostgresBackend, topic: bytes, seen: int, *, within_s: float) -> bool:
    await backend.wakeups.wait(topic, seen, within_s)
    return backend.wakeups.generation(topic) != seen


async def test_P7_wake_ups_come_again_after_a_silent_network(
    through: str, proxy: Proxy, postgres_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connections stay open, and nothing is ever said on them again."""
    monkeypatch.setattr(wakeups, "LOOK_S", 0.2)
    monkeypatch.setattr(wakeups, "SILENT_S", 0.5)
    listener, teller = await PostgresBackend.open(through), Actor(await PostgresBackend.open(as_role(postgres_store)))
    try:
        conversation = await teller.opens_conversation("hello")
        run = (await teller.asks(conversation, "one")).run
        await asyncio.to_thread(proxy.stall)
        await asyncio.sleep(1.2)  # it has found out, and tries to come back
        await asyncio.to_thread(proxy.cut)
        await asyncio.to_thread(proxy.resume)
        await asyncio.sleep(1.0)
        seen = listener.wakeups.generation(run.id)
        await teller.answers(run, "an answer")
        assert await heard(listener, run.id, seen, within_s=0.15), "told, not looked for"
    finally:
        await asyncio.wait_for(listener.close(), 5)
        await teller.store.close()  # type: ignore[attr-defined]


async def test_P7_a_worker_ends_in_time_while_the_network_is_silent(
    through: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wakeups, "LOOK_S", 0.1)
    monkeypatch.setattr(wakeups, "SILENT_S", 1.0)
    backend = await PostgresBackend.open(through)
    await Actor(backend).opens_conversation("hello")
    await asyncio.to_thread(proxy.stall)
    await asyncio.sleep(0.5)
    began = asyncio.get_running_loop().time()
    try:
        await asyncio.wait_for(backend.close(), 20)
    finally:
        await asyncio.to_thread(proxy.cut)
        await asyncio.to_thread(proxy.resume)
    assert asyncio.get_running_loop().time() - began < 8
