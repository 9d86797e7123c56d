"""The database server's wall clock jumps by a day and back while runs are live: no lease is stolen or revived, nothing is
reordered, nothing expires early or late, and all workers agree about the time (P13)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import psycopg
import pytest

from stateroom import limits
from stateroom.backends.postgres import time as store_time
from stateroom.backends.postgres.backend import PostgresBackend
from stateroom.backends.postgres.pipe import Pipe
from stateroom.backends.sql.tx import Row
from stateroom.clock import SystemClock
from stateroom.conformance.kit import Actor
from stateroom.conversation.model import ItemQuery
from stateroom.principal import LOCAL
from tests.crash import plays
from tests.crash.invariants import texts, violations
from tests.crash.test_clock_jumps import DAY_S, HOUR_S, JUMPS_S, Here
from tests.crash.where import inside_of, on_postgres, place_of
from tests.crash.zygote import Forked, zygotes
from tests.services.postgres import Server
from tests.services.proxy import Proxy
from tests.services.store import as_role

pytestmark = [pytest.mark.anyio, pytest.mark.crash]

WORKERS = 2
AGREE_MS = 300


def set_clock(url: str, seconds: int) -> None:
    """What the server's clock says from now on, beside what it is."""
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(
            "create or replace function stateroom.clock_ms() returns bigint language sql volatile as"
            f" $$ select (extract(epoch from clock_timestamp()) * 1000)::bigint + {seconds * 1000} $$".encode()
        )


def correction(url: str) -> int:
    with psycopg.connect(url) as db:
        found = db.execute("select correction from stateroom.clock").fetchone()
        assert found is not None
        return int(found[0])


async def told_by_each(folder: Path, workers: int, *, more: int) -> None:
    """Until each worker has told so much more."""
    folders = [folder / f"w{number}" for number in range(workers)]
    told = [len(plays.told_in(each)) for each in folders]
    async with asyncio.timeout(60):
        while any(len(plays.told_in(each)) < had + more for each, had in zip(folders, told, strict=True)):
            await asyncio.sleep(0.01)


async def test_P13_the_servers_clock_jumps_and_nothing_is_stolen_revived_reordered_or_expired(
    tmp_path: Path, postgres_fresh_store: str, figure: Callable[[str], None]
) -> None:
    on_postgres(tmp_path, postgres_fresh_store)
    here = Here()
    await here.open(place_of(tmp_path))
    try:
        held = await here.take("hold on")
        napping, asked = await here.take("sleep 3600"), await here.take("approve it")
        late = await here.take("hold", deadline_ms=HOUR_S * 1000)
        async with AsyncExitStack() as stack:
            hosts = stack.enter_context(zygotes(WORKERS))
            children = list[Forked]()
            for number, host in enumerate(hosts):
                folder = on_postgres(tmp_path / f"w{number}", postgres_fresh_store)
                children.append(await host.fork(plays.jumps, folder, own=False, name=f"w{number}"))
            await told_by_each(tmp_path, WORKERS, more=1)
            for seconds in JUMPS_S:
                set_clock(postgres_fresh_store, seconds)
                await told_by_each(tmp_path, WORKERS, more=2)
                assert abs(correction(postgres_fresh_store) + seconds * 1000) < AGREE_MS
            short = await here.take("sleep 0.2")
            await asyncio.wait_for(here.room.turns.outcome(LOCAL, short.run.id), 5)
            for number, child in enumerate(children):
                (tmp_path / f"w{number}" / "enough").touch()
                assert await child.ended() == 0, child.last_words()
        backend = here.room.backend
        for ticket in (held, late):
            row = await backend.run(LOCAL, ticket.run.id)
            assert (row.status, row.fence, row.attempt, row.lease_owner) == ("in_progress", 1, 1, backend.owner), "nobody took it"
        for ticket in (napping, asked):
            assert (await backend.run(LOCAL, ticket.run.id)).status == "requires_action", "its time has not come"
        here.go_on.set()
        for ticket in (held, late):
            assert (await here.room.turns.outcome(LOCAL, ticket.run.id, timeout_s=5)).run.status == "completed"
        for number in range(WORKERS):
            told = plays.told_in(tmp_path / f"w{number}")
            for one in told:
                row = await backend.run(LOCAL, bytes.fromhex(one.run[4:]))
                assert (one.status, row.attempt, row.fence) == ("completed", 1, 1), "nor did anybody take one of another worker's"
            items = await backend.items(LOCAL, ItemQuery(branch=row.branch, limit=limits.READ_ITEMS_MAX))
            assert texts(items) == [f"wait+idempotent w{number}a{at}" for at in range(len(told))], "in the order they were said"
        for ticket in (napping, asked):
            await here.room.cancels.cancel(LOCAL, ticket.run.id)
    finally:
        here.go_on.set()
        await here.room.close(grace_s=1)
    assert violations(inside_of(tmp_path)) == []
    figure(f"PostgreSQL: the server's clock jumped {len(JUMPS_S)} times, by up to {3 * DAY_S // DAY_S} days")


async def test_P13_workers_agree_about_the_time_whoever_notices_first(postgres_fresh_store: str) -> None:
    app = as_role(postgres_fresh_store)
    handles = [await PostgresBackend.open(app) for _ in range(3)]
    try:
        for seconds in JUMPS_S:
            before = handles[0].now()
            set_clock(postgres_fresh_store, seconds)
            await asyncio.gather(*(Actor(handle).opens_conversation("hello") for handle in handles))
            late = await PostgresBackend.open(app)
            handles.append(late)
            times = [handle.now() for handle in handles]
            assert max(times) - min(times) < AGREE_MS
            assert 0 <= min(times) - before < 5_000
    finally:
        for handle in handles:
            await handle.close()


class OtherMachine(SystemClock):
    """What another machine noted about the time does not help it: it has to ask."""

    def boot_id(self) -> str:
        return "another boot"


async def test_P13_a_worker_that_comes_while_the_server_is_slow_has_the_same_time(
    postgres_fresh_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_time, "JUMP_MS", 200)
    first, slow, gather = await PostgresBackend.open(as_role(postgres_fresh_store)), [0.3, 0.3], Pipe.gather

    def late(pipe: Pipe) -> list[list[Row]]:
        rows = gather(pipe)
        if slow and any(len(answer) == 1 and len(answer[0]) == 5 for answer in rows):  # what time it is
            time.sleep(slow.pop())
        return rows

    with monkeypatch.context() as patched:
        patched.setattr(Pipe, "gather", late)
        second = await PostgresBackend.open(as_role(postgres_fresh_store), clock=OtherMachine())
    try:
        assert slow == []
        for handle in (second, first, second, first):
            await Actor(handle).opens_conversation("hello")
        assert abs(first.now() - second.now()) < AGREE_MS
    finally:
        await first.close()
        await second.close()
    assert correction(postgres_fresh_store) == 0


async def test_P13_a_server_that_is_slow_to_answer_has_not_changed_its_clock(
    postgres_fresh_store: str, postgres_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often in a row: the correction is for jumps, and workers that took each other's slowness for one would move it
    to and fro for ever."""
    monkeypatch.setattr(store_time, "JUMP_MS", 200)
    name = postgres_fresh_store.rpartition("/")[2].partition("?")[0]
    with Proxy.before(postgres_server.port) as proxy:
        handle = await PostgresBackend.open(as_role(proxy.url(postgres_server.url(name, tcp=True))))
        try:
            writing = asyncio.create_task(Actor(handle).opens_conversation("hello"))
            for _ in range(8):
                await asyncio.to_thread(lambda: proxy.stall(answers_only=True))
                await asyncio.sleep(0.3)
                await asyncio.to_thread(proxy.resume)
                await asyncio.sleep(0.002)
            await writing
        finally:
            await handle.close()
    assert correction(postgres_fresh_store) == 0
