"""Runs one service for the tests that use it, and ends it when the last of them has ended, however that happened.

Users hold a shared lock on HOME/users for as long as they live: the kernel counts them and forgets the dead. Once the lock can
be had alone, nobody is left: the service is ended and HOME removed. They are record locks, because a fork does not inherit
those. A guard is a process of its own session, so that what kills the tests as a group leaves it its work.

    python guard.py HOME COMMAND…          prints the process id of the service; what it says goes to standard error
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from typing import IO

LOOK_S = 0.2
PATIENCE_S = 10.0


def main(home: str, *command: str) -> None:
    if os.fork():
        return  # nobody waits for a guard
    os.setsid()
    with open(os.path.join(home, "users"), "r+b") as users:
        service = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=2, stderr=2)
        os.write(1, str(service.pid).encode())
        os.dup2(2, 1)
        take_over(home)
        while not alone(users):
            if ended(service, within_s=LOOK_S):
                if not on_duty(home):
                    return
                time.sleep(LOOK_S)
        end(service)
        shutil.rmtree(home, ignore_errors=True)


def take_over(home: str) -> None:
    """A service that is started again gets a guard of its own; the one before it may go."""
    with open(os.path.join(home, "guard"), "w", encoding="utf-8") as file:
        file.write(str(os.getpid()))


def on_duty(home: str) -> bool:
    """Whether a home whose service has ended still is ours to remove."""
    try:
        with open(os.path.join(home, "guard"), encoding="utf-8") as file:
            return file.read() == str(os.getpid())
    except FileNotFoundError:
        return False


def alone(users: IO[bytes]) -> bool:
    """Whether no user is left; from then on none can come."""
    try:
        fcntl.lockf(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


def end(service: subprocess.Popen[bytes]) -> None:
    """At once: nothing of what it holds is wanted any more. PostgreSQL takes its children along on SIGQUIT."""
    service.send_signal(signal.SIGQUIT)
    if not ended(service, within_s=PATIENCE_S):
        service.kill()
        service.wait()


def ended(service: subprocess.Popen[bytes], *, within_s: float) -> bool:
    try:
        service.wait(within_s)
    except subprocess.TimeoutExpired:
        return False
    return True


if __name__ == "__main__":
    main(*sys.argv[1:])
