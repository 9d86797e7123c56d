"""Acknowledged means durable, through a power cut too; and the test can tell: without fsync it goes red."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from stateroom.errors import StateroomError
from tests.crash import loopdisk, scale, writer
from tests.crash.checks import Acked, acks, broken_invariants, damage, record_of, wrong_with

pytestmark = [pytest.mark.anyio, pytest.mark.crash]

TASKS = 4


@pytest.fixture(autouse=True)
def disks(tmp_path: Path) -> None:
    loopdisk.need_mounts(tmp_path)


def cut(tmp_path: Path, *, synchronous: str, moment_s: float) -> tuple[list[Acked], Path]:
    """Let a program write on a disk, stop it at a moment, take the disk away: what it had acknowledged, and the disk."""
    file = loopdisk.image(tmp_path / "disk.img", mib=48)
    with loopdisk.mounted(file, tmp_path / "disk") as disk:
        command = [sys.executable, str(Path(writer.__file__)), str(disk / "store"), synchronous, str(TASKS), "t"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        heard: list[bytes] = []
        ear = threading.Thread(target=_listen, args=(process, heard))  # so that a full pipe never stops it
        try:
            ear.start()
            until = time.monotonic() + 30
            while not heard and time.monotonic() < until:
                time.sleep(0.01)
            time.sleep(moment_s)
            os.kill(process.pid, signal.SIGSTOP)
            copy = loopdisk.copied(file, tmp_path / "copy.img")
        finally:
            process.kill()
            process.wait()
            ear.join()
        return acks(b"".join(heard)), copy


def _listen(process: subprocess.Popen[bytes], heard: list[bytes]) -> None:
    assert process.stdout is not None
    with process.stdout as stdout:
        while piece := os.read(stdout.fileno(), 65536):
            heard.append(piece)


async def survived(acknowledged: list[Acked], copy: Path, at: Path) -> list[str]:
    """Mount what the disk had, open the store so that it recovers, and say what is wrong with it."""
    with loopdisk.mounted(copy, at) as disk:
        try:
            room = await writer.opened(disk / "store")
        except StateroomError as error:
            return [f"the store does not open: {error}"]
        try:
            record = await record_of(room, {ack.conversation for ack in acknowledged})
            faults = wrong_with(acknowledged, record)
            for ack in acknowledged[-20:]:
                again = await room.turn(f"turn {ack.key}", conversation=ack.conversation, key=ack.key)
                faults += [] if again.response == ack.response else [f"doubled: {ack.key} was answered anew"]
            while room.stack.turns.workshop.busy:
                await asyncio.sleep(0.01)
            faults += await broken_invariants(room.stack.backend)
        except StateroomError as error:
            return [f"lost: {error}"]
        finally:
            await room.close()
        return faults + damage(disk / "store")


async def test_P1_P9_what_was_acknowledged_survives_a_power_cut(tmp_path: Path, figure: Callable[[str], None]) -> None:
    seen = 0
    for trial in range(scale.POWER_CUTS):
        moment_s = random.Random(trial).uniform(0.05, 0.8)
        acknowledged, copy = await asyncio.to_thread(cut, tmp_path, synchronous="full", moment_s=moment_s)
        faults = await survived(acknowledged, copy, tmp_path / "after")
        assert faults == [], f"trial {trial}, {len(acknowledged)} acknowledged"
        assert acknowledged
        seen += len(acknowledged)
    figure(f"power cut: {scale.POWER_CUTS} trials, {seen} turns acknowledged, 0 lost, 0 doubled")


async def test_P1_the_same_without_fsync_is_found_out(tmp_path: Path, figure: Callable[[str], None]) -> None:
    """The negative control: were this green, the test above would prove nothing."""
    trials, red = scale.POWER_CUTS_WITHOUT_FSYNC, 0
    for trial in range(trials):
        moment_s = random.Random(trial).uniform(0.2, 0.6)
        acknowledged, copy = await asyncio.to_thread(cut, tmp_path, synchronous="off", moment_s=moment_s)
        assert acknowledged
        red += bool(await survived(acknowledged, copy, tmp_path / "after"))
    figure(f"power cut without fsync: {red} of {trials} trials lost what they had acknowledged, as they must")
    assert red == trials
