"""A worker is stopped until its lease is over, somebody takes its run, and it goes on: what it says then is refused (P8)."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from stateroom import limits
from stateroom.principal import LOCAL
from tests.crash import plays, scale
from tests.crash.actor import EFFECTS, opened
from tests.crash.checks import runs_of
from tests.crash.test_steps import FIRST_LIVES
from tests.crash.verdict import verdict
from tests.crash.zygote import Zygote

pytestmark = [pytest.mark.anyio, pytest.mark.crash]

LEASE_MS = 150
ONCE = ("once", "verified", "approved")
SILENT = ("turn.finished", "turn.paused")  # it had nothing more to say


async def overtaken(zygote: Zygote, folder: Path, effect: str, failpoint: str, *, build: str = "") -> list[str]:
    """What is wrong after a takeover, and after the first worker went on."""
    folder.mkdir(exist_ok=True)
    child = await zygote.fork(
        plays.turns, folder, environ={"STATEROOM_FAILPOINT": f"{failpoint}:stop"}, kinds=[effect], lease_ms=LEASE_MS, build=build
    )  # fmt: skip
    try:
        await stopped(child.pid)
        await asyncio.sleep(LEASE_MS / 1000)
        faults = (await verdict(folder, [effect])).faults
        child.signal(signal.SIGCONT)
        status = await asyncio.wait_for(child.ended(), 20)
    except BaseException:
        await child.killed()
        raise
    if not build:
        assert status == 0, child.last_words()
    return faults + (await verdict(folder, [effect])).faults


async def stopped(pid: int) -> None:
    """Wait until a process is."""
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        await asyncio.sleep(0.005)


# A fence guards the store, not the world: an effect between its intent and its beginning is held back by the lease.
@pytest.mark.parametrize(
    ("effect", "failpoint"), dict.fromkeys([*((effect, "step.intended") for effect in ONCE), *FIRST_LIVES[:: scale.STRIDE]])
)
async def test_P8_P9_P14_P15_a_worker_that_sleeps_past_its_lease_writes_nothing(
    zygote: Zygote, tmp_path: Path, effect: str, failpoint: str
) -> None:
    assert await overtaken(zygote, tmp_path, effect, failpoint) == []
    assert bool(plays.refused_in(tmp_path)) == (failpoint not in SILENT)


@pytest.mark.parametrize("failpoint", ["turn.accepted", "turn.recorded", "step.intended", "step.performed", "turn.answered"])
async def test_P12_P8_a_run_whose_worker_does_not_move_is_cancelled_in_time(
    zygote: Zygote, tmp_path: Path, failpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease is alive: nobody waits for that."""
    monkeypatch.setattr(limits, "CANCEL_GRACE_MS", 200)
    child = await zygote.fork(
        plays.turns, tmp_path, environ={"STATEROOM_FAILPOINT": f"{failpoint}:stop"}, kinds=["idempotent"]
    )  # fmt: skip
    try:
        await stopped(child.pid)
        room = await opened(plays.store_of(tmp_path), plays.world_of(tmp_path))
        (run,) = await runs_of(room.backend)
        async with asyncio.timeout(1.5):
            assert (await room.cancels.cancel(LOCAL, run.id)).status == "cancelled"
            assert (await room.cancels.cancel(LOCAL, run.id)).status == "cancelled", "asked twice is asked once"
        await room.close()
        child.signal(signal.SIGCONT)
        assert await child.ended() == 0, child.last_words()
    except BaseException:
        await child.killed()
        raise
    assert plays.refused_in(tmp_path)
    found = await verdict(tmp_path, ["idempotent"], completed=False)
    assert (found.faults, found.statuses) == ([], ["cancelled"])


async def test_P8_a_build_without_fences_is_found_out(zygote: Zygote, tmp_path: Path, figure: Callable[[str], None]) -> None:
    """The negative control."""
    red = [
        name
        for name in ("turn.hydrated", "turn.recorded")
        if await overtaken(zygote, tmp_path / name, "pure", name, build="no fence")
    ]
    figure(f"stopped, a build without fences: {len(red)} of 2 late workers wrote into a run that was not theirs, as they must")
    assert len(red) == 2


def test_every_class_is_stopped() -> None:
    assert {effect for effect, _ in FIRST_LIVES} == set(EFFECTS)
