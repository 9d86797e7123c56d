"""What is lost of an ephemeral session, and when: nothing with a process, all of it with the machine, and never half (S19)."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stateroom.backends.sqlite.backend import SqliteBackend
from stateroom.clock import FrozenClock, SystemClock
from stateroom.errors import StateroomError, Unavailable
from tests.crash import ephemeral_plays as plays
from tests.crash import loopdisk, scale
from tests.crash.checks import damage
from tests.crash.test_P19_io_faults import Faults, FaultyVfs
from tests.crash.zygote import Zygote

pytestmark = [pytest.mark.anyio, pytest.mark.crash]


class AnotherBoot(SystemClock):
    """The machine was started again."""

    def boot_id(self) -> str:
        return "another"


async def seen(folder: Path, *, anew: bool = False) -> plays.Found:
    """What is there for whoever opens the store next."""
    store = await SqliteBackend.open(folder, clock=AnotherBoot() if anew else None)
    try:
        return await plays.found(store)
    finally:
        await store.close()


async def swept(zygote: Zygote, base: Path, *, build: str = "") -> tuple[list[str], list[plays.Found]]:
    """Death at every write into the second file: what was wrong afterwards, and what was seen."""
    faults, all_seen = list[str](), list[plays.Found]()
    for at in range(1, 500):
        folder = base / f"{build}{at}"
        folder.mkdir()
        child = await zygote.fork(plays.dies, folder, at=at, build=build)
        status = await child.ended()
        assert status in (0, -signal.SIGKILL), child.last_words()
        if status == 0:
            break
        all_seen.append(await seen(folder / "store"))
        faults += [f"write {at}: {fault}" for fault in all_seen[-1].faults(2)]
        assert damage(folder / "store") == []
    return faults, all_seen


async def test_S19_killed_between_the_two_files_nothing_is_torn(
    zygote: Zygote, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    faults, all_seen = await swept(zygote, tmp_path)
    assert faults == []
    assert [found.error for found in all_seen if found.error] == [], "what the dead process had begun is done by the next"
    figure(f"ephemeral: killed at {len(all_seen)} writes into the second file, 0 lost, 0 torn")
    assert len(all_seen) > 20


async def test_S19_builds_that_do_not_go_on_or_do_not_tell_are_found_out(zygote: Zygote, tmp_path: Path) -> None:
    """The negative controls: without what is to be done again desks are lost, and without the durable version they are torn."""
    faults, all_seen = await swept(zygote, tmp_path, build="no redo")
    assert faults == []
    assert any(found.error == "state_lost" for found in all_seen)
    faults, _ = await swept(zygote, tmp_path, build="neither")
    assert faults


@contextmanager
def writing(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], list[bytes]]]:
    """A program that writes, and what it has acknowledged so far."""
    process = subprocess.Popen([sys.executable, str(Path(plays.__file__)), str(folder)], stdout=subprocess.PIPE)
    heard: list[bytes] = []

    def listen() -> None:
        assert process.stdout is not None
        with process.stdout as stdout:
            while piece := os.read(stdout.fileno(), 65536):
                heard.append(piece)

    ear = threading.Thread(target=listen)
    ear.start()
    try:
        until = time.monotonic() + 30
        while not heard and time.monotonic() < until:
            time.sleep(0.01)
        yield process, heard
    finally:
        process.kill()
        process.wait()
        ear.join()


def acknowledged(heard: list[bytes]) -> int:
    return max((int(line) for line in b"".join(heard).split(b"\n")[:-1]), default=0)


async def test_S19_a_killed_process_loses_nothing_that_it_had_acknowledged(tmp_path: Path, figure: Callable[[str], None]) -> None:
    total = 0
    for trial in range(40 if scale.WHOLE else 5):
        with writing(tmp_path / str(trial)) as (process, heard):
            await asyncio.sleep(random.Random(trial).uniform(0.01, 0.4))
            process.kill()
        found, acked = await seen(tmp_path / str(trial)), acknowledged(heard)
        assert found.faults(10) == []
        assert found.desk[0] >= acked > 0
        total += acked
    figure(f"ephemeral: {total} changes acknowledged before kill -9, 0 lost")


def cut(tmp_path: Path, moment_s: float) -> tuple[int, Path]:
    """As the other power cuts: what was acknowledged, and what the disk had."""
    file = loopdisk.image(tmp_path / "disk.img", mib=48)
    with loopdisk.mounted(file, tmp_path / "disk") as disk:
        with writing(disk / "store") as (process, heard):
            time.sleep(moment_s)
            os.kill(process.pid, signal.SIGSTOP)
            copy = loopdisk.copied(file, tmp_path / "copy.img")
        return acknowledged(heard), copy


async def test_S19_a_power_cut_is_said_and_what_is_durable_is_there(tmp_path: Path, figure: Callable[[str], None]) -> None:
    loopdisk.need_mounts(tmp_path)
    trials = scale.POWER_CUTS
    for trial in range(trials):
        acked, copy = await asyncio.to_thread(cut, tmp_path, random.Random(trial).uniform(0.1, 0.8))
        assert acked > 10
        with loopdisk.mounted(copy, tmp_path / "after") as disk:
            found = await seen(disk / "store", anew=True)
            assert found.error == "state_lost"
            assert max(found.said) >= acked - (acked + 1) % 10, "what was said beside it is durable"
            assert damage(disk / "store") == []
    figure(f"ephemeral: {trials} power cuts, all said with state_lost, 0 lost of what is durable")


async def test_S19_a_build_that_trusts_the_second_file_after_a_power_cut_is_found_out(tmp_path: Path) -> None:
    """The negative control: to who takes this boot for that one, acknowledged changes are gone, or half there."""
    loopdisk.need_mounts(tmp_path)
    acked, copy = await asyncio.to_thread(cut, tmp_path, 0.4)
    with loopdisk.mounted(copy, tmp_path / "after") as disk:
        try:
            found = await seen(disk / "store")
        except StateroomError:
            return
        assert found.error or found.desk[0] < acked


@pytest.fixture
def faults() -> Iterator[Faults]:
    made = Faults()
    vfs = FaultyVfs("faulty beside", made)
    yield made
    made.at = 0
    vfs.unregister()


async def refused(folder: Path, faults: Faults, kind: str, at: int) -> list[str]:
    """Ten changes, every other one said as well, while the disk fails once: what of them was refused."""
    store, wrong = await SqliteBackend.open(folder, vfs="faulty beside"), list[str]()
    await plays.begins(store)
    faults.kind, faults.seen, faults.fired, last = kind, 0, False, 0
    for n in range(1, 11):
        faults.at = at
        try:
            await plays.commit(store, plays.changes(n), *([plays.says(n)] if n % 2 else []))
            last = n
        except Unavailable as error:
            wrong.append(error.reason)
        faults.at = 0
        found = await plays.found(store)
        assert (found.error, set(found.desk)) == ("", {last}), "acknowledged is there, refused is not"
        assert max(found.said, default=0) == max((k for k in found.said if k <= last), default=0)
    await store.close()
    assert set((await seen(folder)).desk) == {last}
    return wrong


@pytest.mark.parametrize("kind", ["write", "sync"])
async def test_P19_S19_every_write_and_every_sync_may_fail_beside_an_ephemeral_desk(
    tmp_path: Path, faults: Faults, kind: str
) -> None:
    tried = 0
    for at in range(1, 400, 1 if scale.WHOLE else 3):
        await refused(tmp_path / str(at), faults, kind, at)
        if not faults.fired:
            break
        tried += 1
    assert tried > 1


async def test_a_change_of_an_ephemeral_session_costs_no_fsync(tmp_path: Path, faults: Faults) -> None:
    store = await SqliteBackend.open(tmp_path, vfs="faulty beside", clock=FrozenClock())
    await plays.begins(store)
    faults.kind, faults.seen, faults.at = "sync", 0, 10**9
    for n in range(1, 60):
        await plays.commit(store, plays.changes(n))
    assert faults.seen == 0
    await plays.commit(store, plays.changes(60), plays.says(60))
    assert faults.seen > 0
    faults.at = 0
    await store.close()
