"""A network that goes silent: whoever waits is woken again when it is back, a worker can always end, and no effect is begun
whose intent was acknowledged too late."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from stateroom import limits
from stateroom.backends.postgres import wakeups
from stateroom.backends.postgres.backend import PostgresBackend
from stateroom.backends.postgres.wakeups import STILL_LOOKS, PostgresWakeups
from stateroom.batch import Batch, Receipt
from stateroom.conformance.kit import Actor
from stateroom.errors import Unavailable
from stateroom.principal import LOCAL
from stateroom.run.model import Heartbeat
from stateroom.run.steps import RecordSteps
from tests.crash import plays
from tests.crash.actor import begin, ended, opened, take
from tests.crash.invariants import violations
from tests.crash.where import inside_of, on_postgres, place_of
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


@pytest.mark.parametrize("pooler", ["off", "on"])
async def test_P7_who_waits_for_a_run_that_paused_and_went_on_between_two_looks_hears_of_its_end(
    postgres_store: str, pooler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is told: the notification is lost, or there is a pooler. At each look the run waits for somebody, or has ended."""
    monkeypatch.setattr(wakeups, "LOOK_S", 0.3)
    monkeypatch.setattr(PostgresWakeups, "_send", lambda self, pipe: self._topics.clear())
    listener = await PostgresBackend.open(f"{as_role(postgres_store)}&pooler={pooler}")
    teller = Actor(await PostgresBackend.open(as_role(postgres_store)))
    try:
        conversation = await teller.opens_conversation("hello")
        run = (await teller.asks(conversation, "one")).run
        await teller.pauses(run, teller.question(run, "may I?"))
        await asyncio.sleep(0.7)
        seen = listener.wakeups.generation(run.id)
        assert await heard(listener, run.id, seen, within_s=0.4 * STILL_LOOKS), "nobody looked"
    finally:
        await listener.close()
        await teller.store.close()  # type: ignore[attr-defined]


async def test_P7_looks_are_taken_although_there_is_always_something_to_hear(
    postgres_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that was killed before it told is noticed while others talk all the time."""
    monkeypatch.setattr(wakeups, "LOOK_S", 0.3)
    listener, teller = (
        await PostgresBackend.open(as_role(postgres_store)),
        Actor(await PostgresBackend.open(as_role(postgres_store))),
    )
    noise = asyncio.create_task(asyncio.to_thread(_talks, postgres_store, 3.0))
    try:
        conversation = await teller.opens_conversation("hello")
        run = (await teller.asks(conversation, "one")).run
        await asyncio.sleep(0.5)
        monkeypatch.setattr(PostgresWakeups, "_send", lambda self, pipe: self._topics.clear())
        seen = listener.wakeups.generation(run.id)
        await teller.answers(run, "an answer")
        assert await heard(listener, run.id, seen, within_s=1.5), "nobody looked"
    finally:
        await noise
        await listener.close()
        await teller.store.close()  # type: ignore[attr-defined]


def _talks(url: str, seconds: float) -> None:
    with psycopg.connect(url, autocommit=True) as db:
        for _ in range(int(seconds / 0.1)):
            db.execute("select pg_notify('stateroom', '00')")
            time.sleep(0.1)


@pytest.mark.parametrize("effect", ["once", "verified"])
async def test_P15_an_effect_whose_intent_was_acknowledged_too_late_is_not_begun(
    tmp_path: Path, postgres_store: str, effect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease was over by then: somebody else has asked whether it happened, was told that it did not, and does it."""
    monkeypatch.setattr(limits, "LEASE_MS", 600)
    monkeypatch.setattr(limits, "HEARTBEAT_MS", 200)
    folder = on_postgres(tmp_path, postgres_store)
    world = plays.world_of(folder)
    late, other = await opened(place_of(folder), world), await opened(place_of(folder), world)
    commit, taken_over = late.backend.commit, asyncio.Event()

    async def slow(batch: Batch) -> tuple[Receipt, ...]:
        if taken_over.is_set() or not any(isinstance(write, RecordSteps | Heartbeat) for write in batch.writes):
            return await commit(batch)
        if isinstance(batch.writes[0], Heartbeat):
            raise Unavailable("The network is silent.")
        receipts = await commit(batch)
        await taken_over.wait()
        return receipts

    monkeypatch.setattr(late.backend, "commit", slow)
    try:
        ticket = await take(late, f"{effect} t0", conversation=await begin(late, "c"), key="k0")
        answered = await asyncio.wait_for(ended(other, world, ticket.run.id), 20)
        taken_over.set()
        await late.turns.outcome(LOCAL, ticket.run.id)
        await asyncio.sleep(0.2)
    finally:
        await late.close()
        await other.close()
    assert answered.run.status == "completed"
    assert list(world.effects().values()) == [1]
    assert violations(inside_of(folder)) == []
