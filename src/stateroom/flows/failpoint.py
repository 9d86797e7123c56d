"""Named places between two batches where a test can stop the world. In normal life they do nothing.

`STATEROOM_FAILPOINT=turn.accepted:kill` kills the process with SIGKILL there, `…:kill:3` at the third time, `…:stop`
stops it until it gets SIGCONT, `…:stall` waits for ever. The names are the documentation of what can happen between two
durable moments.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping

import anyio

NAMES = (
    "turn.accepted",  # the input is durable, nobody has worked on it
    "turn.hydrated",  # the window is built, the agent has not been asked
    "turn.recorded",  # some deltas are durable
    "turn.answered",  # the agent is done, nothing of its answer is durable (except deltas)
    "step.intended",  # the intent is durable, the effect has not begun
    "step.performed",  # the effect happened, its result is not durable
    "turn.paused",  # the run waits, its answer may come
    "turn.finished",  # outputs and status are durable, nobody has been told
    "recover.requeued",  # a dead worker's run is queued again
    "cancel.asked",  # the wish is durable, the worker has not seen it
    "rollback.landed",  # state and conversation went back, nobody has been told
    "expire.marked",  # a desk is expiring, its hook has not been asked
    "expire.archived",  # its archive is durable, the desk is still whole
    "expire.purged",  # the desk is gone, nobody has been told
    "restore.begun",  # some of an archive is back, the desk is still archived
)


class Failpoints:
    """Reads one failpoint from the environment given; without one, `hit` costs a comparison."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        name, _, action = (environ or {}).get("STATEROOM_FAILPOINT", "").partition(":")
        if name and name not in NAMES:
            raise ValueError(f"STATEROOM_FAILPOINT names one of {', '.join(NAMES)}, not {name!r}")
        self._name = name
        self._action, _, count = action.partition(":")
        self._left = int(count or 1)

    async def hit(self, name: str) -> None:
        if name != self._name:
            return
        self._left -= 1
        if self._left == 0:
            if self._action == "stall":
                await anyio.sleep_forever()
            os.kill(os.getpid(), signal.SIGSTOP if self._action == "stop" else signal.SIGKILL)
