"""Workers and clients on a real PostgreSQL with fsync on, while processes are killed, the database too, and the network between
them is cut and stalled: nothing acknowledged is lost, nothing is done twice, and the turns flow again soon."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest

from stateroom import limits
from tests.crash import scale
from tests.crash.history import History, history
from tests.crash.invariants import looking
from tests.crash.postgres.fleet import Fleet, fleet
from tests.crash.postgres.nemesis import Back, Nemesis
from tests.crash.postgres.talk import Line, Talker, Unanswered
from tests.crash.where import inside_of, on_postgres
from tests.services.fixtures import need_pgbouncer, need_version
from tests.services.pgbouncer import Pooler
from tests.services.postgres import NEWEST, OLDEST, Server
from tests.services.proxy import Proxy
from tests.services.store import migrated

pytestmark = [pytest.mark.anyio, pytest.mark.crash]

WORKERS = 4
CLIENTS = 32 * (WORKERS if scale.WHOLE else 1)
RAGE_S = 200.0 if scale.WHOLE else 15.0
LEASE_MS = 3_000
SWEEP_S = 1.0
FLOW_S = 5.0
RED_S, RED_TRIES = 20.0, 4


class Chaos:
    """A campaign: what was told, what became of it, how long nothing went on."""

    def __init__(
        self, folder: Path, *, seed: int, rage_s: float = RAGE_S, clients: int = CLIENTS, build: str = "", pooled: bool = False
    ) -> None:
        """`pooled`: on the oldest PostgreSQL, through pgbouncer in transaction mode."""
        self.folder, self._dice, self._rage_s, self._clients, self._build = folder, Random(seed), rage_s, clients, build
        self._pooled = pooled
        self.nemesis: Nemesis
        self.faults: list[str] = []
        self.drained_s = 0.0
        self.gaps: list[tuple[float, str]] = []
        self.line: Line
        self.kills = 0

    async def play(self) -> History:
        with ExitStack() as stack:
            server = stack.enter_context(Server.start(version=OLDEST if self._pooled else NEWEST))
            url = migrated(server.create_database("chaos"))
            by, port = server.url("chaos", tcp=True), server.port
            if self._pooled:
                pooler = stack.enter_context(Pooler.start(server))
                by, port = f"{pooler.url('chaos')}?pooler=on", pooler.port
            proxy = stack.enter_context(Proxy.before(port))
            on_postgres(self.folder, url, workers=proxy.url(by))
            async with fleet(self.folder, WORKERS, lease_ms=LEASE_MS, build=self._build) as workers:
                self.nemesis = Nemesis(server, proxy, workers, dice=Random(self._dice.random()))
                await self._talk(workers)
                assert set(await workers.end()) == {0}, workers.last_words()
                self.kills = workers.kills
            (self.folder / "url").write_text((self.folder / "url").read_text())
            self.gaps = self._gaps(self.nemesis.backs)
            return await history(self.folder)

    async def _talk(self, workers: Fleet) -> None:
        """Clients while the nemesis rages, and then until each has its last answer."""
        enough = asyncio.Event()
        async with Line(workers.ports, dice=Random(self._dice.random()), most=4 * self._clients) as self.line:
            talkers = [
                Talker(self.line, self.folder, f"c{number}", dice=Random(self._dice.random()), shared=max(3, self._clients // 8))
                for number in range(self._clients)
            ]
            async with asyncio.TaskGroup() as group:
                for talker in talkers:
                    group.create_task(talker.talk(enough))
                await self.nemesis.rage(self._rage_s)
                began = asyncio.get_running_loop().time()
                enough.set()
            self.drained_s = asyncio.get_running_loop().time() - began
        self.faults = [fault for talker in talkers for fault in talker.faults]

    def _gaps(self, backs: list[Back]) -> list[tuple[float, str]]:
        """After each return of the database, how long it took until a turn was accepted and one was finished."""
        with looking(inside_of(self.folder)) as ask:
            accepted = sorted(at for (at,) in ask("select created_at from run"))
            finished = sorted(at for (at,) in ask("select finished_at from run where finished_at > 0"))
        gaps = []
        for back in backs:
            firsts = [next((at for at in moments if at >= back.at_ms), None) for moments in (accepted, finished)]
            if None not in firsts:
                gaps.append((max(at - back.at_ms for at in firsts if at is not None) / 1000, back.fault))
        return sorted(gaps, reverse=True)

    @property
    def text(self) -> str:
        faults = ", ".join(f"{count} x {name}" for name, count in sorted(self.nemesis.faults.items()))
        longest = self.gaps[0] if self.gaps else (0.0, "nothing")
        return (
            f"{WORKERS} workers, {self._clients} clients; {faults}; {self.line.refusals} refusals and {self.line.cuts} cuts met;"
            f" longest pause {longest[0]:.2f} s after {longest[1]}; drained in {self.drained_s:.1f} s"
        )


@pytest.fixture(autouse=True)
def short_leases(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(limits, "LEASE_MS", LEASE_MS)
    monkeypatch.setattr(limits, "HEARTBEAT_MS", LEASE_MS // 3)
    return


async def test_P1_P2_P4_P8_P9_P14_P15_P21_chaos(tmp_path: Path, figure: Callable[[str], None]) -> None:
    chaos = Chaos(tmp_path / "store", seed=scale.SEED)
    found = await chaos.play()
    figure(f"PostgreSQL: {chaos.text}; {found.text}")
    assert chaos.faults == []
    assert found.faults == []
    assert found.told > CLIENTS
    assert chaos.gaps[0][0] < FLOW_S, chaos.gaps[:5]


async def test_P1_P2_P4_P8_P9_P14_P21_chaos_through_a_pooler(tmp_path: Path, figure: Callable[[str], None]) -> None:
    need_version(OLDEST)
    need_pgbouncer()
    chaos = Chaos(tmp_path / "store", seed=scale.SEED, clients=CLIENTS // 2, pooled=True)
    found = await chaos.play()
    figure(f"PostgreSQL {OLDEST} through pgbouncer: {chaos.text}; {found.text}")
    assert chaos.faults == []
    assert found.faults == []
    assert found.told > CLIENTS // 2
    assert chaos.gaps[0][0] < FLOW_S, chaos.gaps[:5]


async def found_out(chaos: Chaos) -> list[str]:
    """What is wrong; also that somebody never got an answer."""
    try:
        found = await chaos.play()
    except* Unanswered as red:
        chaos.faults += [str(error) for error in red.exceptions]
    else:
        chaos.faults += found.faults
    return chaos.faults


if scale.WHOLE:  # in the suite each of these is found out by what it breaks, without chance: test_lost_answers, test_locks, …

    @pytest.mark.parametrize("build", ["no fence", "no locks", "blind retry"])
    async def test_P2_P8_P14_builds_that_are_broken_are_found_out(
        tmp_path: Path, build: str, figure: Callable[[str], None]
    ) -> None:
        """The negative controls. What is wrong with a build does not show in every 20 s."""
        for seed in range(scale.SEED, scale.SEED + RED_TRIES):
            if faults := await found_out(Chaos(tmp_path / f"store-{seed}", seed=seed, rage_s=RED_S, build=build)):
                break
        figure(f"PostgreSQL, chaos on a build with {build}: {len(faults)} faults found, as they must be: {faults[:1]}")
        assert faults
