"""A database that crashes empties what was not logged: every ephemeral session says so, and nothing else is lost (S19)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from stateroom.backends.postgres.backend import PostgresBackend
from stateroom.errors import Gone
from stateroom.principal import LOCAL
from stateroom.session.model import EndSession, OpenSession, PatchSlots, SlotPatch
from tests.crash import ephemeral_plays as plays
from tests.services.postgres import Server
from tests.services.store import as_role, migrated

pytestmark = [pytest.mark.anyio, pytest.mark.crash]


@pytest.fixture
def server() -> Iterator[Server]:
    with Server.start() as made:
        yield made


async def test_a_change_of_an_ephemeral_session_waits_for_no_disk(server: Server) -> None:
    """As it waits for no standby either: one that never comes holds up whatever is durable."""
    store = await PostgresBackend.open(as_role(migrated(server.create_database("store"))))
    await plays.begins(store)
    server.configure({"synchronous_standby_names": "nobody"})
    for n in range(1, 20):
        await asyncio.wait_for(plays.commit(store, plays.changes(n)), 5)
    durable = asyncio.create_task(plays.commit(store, plays.changes(20), plays.says(20)))
    await asyncio.sleep(1)
    assert not durable.done()
    server.configure({"synchronous_standby_names": ""})
    await asyncio.wait_for(durable, 20)
    assert set((await plays.found(store)).desk) == {20}
    await store.close()


async def test_S19_a_crash_of_the_database_is_said_and_a_restart_loses_nothing(server: Server) -> None:
    url = as_role(migrated(server.create_database("store")))
    store = await PostgresBackend.open(url)
    await plays.begins(store)
    for n in range(1, 20):
        await plays.commit(store, plays.changes(n), *([plays.says(n)] if n % 10 == 9 else []))
    server.restart()
    found = await plays.found(store)
    assert (found.said, found.desk, found.error) == ([19, 9], [19, 19], "")
    await plays.commit(store, plays.changes(20))
    server.kill()
    server.restart()
    found = await plays.found(store)
    assert (found.said, found.error) == ([19, 9], "state_lost")
    with pytest.raises(Gone):
        await plays.commit(store, plays.changes(21), plays.says(21))
    assert (await plays.found(store)).said == [19, 9], "all of a batch or none"
    assert (await store.head(LOCAL, plays.DESK)).status == "lost"
    await plays.commit(store, EndSession(session=plays.DESK))
    again = OpenSession(
        id=plays.DESK[:-1] + b"2", owner="local", subject="local", conversation=plays.CONVERSATION, agent="a",
        durability="ephemeral",
    )  # fmt: skip
    await plays.commit(
        store, again, PatchSlots(session=again.id, by="local", patches=(SlotPatch(name="n", body=b"1"),)), plays.says(29)
    )
    assert [slot.body for slot in await store.slots(LOCAL, again.id)] == [b"1"]
    await store.close()
