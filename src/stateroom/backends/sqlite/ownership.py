"""Who is alive: each process that holds leases also holds an OS lock on a file of its own.

The lock goes with the process, however it dies, so a free lock ends its leases at once: no waiting for a time-out.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


class Ownership:
    """This process's lock file in `folder`, named after the lease owner."""

    def __init__(self, folder: Path, owner: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._path = folder, folder / f"{owner}.lock"
        self._file = self._take()

    def alive(self, owner: str) -> bool:
        """Whether the process behind an owner still holds its lock. A dead one's file is removed."""
        path = self._folder / f"{owner}.lock"
        try:
            file = os.open(path, os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        else:
            path.unlink(missing_ok=True)
            return False
        finally:
            os.close(file)

    def release(self) -> None:
        """Let go; once."""
        if self._file >= 0:
            self._path.unlink(missing_ok=True)
            os.close(self._file)
            self._file = -1

    def _take(self) -> int:
        while True:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(file, fcntl.LOCK_EX)
            if self._path.exists() and os.fstat(file).st_ino == self._path.stat().st_ino:
                return file
            os.close(file)  # somebody took our new file for a dead one's and removed it: make another
