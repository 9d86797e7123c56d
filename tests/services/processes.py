"""What every service stands on: an account that is not root, a free port, and a process that cannot outlive its users."""

from __future__ import annotations

import fcntl
import os
import pwd
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

GUARD: Final = Path(__file__).with_name("guard.py")
PORTS: Final = range(20_000, 32_000)  # below those that outgoing connections get: one of them must not sit on ours between starts
LOOK_S: Final = 0.02
TOOL_S: Final = 120.0
GONE_S: Final = 30.0


class NotStarted(Exception):
    """A service did not come up; with the end of what it said."""


def unprivileged() -> tuple[str, ...]:
    """What to put before a command that refuses to run as root: it becomes `nobody`, who may open what root may.

    That one privilege is kept because the folders of tests, and sometimes the environment itself, are root's alone.
    """
    if os.geteuid() != 0:
        return ()
    nobody = pwd.getpwnam("nobody")
    account = (f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups")
    return ("setpriv", *account, "--inh-caps=+dac_override", "--ambient-caps=+dac_override", "--")


def free_port() -> int:
    """A loopback port that nobody listens on, good for more than one start."""
    for port in random.SystemRandom().sample(PORTS, 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError("no free port was found")


def tool(*command: str) -> None:
    """Run a program to its end, as a service would run."""
    done = subprocess.run([*unprivileged(), *command], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TOOL_S)
    if done.returncode:
        raise NotStarted(f"{command[0]} ended with {done.returncode}:\n{done.stdout}{done.stderr}")


def wait_until(reached: Callable[[], bool], *, within_s: float) -> bool:
    """Whether it was reached in time."""
    deadline = time.monotonic() + within_s
    while not reached():
        if time.monotonic() > deadline:
            return False
        time.sleep(LOOK_S)
    return True


# ── a home, and who uses it ─────────────────────────────────────────────────────────────────────────────────────────


def new_home() -> Path:
    """A folder with a short name, as sockets need it; it goes when the service is closed or its last user has ended."""
    home = Path(tempfile.mkdtemp(prefix="stateroom-", dir="/tmp"))
    (home / "users").touch()
    return home


def use(home: Path) -> int | None:
    """Hold what lives there until this process ends or lets go of the number it gets; none if nobody can use it any more."""
    users = home / "users"
    try:
        held = os.open(users, os.O_RDWR)
    except FileNotFoundError:
        return None
    with suppress(BlockingIOError, PermissionError):
        fcntl.lockf(held, fcntl.LOCK_SH | fcntl.LOCK_NB)
        if users.exists():
            return held
    os.close(held)
    return None


def leave(home: Path, held: int) -> None:
    """The service is over: nothing of its home is wanted any more."""
    shutil.rmtree(home, ignore_errors=True)
    with suppress(OSError):
        os.close(held)


# ── processes ───────────────────────────────────────────────────────────────────────────────────────────────────────


def start(home: Path, command: Sequence[str], *, log: Path) -> psutil.Process:
    """A process under guard. What it says is added to the log."""
    guarded = [sys.executable, "-I", "-S", str(GUARD), str(home), *unprivileged(), *command]
    with log.open("ab") as said:
        done = subprocess.run(guarded, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said, timeout=TOOL_S, check=True)
    try:
        return psutil.Process(int(done.stdout))
    except (ValueError, psutil.NoSuchProcess):
        raise NotStarted(f"{command[0]} did not start:\n{tail(log)}") from None


def tail(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")[-4000:]


def kill(process: psutil.Process) -> None:
    """SIGKILL, the process and all it started; back when they are gone. Held still first, so that it starts no more."""
    started: list[psutil.Process] = []
    with suppress(psutil.NoSuchProcess):
        process.suspend()
        started = process.children(recursive=True)
    for doomed in (process, *started):
        with suppress(psutil.NoSuchProcess):
            doomed.kill()
    if not wait_until(lambda: is_gone(process) and not any(map(lives, started)), within_s=GONE_S):
        raise TimeoutError(f"{process} is still there after SIGKILL")


def is_gone(process: psutil.Process) -> bool:
    """Its number too: a process that nobody has waited for still counts as running with those who look it up."""
    return not process.is_running()


def lives(process: psutil.Process) -> bool:
    """Whether it still runs; who waits for the orphans of a killed parent is not our business."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
