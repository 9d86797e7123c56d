"""Forks children that have imported everything already: a process to be killed costs milliseconds, not half a second.

    python -m tests.crash.zygote        reads one JSON line for each child: {"call", "given", "environ", "log",
                                    "waits"}

Answers with two lines: the child's pid, and its status when it is gone. One child at a time.
"""

from __future__ import annotations

import asyncio
import ctypes
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.crash import scale

LIFE_S_MAX = 900 if scale.WHOLE else 120
PR_SET_PTRACER = 0x59616D61


class Forked:
    """A child: kill it, stop it, wait for its end."""

    def __init__(self, zygote: Zygote, pid: int, log: Path) -> None:
        self.pid, self._zygote, self._log = pid, zygote, log
        self._end: asyncio.Task[bytes] | None = None

    def signal(self, number: signal.Signals) -> None:
        """To this process, whose number is its own until its zygote is asked for another one."""
        os.kill(self.pid, number)

    async def ended(self) -> int:
        """Wait until it is gone; its status as `subprocess` gives it."""
        if self._end is None:
            self._end = asyncio.create_task(asyncio.to_thread(self._zygote.line))
        return int(await asyncio.shield(self._end))

    async def killed(self) -> int:
        self.signal(signal.SIGKILL)
        return await self.ended()

    def last_words(self) -> str:
        return self._log.read_text(errors="replace")[-3000:]


class Zygote:
    """The parent of children."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **(environ or {})}
        )  # fmt: skip
        self._mutex = threading.Lock()

    async def fork(
        self, call: Callable[..., Coroutine[Any, Any, None]], folder: Path, *, environ: dict[str, str] | None = None,
        waits: bool = False, **given: Any,
    ) -> Forked:  # fmt: skip
        """A child that runs `call(folder, **given)` and ends. One that `waits` begins when it gets SIGUSR1."""
        log = folder / "child.log"
        asked = {
            "call": f"{call.__module__}:{call.__name__}", "given": {"folder": str(folder), **given}, "environ": environ or {},
            "log": str(log), "waits": waits,
        }  # fmt: skip
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asked).encode() + b"\n")
        self._process.stdin.flush()
        return Forked(self, int(await asyncio.to_thread(self.line)), log)

    def line(self) -> bytes:
        assert self._process.stdout is not None
        with self._mutex:
            line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the zygote is gone")
        return line

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()


@contextmanager
def zygotes(count: int, environ: Mapping[str, str] | None = None) -> Iterator[list[Zygote]]:
    """Several, for children that live at the same time."""
    made = [Zygote(environ) for _ in range(count)]
    try:
        yield made
    finally:
        for zygote in made:
            zygote.close()


def child(asked: dict[str, Any]) -> int:
    """In the forked child: its life."""
    log = os.open(asked["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    if asked["waits"]:
        ctypes.CDLL(None).prctl(PR_SET_PTRACER, -1, 0, 0, 0)  # where only parents may trace, those who asked may too
        signal.sigwait([signal.SIGUSR1])
    signal.alarm(LIFE_S_MAX)  # whatever becomes of those who asked
    os.environ.update(asked["environ"])
    module, _, name = asked["call"].partition(":")
    given = {**asked["given"], "folder": Path(asked["given"]["folder"])}
    try:
        asyncio.run(getattr(importlib.import_module(module), name)(**given))
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def main() -> None:
    importlib.import_module("tests.crash.plays")
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])  # kept for children that wait, however soon it comes
    gone = 0
    for line in sys.stdin.buffer:
        if gone:
            os.waitpid(gone, 0)
        asked = json.loads(line)
        if (pid := os.fork()) == 0:
            status = child(asked)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        print(pid, flush=True)
        found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # its number stays its own until the next is asked for
        assert found is not None
        print(found.si_status if found.si_code == os.CLD_EXITED else -found.si_status, flush=True)
        gone = pid


if __name__ == "__main__":
    main()
