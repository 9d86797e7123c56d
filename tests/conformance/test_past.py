"""What compaction leaves of a desk's past is what somebody can still ask for, and finding out costs what is new."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence

import pytest

from stateroom import ids
from stateroom.backends.base import Backend
from stateroom.backends.sqlite.backend import SqliteBackend
from stateroom.batch import Batch, Receipt, Write
from stateroom.principal import LOCAL, operator
from stateroom.session.model import CompactPast, DropCheckpoint, MakeCheckpoint, OpenSession, PatchSlots, SlotPatch
from stateroom.session.receipts import Compacted
from tests.services.places import EVERY, Place

pytestmark = pytest.mark.anyio
NAMES = "abcdef"


class Desk:
    """A desk at a store, and what ought to be kept of it."""

    def __init__(self, backend: Backend) -> None:
        self.backend, self.id = backend, ids.new(7, 1)
        self.version, self.kept_from = 0, 0
        self.changed: dict[str, list[int]] = {}
        self.named: dict[str, int] = {}

    async def does(self, write: Write) -> Receipt:
        batch = Batch(id=ids.new(7, 1), scope=operator("local", "local"), at=1, writes=(write,))
        return (await self.backend.commit(batch))[0]

    async def open(self) -> None:
        await self.does(OpenSession(id=self.id, owner="local", subject="local"))

    async def patch(self, names: Sequence[str]) -> None:
        self.version += 1
        for name in names:
            self.changed.setdefault(name, []).append(self.version)
        patches = tuple(SlotPatch(name, b"%d" % self.version) for name in names)
        await self.does(PatchSlots(session=self.id, patches=patches, by="local"))

    async def mark(self, name: str, version: int) -> None:
        self.named[name] = version
        await self.does(MakeCheckpoint(session=self.id, name=name, by="local", version=version))

    async def drop(self, name: str) -> None:
        del self.named[name]
        await self.does(DropCheckpoint(session=self.id, name=name))

    async def compact(self, before: int, limit: int = 0) -> None:
        more = True
        while more:
            done = await self.does(CompactPast(session=self.id, before=before, limit=limit))
            assert isinstance(done, Compacted)
            more = done.more
        self.kept_from = max(self.kept_from, min(before, self.version))

    def wanted(self) -> dict[str, list[int]]:
        """Of each slot the versions that are read as of one that is kept."""
        kept = {*self.named.values(), *range(self.kept_from, self.version + 1)}
        return {
            name: sorted({max((one for one in made if one <= version), default=0) for version in kept} - {0, made[-1]})
            for name, made in self.changed.items()
        }

    async def past(self) -> dict[str, list[int]]:
        found = {name: await self.backend.past(LOCAL, self.id, name, 1000) for name in self.changed}
        return {name: sorted(slot.version for slot in rows) for name, rows in found.items()}


@pytest.fixture(params=EVERY)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def desk(place: Place) -> AsyncIterator[Desk]:
    made = Desk(await place.backend())
    await made.open()
    yield made
    await made.backend.close()


@pytest.mark.parametrize("seed", range(4))
async def test_S11_what_is_left_is_what_somebody_can_ask_for(desk: Desk, seed: int) -> None:
    draw = random.Random(seed)
    for step in range(120):
        await desk.patch(draw.sample(NAMES, draw.randint(1, 4)))
        if draw.random() < 0.2:
            await desk.mark(f"at {step}", draw.randint(desk.kept_from, desk.version))
        if desk.named and draw.random() < 0.15:
            await desk.drop(draw.choice(sorted(desk.named)))
        if draw.random() < 0.15:
            await desk.compact(draw.randint(0, desk.version + 2), draw.choice((0, 0, 1, 3)))
            assert await desk.past() == desk.wanted()


async def test_what_has_names_is_not_looked_through_each_time(desk: Desk) -> None:
    """On SQLite in steps of its machine: beside a past 16 times as large only the names are looked at."""
    if not isinstance(desk.backend, SqliteBackend):
        pytest.skip("steps are counted on SQLite")
    costs, steps = [], 0

    def count() -> bool:
        nonlocal steps
        steps += 1
        return False

    for names in (4, 60):
        for n in range(names):
            await desk.patch([f"{letter}{number}" for letter in NAMES for number in range(10)])
            await desk.mark(f"{names}-{n}", desk.version)
        await desk.patch("a")
        await desk.compact(desk.version)
        await desk.patch("a")
        desk.backend._db.set_progress_handler(count, 10)
        before = steps
        await desk.compact(desk.version)
        costs.append(steps - before)
        desk.backend._db.set_progress_handler(None)
        watched = len((await desk.backend.told(LOCAL, desk.id, after=desk.version - 1, limit=5)).slots)
        assert watched == 1
    assert costs[1] < 4 * costs[0], costs
