"""100,000 sessions expire at once beside turns: no turn waits for them (P23). Bounded in the suite, whole in the campaign."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import quantiles

import pytest

from stateroom import ids, limits
from stateroom.backends.base import Backend
from stateroom.backends.postgres.backend import PostgresBackend
from stateroom.backends.sqlite.backend import SqliteBackend
from stateroom.batch import Batch, Write
from stateroom.flows.agent import Turn
from stateroom.flows.expire import Expiry
from stateroom.flows.turn import TurnRequest
from stateroom.hosting.callable import CallableAgent
from stateroom.principal import LOCAL
from stateroom.session.model import OpenSession, PatchSlots, SlotPatch
from stateroom.stack import Stateroom
from tests.crash import scale
from tests.services.postgres import Server
from tests.services.store import as_role, migrated

pytestmark = [pytest.mark.anyio, pytest.mark.crash]

SESSIONS = 100_000 if scale.WHOLE else 1_500
TURNS = 500 if scale.WHOLE else 80
MORE_P50, MORE_MS = 2.0, 1.0  # a turn beside the sweeper takes at most so much longer, and so many ms more on a fast disk


@pytest.fixture
def server() -> Iterator[Server]:
    with Server.start() as made:
        yield made


@pytest.fixture(params=["sqlite", "postgres"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    """With every fsync."""
    if request.param == "sqlite":
        opened: Backend = await SqliteBackend.open(tmp_path / "store")
    else:
        server: Server = request.getfixturevalue("server")
        opened = await PostgresBackend.open(as_role(migrated(server.create_database("store"))))
    return opened


async def fill(store: Backend) -> None:
    """Sessions with something on them, whose time has come."""
    owner, share, commits = LOCAL.principal, limits.BATCH_WRITES_MAX // 2, []
    for start in range(0, SESSIONS, share):
        home, writes = ids.new_home(), list[Write]()
        for _ in range(min(share, SESSIONS - start)):
            desk = ids.new(home, store.clock.wall_ms())
            writes += [
                OpenSession(id=desk, owner=owner, subject=owner, ttl_ms=1),
                PatchSlots(session=desk, by=owner, patches=(SlotPatch(name="cart", body=b'{"shoe-7": 1}'),)),
            ]
        commits.append(store.commit(Batch(id=ids.new(home, 1), scope=LOCAL, at=store.clock.wall_ms(), writes=tuple(writes))))
        if len(commits) == 32:
            await asyncio.gather(*commits)
            commits.clear()
    await asyncio.gather(*commits)


async def echo(turn: Turn) -> str:
    turn.set("turns", turn.slots.get("turns", 0) + 1)
    return "heard"


class Talk:
    """One conversation, turn after turn."""

    def __init__(self, room: Stateroom, conversation: bytes) -> None:
        self._room, self._conversation = room, conversation

    async def turn(self) -> float:
        """How long it took, ms."""
        began = time.perf_counter()
        body = b'{"type":"message","role":"user","content":"hi"}'
        request = TurnRequest(agent="echo", input=(body,), conversation=self._conversation)
        ticket = await self._room.turns.take(LOCAL, request)
        outcome = await self._room.turns.outcome(LOCAL, ticket.run.id, timeout_s=30)
        assert outcome.run.status == "completed"
        return (time.perf_counter() - began) * 1000

    async def turns(self, count: int) -> list[float]:
        return [await self.turn() for _ in range(count)]


async def swept(expiry: Expiry) -> int:
    """One sweep after the other, as fast as it can: harder on turns than the sweeper, who rests for a second in between."""
    total = 0
    while handled := await expiry.sweep():
        total += handled
    return total


def told(took: list[float]) -> tuple[float, float]:
    """Median and p99."""
    parts = quantiles(took, n=100)
    return parts[49], parts[98]


async def test_P23_no_turn_waits_for_what_expires(store: Backend, figure: Callable[[str], None]) -> None:
    await fill(store)
    room = Stateroom(store, {"echo": CallableAgent("echo", echo)}, owner=store.owner, default_agent="echo")
    talk = Talk(room, (await room.conversations.create(LOCAL)).id)
    await talk.turns(TURNS // 4)
    before = told(await talk.turns(TURNS))
    began, sweeping, took = time.monotonic(), asyncio.create_task(swept(room.expiry)), list[float]()
    while not sweeping.done():
        took.append(await talk.turn())
    seconds, during = time.monotonic() - began, told(took)
    assert await sweeping == SESSIONS
    after = told(await talk.turns(TURNS))
    await room.close()
    figure(
        f"{type(store).__name__}: {SESSIONS:,} sessions purged in {seconds:.0f} s beside {len(took)} turns; turn p50/p99 ms:"
        f" before {before[0]:.2f}/{before[1]:.2f}, beside {during[0]:.2f}/{during[1]:.2f}, after {after[0]:.2f}/{after[1]:.2f}"
    )
    usual = max(before[0], after[0])
    assert during[0] <= max(MORE_P50 * usual, usual + MORE_MS), "turns wait for what expires"
