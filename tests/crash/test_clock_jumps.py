"""The wall clock of a worker jumps by a day and back while runs are live: no lease is stolen or revived, nothing is reordered,
nothing expires early or late (P13). Once with a clock of ours, once with a process that is deceived by libfaketime."""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from stateroom import limits
from stateroom.conversation.model import ItemQuery
from stateroom.flows.agent import AgentEvent, Delta, Turn
from stateroom.flows.turn import Ticket, TurnRequest
from stateroom.hosting.callable import CallableAgent
from stateroom.principal import LOCAL
from stateroom.stack import Stateroom
from tests.crash import plays
from tests.crash.actor import ended, opened
from tests.crash.checks import runs_of
from tests.crash.invariants import texts, violations
from tests.crash.test_stopped import stopped
from tests.crash.where import Place, open_backend
from tests.crash.zygote import Forked, Zygote, zygotes

pytestmark = [pytest.mark.anyio, pytest.mark.crash]

DAY_S, HOUR_S = 86_400, 3_600
JUMPS_S = (DAY_S, -DAY_S, HOUR_S, -2 * DAY_S, 0)


@pytest.fixture(params=["a clock of ours", "faketime"])
def jumper(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Zygote]:
    """The parent of a worker whose wall is as wrong as the file says."""
    (tmp_path / "wall").write_text("+0s")
    environ: dict[str, str] = {}
    if request.param == "faketime":
        if shutil.which("faketime") is None:
            pytest.skip("CLOCK JUMPS OF A WHOLE PROCESS NOT TESTED: there is no faketime (on Debian: apt install faketime)")
        preload = subprocess.run(["faketime", "-f", "+0s", "env"], capture_output=True, text=True, check=True).stdout
        environ = {
            "LD_PRELOAD": next(line.partition("=")[2] for line in preload.splitlines() if line.startswith("LD_PRELOAD=")),
            "FAKETIME_TIMESTAMP_FILE": str(tmp_path / "wall"), "FAKETIME_NO_CACHE": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }  # fmt: skip
    with zygotes(1, environ) as (made,):
        made.own = not environ  # type: ignore[attr-defined]
        yield made


class Here:
    """A worker of this process, whose clock is right: its agent waits as it is told and says when it has been asked."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.room: Stateroom

    async def agent(self, turn: Turn) -> AsyncIterator[AgentEvent]:
        match turn.text.split()[0]:
            case "hold":
                await self.go_on.wait()
            case "sleep":
                await turn.sleep("nap", float(turn.text.split()[1]))
            case "approve":
                await turn.approval("pay", {}, wait_s=HOUR_S)
        yield Delta(turn.text)

    async def take(self, text: str, *, deadline_ms: int = 0) -> Ticket:
        body = b'{"type":"message","role":"user","content":"%s"}' % text.encode()
        return await self.room.turns.take(LOCAL, TurnRequest(agent="here", input=(body,), deadline_ms=deadline_ms))

    async def open(self, place: Place) -> None:
        backend = await open_backend(place)
        self.room = Stateroom(backend, {"here": CallableAgent("here", self.agent)}, owner=backend.owner, default_agent="here")
        await self.room.start()


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Here]:
    made = Here()
    await made.open(plays.store_of(tmp_path))
    yield made
    await made.room.close(grace_s=0)


async def jump(folder: Path, *, turns: int = 2) -> None:
    """Turn the wall to and fro; each time the worker takes some turns."""
    for seconds in JUMPS_S:
        (folder / "wall.new").write_text(f"{seconds:+d}s")
        (folder / "wall.new").rename(folder / "wall")
        told = len(plays.told_in(folder))
        while len(plays.told_in(folder)) < told + turns:
            await asyncio.sleep(0.01)


async def begun(jumper: Zygote, folder: Path) -> Forked:
    child = await jumper.fork(plays.jumps, folder, own=jumper.own)  # type: ignore[attr-defined]
    while not plays.told_in(folder):
        await asyncio.sleep(0.01)
    return child


async def test_P13_a_day_to_and_fro_steals_revives_reorders_and_expires_nothing(
    jumper: Zygote, here: Here, tmp_path: Path
) -> None:
    held, lost = await here.take("hold on"), await here.take("hold on too")
    napping, asked, late = (
        await here.take("sleep 3600"),
        await here.take("approve it"),
        await here.take("hold", deadline_ms=HOUR_S * 1000),
    )
    child = await begun(jumper, tmp_path)
    try:
        await jump(tmp_path)
        short = await here.take("sleep 0.2")
        await asyncio.wait_for(here.room.turns.outcome(LOCAL, short.run.id), 5)
        (tmp_path / "enough").touch()
        assert await child.ended() == 0, child.last_words()
    except BaseException:
        await child.killed()
        raise
    told = plays.told_in(tmp_path)
    walls = [int(one.text) for one in told]
    assert max(walls) - min(walls) > 2.9 * DAY_S * 1000, "the wall did jump"

    backend = here.room.backend
    for ticket in (held, lost, late):
        row = await backend.run(LOCAL, ticket.run.id)
        assert (row.status, row.fence, row.attempt, row.lease_owner) == ("in_progress", 1, 1, backend.owner), "nobody took it"
    for ticket in (napping, asked):
        assert (await backend.run(LOCAL, ticket.run.id)).status == "requires_action", "its time has not come"
    here.go_on.set()
    for ticket in (held, lost, late):
        assert (await here.room.turns.outcome(LOCAL, ticket.run.id, timeout_s=5)).run.status == "completed"
    for one in told:
        row = await backend.run(LOCAL, bytes.fromhex(one.run[4:]))
        assert (one.status, row.attempt, row.fence) == ("completed", 1, 1), "nor did anybody take one of the other worker's"
    items = await backend.items(LOCAL, ItemQuery(branch=row.branch, limit=limits.READ_ITEMS_MAX))
    assert texts(items) == [f"wait+idempotent a{number}" for number in range(len(told))], "in the order they were said"
    for ticket in (napping, asked):
        await here.room.cancels.cancel(LOCAL, ticket.run.id)
    await here.room.close()
    assert violations(plays.store_of(tmp_path)) == []


async def test_P13_P8_a_wall_that_goes_back_revives_no_lease(jumper: Zygote, tmp_path: Path) -> None:
    """A worker sleeps past its lease, another one takes its run, and the wall says that it is yesterday."""
    child = await jumper.fork(
        plays.jumps, tmp_path, own=jumper.own, lease_ms=150, environ={"STATEROOM_FAILPOINT": "turn.hydrated:stop"}  # type: ignore[attr-defined]
    )  # fmt: skip
    try:
        await stopped(child.pid)
        await asyncio.sleep(0.15)
        (tmp_path / "wall").write_text(f"-{DAY_S}s")
        world = plays.world_of(tmp_path)
        room = await opened(plays.store_of(tmp_path), world)
        (run,) = await runs_of(room.backend)
        answered = await ended(room, world, run.id)
        (tmp_path / "enough").touch()
        child.signal(signal.SIGCONT)
        assert await child.ended() == 0, child.last_words()
    except BaseException:
        await child.killed()
        raise
    assert plays.refused_in(tmp_path), "what it had to say was refused"
    assert (await room.backend.run(LOCAL, run.id)) == answered.run
    assert (answered.run.status, answered.run.attempt) == ("completed", 2)
    await room.close()
    assert violations(plays.store_of(tmp_path)) == []
