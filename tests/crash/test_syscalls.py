"""A worker is killed at its k-th system call that touches a disk, for every k: no place between two of them is special."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash import plays, scale
from tests.crash.actor import opened
from tests.crash.test_steps import ALL
from tests.crash.verdict import verdict
from tests.crash.zygote import Zygote

pytestmark = [pytest.mark.anyio, pytest.mark.crash]

# What a store and the world are written with. SQLite syncs with fdatasync, the world with fsync.
# The numbers say at which distance they are tried when not all are.
CALLS = {"fdatasync": 9, "pwrite64": 60, "fsync": 4, "ftruncate": 1, "unlink": 2}
KINDS = [ALL, "transactional+once"]


class Strace:
    """Attached to a process and all threads it will have; kills it at a call."""

    def __init__(self, pid: int, call: str, number: int) -> None:
        command = ["strace", "-f", "-o", "/dev/null", "-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={number}"]
        self._process = subprocess.Popen([*command, "-p", str(pid)], stderr=subprocess.PIPE, text=True)
        assert self._process.stderr is not None
        self.said = self._process.stderr.readline()

    @property
    def attached(self) -> bool:
        return "attached" in self.said

    def close(self) -> None:
        assert self._process.stderr is not None
        self._process.terminate()
        self._process.wait()
        self._process.stderr.close()


@pytest.fixture
async def traceable(zygote: Zygote, tmp_path: Path) -> None:
    """Skip, saying why, where nothing can be traced."""
    if shutil.which("strace") is None:
        pytest.skip("KILLS AT SYSTEM CALLS NOT TESTED: there is no strace")
    child = await zygote.fork(plays.nothing, tmp_path, waits=True)
    strace = await asyncio.to_thread(Strace, child.pid, "fsync", 1)
    child.signal(signal.SIGUSR1)
    await child.ended()
    strace.close()
    if not strace.attached:
        pytest.skip(f"KILLS AT SYSTEM CALLS NOT TESTED: tracing is forbidden: {strace.said}")


async def killed(zygote: Zygote, folder: Path, call: str, number: int) -> bool:
    """Whether the worker made that many calls in one of its threads, and died of it."""
    child = await zygote.fork(plays.turns, folder, waits=True, kinds=KINDS, pause_s=0.0)
    strace = await asyncio.to_thread(Strace, child.pid, call, number)
    assert strace.attached, strace.said
    child.signal(signal.SIGUSR1)
    try:
        status = await child.ended()
    finally:
        strace.close()
    assert status in (0, -signal.SIGKILL), child.last_words()
    return status != 0


@pytest.mark.parametrize("fresh", [False, True], ids=["on a store", "on a new store"])
@pytest.mark.usefixtures("traceable")
async def test_P1_P2_P9_P10_P14_P15_P16_P17_killed_at_every_system_call(
    zygote: Zygote, tmp_path: Path, fresh: bool, figure: Callable[[str], None]
) -> None:
    """strace counts in each thread by itself. On a store that is there already it is the writer that gets to the k-th call;
    on a new one it is the thread that makes the tables."""
    if not fresh:
        await (await opened(plays.store_of(tmp_path / "made"), plays.world_of(tmp_path))).close()
    tried = 0
    for call, distance in CALLS.items():
        for number in itertools.count(1, 1 if scale.WHOLE else distance):
            folder = tmp_path / f"{call}-{number}"
            folder.mkdir()
            if not fresh:
                shutil.copytree(tmp_path / "made" / "store", plays.store_of(folder))
            fired = await killed(zygote, folder, call, number)
            found = await verdict(folder, KINDS)
            assert found.faults == [], (call, number)
            shutil.rmtree(folder)
            if not fired:
                break
            tried += 1
    figure(f"system calls, {'new store' if fresh else 'store'}: killed at {tried} points, 0 lost, 0 doubled")
    assert tried >= 5
