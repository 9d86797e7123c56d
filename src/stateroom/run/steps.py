"""Steps of a run: effects in the world, each recorded so that recovery knows what it may do again (D5, P15).

| effect | INTENT before | after a crash without RESULT |
|---|---|---|
| `pure` | no | run again |
| `idempotent` | yes | run again with the same effect key; the receiver knows it |
| `transactional` | yes | run again: effect and RESULT land in one batch |
| `once` | yes | `unknown`: verified, or reconciled by somebody; never silently run again |
"""

from __future__ import annotations

from typing import Literal

from stateroom.batch import Receipt, Record, Write
from stateroom.ids import NIL
from stateroom.run.model import NewRow

Effect = Literal["pure", "idempotent", "transactional", "once"]
StepStatus = Literal["intended", "done", "failed", "unknown"]


class Step(Record, frozen=True):
    """One step as it stands. `key` names it within its run, the same in every attempt; `digest` is of its arguments;
    `body` is the result or the error (JSON), empty while there is none."""

    key: str
    name: str
    effect: Effect
    status: StepStatus
    digest: bytes = b""
    attempt: int = 1
    body: bytes = b""
    at: int = 0


class RecordSteps(Write, frozen=True):
    """Steps as they are to stand, under the run's fence: results of some, the intent of the next, in one batch.

    A step that is done stays done: changing one is Conflict (`step_done`). `uses` are approvals these steps spend: each
    must be answered and unspent, or nothing is written (P16).
    """

    run: bytes
    fence: int
    steps: tuple[Step, ...]
    rows: tuple[NewRow, ...] = ()
    uses: tuple[bytes, ...] = ()

    @property
    def weight(self) -> int:
        return sum(len(step.body) for step in self.steps)

    def subject_of_change(self) -> bytes:
        return self.run


class Stepped(Receipt, frozen=True):
    """`cancel`: somebody asked to cancel. `waiting`: turns to merge wait on this run's branch."""

    cancel: bool
    waiting: int


ActionKind = Literal["tool", "approval", "input", "timer", "handoff", "reconcile"]
ActionStatus = Literal["pending", "resolved", "expired", "used", "closed"]
Policy = Literal["deny", "expire", "fail"]


class Action(Record, frozen=True):
    """Something a run waits for. `key` names it within its run, the same in every attempt.

    `digest` is of the arguments it was asked about: an approval counts for these and no others (P16). `queue` is where
    a handoff goes. `body` (JSON) says what is wanted; `resolution` (JSON) is the answer, `by` who gave it. `until` is
    store time in ms (0: never): a timer fires then, everything else expires by its policy: `deny` goes on with the
    answer "expired", `expire` and `fail` end the run.
    """

    id: bytes
    run: bytes
    key: str
    kind: ActionKind
    name: str
    status: ActionStatus = "pending"
    digest: bytes = b""
    queue: str = ""
    body: bytes = b"{}"
    resolution: bytes = b""
    by: str = ""
    until: int = 0
    policy: Policy = "deny"
    at: int = 0


class Pause(Write, frozen=True):
    """The run waits: its actions are recorded, its lease ends and compute may stop. Its branch stays taken. An action
    whose key is there already stays as it is; with nothing pending there is nothing to wait for (IllegalMove)."""

    run: bytes
    fence: int
    actions: tuple[Action, ...]
    rows: tuple[NewRow, ...] = ()

    def subject_of_change(self) -> bytes:
        return self.run


class Resolve(Write, frozen=True):
    """Answer a pending action. The same answer by the same principal again is the same; another one is Conflict
    (`action_resolved`); too late is Gone (`action_expired`). An approval names the digest it was asked with, or is
    refused (`digest_mismatch`). When nothing is pending any more the run is queued again, first in its branch.

    `expired` is the sweeper's: only when `until` has passed; the action's policy decides, `rows` end the log if the run
    ends.
    """

    run: bytes
    action: bytes
    resolution: bytes = b"{}"
    digest: bytes = b""
    expired: bool = False
    rows: tuple[NewRow, ...] = ()

    def subject_of_change(self) -> bytes:
        return self.run


class Drain(Write, frozen=True):
    """Take in the turns that wait next and asked to be merged, as far as they are for the same agent: their input joins
    the record now, they end as completed and point to this run. At a step boundary, under the fence."""

    run: bytes
    fence: int
    rows: tuple[NewRow, ...] = ()  # the end of each merged run's log

    def subject_of_change(self) -> bytes:
        return self.run


class Compact(Write, frozen=True):
    """Replace an ended run's log by `rows` and bump its epoch: cursors into the old one are gone, not wrong."""

    run: bytes
    rows: tuple[NewRow, ...]

    def subject_of_change(self) -> bytes:
        return self.run


class ActionQuery(Record, frozen=True):
    """Actions of a run, or of a handoff queue, oldest first."""

    run: bytes = NIL
    queue: str = ""
    pending: bool = True
    limit: int = 100
