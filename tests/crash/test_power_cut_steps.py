"""The power goes while clients take turns with steps: what happened outside and what is kept go together all the same."""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from stateroom import limits
from stateroom.errors import StateroomError
from tests.crash import loopdisk, plays, scale
from tests.crash.history import History, history
from tests.crash.zygote import Zygote

pytestmark = [pytest.mark.anyio, pytest.mark.crash]

CLIENTS = 4


@pytest.fixture(autouse=True)
def disks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loopdisk.need_mounts(tmp_path)
    monkeypatch.setattr(limits, "QUEUE_LOOK_MS", 40)


async def cut(zygote: Zygote, folder: Path, *, trial: int, synchronous: str) -> None:
    """Clients work on a disk until its power goes; `folder` then has their store as the disk kept it, beside the world and
    what they were told, which are elsewhere."""
    folder.mkdir()
    file, moment_s = loopdisk.image(folder / "disk.img", mib=48), Random(trial).uniform(0.05, 0.6)
    with loopdisk.mounted(file, folder / "disk") as disk:
        child = await zygote.fork(
            plays.clients, folder, host=0, seed=trial, count=CLIENTS, store=str(disk / "store"), synchronous=synchronous
        )  # fmt: skip
        try:
            while len(plays.told_in(folder)) < CLIENTS:
                await asyncio.sleep(0.01)
            await asyncio.sleep(moment_s)
            child.signal(signal.SIGSTOP)
            copy = await asyncio.to_thread(loopdisk.copied, file, folder / "copy.img")
        finally:
            assert await child.killed() == -signal.SIGKILL, child.last_words()
    with loopdisk.mounted(copy, folder / "after") as disk:
        if (disk / "store").exists():
            shutil.copytree(disk / "store", folder / "store")


async def survived(folder: Path) -> History | str:
    """What became of it; in a word when there is nothing to be opened."""
    try:
        return await history(folder)
    except StateroomError as error:
        return f"the store does not open: {error}"


async def test_P1_P15_P16_P17_steps_survive_a_power_cut(zygote: Zygote, tmp_path: Path, figure: Callable[[str], None]) -> None:
    told = effects = 0
    for trial in range(scale.POWER_CUTS):
        await cut(zygote, tmp_path / str(trial), trial=trial, synchronous="full")
        found = await survived(tmp_path / str(trial))
        assert isinstance(found, History), found
        assert found.faults == [], f"trial {trial}"
        told, effects = told + found.told, effects + found.effects.done.total()
        shutil.rmtree(tmp_path / str(trial))
    figure(f"power cut with steps: {scale.POWER_CUTS} trials, {told} answers told, {effects} effects, 0 lost, 0 doubled")
    assert told


async def test_P1_P15_the_same_without_fsync_is_found_out(zygote: Zygote, tmp_path: Path, figure: Callable[[str], None]) -> None:
    """The negative control."""
    red = 0
    for trial in range(scale.POWER_CUTS_WITHOUT_FSYNC):
        await cut(zygote, tmp_path / str(trial), trial=trial, synchronous="off")
        found = await survived(tmp_path / str(trial))
        red += isinstance(found, str) or bool(found.faults)
        shutil.rmtree(tmp_path / str(trial))
    figure(f"power cut with steps without fsync: {red} of {scale.POWER_CUTS_WITHOUT_FSYNC} trials were found out")
    assert red == scale.POWER_CUTS_WITHOUT_FSYNC
