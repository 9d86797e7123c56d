"""More than a worker can take is refused at once, with the time to come back; what was taken is done. Workers are restarted one
after another while clients talk, and no turn fails."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import httpx2 as httpx
import psutil
import pytest

from tests.crash import scale
from tests.crash.history import history
from tests.crash.invariants import looking, violations
from tests.crash.postgres.fleet import fleet
from tests.crash.postgres.talk import Line, Talker
from tests.crash.where import inside_of, on_postgres
from tests.services.postgres import Server
from tests.services.proxy import Proxy

pytestmark = [pytest.mark.anyio, pytest.mark.crash]

PENDING = 32
FLOOD = 200
GROWTH_BYTES = 64 << 20
SERVED_S = 20.0


class Flood:
    """Many turns asked for at once, each under its key, by clients that do what they are told."""

    def __init__(self, url: str, count: int) -> None:
        self._http = httpx.AsyncClient(base_url=url, timeout=30, limits=httpx.Limits(max_connections=count))
        self._count = count
        self.refused = Counter[str]()
        self.answered = Counter[str]()

    async def rise(self) -> None:
        async with self._http, asyncio.TaskGroup() as group:
            for number in range(self._count):
                group.create_task(self._ask(number))

    async def _ask(self, number: int) -> None:
        body = {"model": "actor", "input": f"pure f{number}"}
        while True:
            try:
                answer = await self._http.post("/v1/responses", json=body, headers={"Idempotency-Key": f"f{number}"})
            except httpx.TransportError:
                await asyncio.sleep(0.1)
                continue
            if answer.status_code not in (429, 503):
                assert answer.is_success, answer.text
                self.answered[answer.json()["status"]] += 1
                return
            self.refused[answer.json()["error"]["code"]] += 1
            await asyncio.sleep(float(answer.headers["Retry-After"]))


async def test_P7_P14_P19_what_is_too_much_is_told_when_to_come_back(
    tmp_path: Path, postgres_store: str, postgres_server: Server, figure: Callable[[str], None]
) -> None:
    """Nothing gets through to the database for a while; then everybody is served."""
    name = postgres_store.rpartition("/")[2].partition("?")[0]
    with Proxy.before(postgres_server.port) as proxy:
        folder = on_postgres(tmp_path / "store", postgres_store, workers=proxy.url(postgres_server.url(name, tcp=True)))
        async with fleet(folder, 1, pending=PENDING) as workers:
            worker, flood = psutil.Process(workers.pid(0)), Flood(f"http://127.0.0.1:{workers.ports[0]}", FLOOD)
            before = worker.memory_info().rss
            await asyncio.to_thread(proxy.stall)
            rising = asyncio.create_task(flood.rise())
            await asyncio.sleep(3)
            grown = worker.memory_info().rss - before
            told = flood.refused.total()
            async with httpx.AsyncClient(timeout=2) as http:
                assert (await http.get(f"http://127.0.0.1:{workers.ports[0]}/healthz")).is_success, "it lives"
            await asyncio.to_thread(proxy.resume)
            async with asyncio.timeout(SERVED_S):  # nobody waits for a lease to end
                await rising
            assert await workers.end() == [0], workers.last_words()
    figure(
        f"PostgreSQL, {FLOOD} turns at once at a worker that can hold {PENDING}, and nothing gets through: {told} refused within"
        f" 3 s ({dict(flood.refused)}), {grown >> 20} MiB grown, then {dict(flood.answered)}"
    )
    assert flood.answered == {"completed": FLOOD}
    assert told > FLOOD / 2
    assert grown < GROWTH_BYTES
    assert violations(inside_of(folder)) == []
    with looking(inside_of(folder)) as ask:
        assert ask("select count(*) from run") == [(FLOOD,)]


async def test_P9_P14_workers_are_restarted_one_after_another_and_no_turn_fails(
    tmp_path: Path, postgres_store: str, figure: Callable[[str], None]
) -> None:
    folder, dice, enough = on_postgres(tmp_path / "store", postgres_store), Random(scale.SEED), asyncio.Event()
    async with fleet(folder, 3) as workers, Line(workers.ports, dice=dice, most=64) as line:
        talkers = [Talker(line, folder, f"c{number}", dice=Random(dice.random())) for number in range(12)]
        async with asyncio.TaskGroup() as group:
            for talker in talkers:
                group.create_task(talker.talk(enough))
            for number in range(3):
                await asyncio.sleep(0.5)
                await workers.restart(number)
            enough.set()
        assert set(await workers.end()) == {0}, workers.last_words()
    found = await history(folder)
    longest_s = max(talker.longest_s for talker in talkers)
    figure(f"PostgreSQL, rolling restart of 3 workers: the longest turn took {longest_s:.1f} s; {found.text}")
    assert [fault for talker in talkers for fault in talker.faults] == []
    assert found.faults == []
    assert found.told > len(talkers)
    assert set(found.runs) <= {"completed", "cancelled"}
    assert longest_s < 8, "nobody waited for a lease to end"
