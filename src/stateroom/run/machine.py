"""What a run may do, as one table, and where a new turn goes. Pure.

    queued → in_progress ⇄ requires_action ; cancelling ; completed | incomplete | failed | cancelled | expired

Terminal is final: there is no move out of it (P10).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from stateroom.batch import Record
from stateroom.errors import Busy, Conflict, Gone, IllegalMove, StaleFence
from stateroom.ids import NIL
from stateroom.run.model import AcceptTurn, Run, Status
from stateroom.run.steps import Action, Policy, Resolve, Step

Move = Literal["claim", "merge", "pause", "resume", "complete", "truncate", "fail", "cancel", "cancelled", "expire", "requeue"]

MOVES: Mapping[tuple[Status, Move], Status] = {
    ("queued", "claim"): "in_progress",
    ("queued", "merge"): "completed",  # taken in by the run before it, which answers it
    ("queued", "cancel"): "cancelled",
    ("queued", "cancelled"): "cancelled",
    ("queued", "expire"): "expired",
    ("queued", "fail"): "failed",
    ("in_progress", "pause"): "requires_action",
    ("in_progress", "complete"): "completed",
    ("in_progress", "truncate"): "incomplete",
    ("in_progress", "fail"): "failed",
    ("in_progress", "cancel"): "cancelling",
    ("in_progress", "cancelled"): "cancelled",
    ("in_progress", "expire"): "expired",
    ("in_progress", "requeue"): "queued",
    ("requires_action", "resume"): "queued",
    ("requires_action", "cancel"): "cancelled",
    ("requires_action", "cancelled"): "cancelled",
    ("requires_action", "expire"): "expired",
    ("requires_action", "fail"): "failed",
    ("cancelling", "cancel"): "cancelling",  # asking twice is asking once
    ("cancelling", "cancelled"): "cancelled",
    ("cancelling", "complete"): "completed",  # the work was quicker than the wish
    ("cancelling", "truncate"): "incomplete",
    ("cancelling", "fail"): "failed",
    ("cancelling", "expire"): "expired",
}
TO_MOVE: Mapping[Status, Move] = {
    "completed": "complete", "incomplete": "truncate", "failed": "fail", "cancelled": "cancelled", "expired": "expire",
}  # fmt: skip

ENDS: Mapping[Policy, Status | None] = {"deny": None, "expire": "expired", "fail": "failed"}
UNANSWERED: Final = msgspec.json.encode({"code": "action_expired", "message": "Nobody answered in time."})


def advance(status: Status, move: Move) -> Status:
    """The status after `move`, or IllegalMove."""
    if (target := MOVES.get((status, move))) is None:
        raise IllegalMove(f"A run that is {status} cannot {move}.", code="illegal_move", status=status, move=move)
    return target


def ending(run: Run, target: Status) -> Status:
    """The terminal status a run gets, checked against the table."""
    if target not in TO_MOVE:
        raise IllegalMove(f"{target} is no end.", status=run.status, move=target)
    return advance(run.status, TO_MOVE[target])


def check_fence(run: Run, fence: int) -> None:
    """Only the holder of the newest lease writes (P8)."""
    if run.fence != fence or run.status not in ("in_progress", "cancelling"):
        raise StaleFence(
            "This worker's lease is over; another one holds the run, or it has ended.", fence=run.fence, status=run.status
        )


def check_claim(run: Run, *, active: bytes, first_queued: bytes) -> None:
    """A queued run starts when it is first in its queue and nothing is active on its branch."""
    advance(run.status, "claim")
    if active != NIL or first_queued != run.id:
        raise Conflict("Another turn of this branch comes first.", code="not_next")


def check_requeue(run: Run, *, now: int, fence: int, owner_gone: bool) -> None:
    """Only a lease that has ended can be taken away."""
    check_fence(run, fence)
    if not owner_gone and run.lease_until > now:
        raise Conflict("The lease is alive.", code="lease_alive", lease_until=run.lease_until)


class Place(Record, frozen=True):
    """What a backend found where a turn wants to go: the branch as it is in this transaction.

    `active_run` has begun and not ended: it has the branch, or waits first in its queue to go on (`underway`).
    """

    branch: bytes
    tail: int
    active_run: bytes
    queued: int
    last_run: bytes
    settled: int = 0  # the tail before the active run's input: where a parallel turn forks
    foreign: bool = False  # the active run is somebody else's, who is not to be interrupted
    left: bool = False  # the branch was left by a rollback: it never changes again
    previous: Run | None = None


class Verdict(Record, frozen=True):
    """Where the turn goes: `claim` (now), `queue` (behind others), or on a fork at `fork_at` (always idle). What else
    happens: waiting turns are dropped, the active one is asked to cancel (and this one goes `first`), or undone: then the
    conversation goes on in the fork."""

    move: Literal["claim", "queue"]
    fork_at: int | None = None
    drop_waiting: bool = False
    interrupt: bool = False
    merge: bool = False
    undo: bool = False


def accept(write: AcceptTurn, place: Place) -> Verdict:
    """Decide a turn's place (D5, D7).

    A previous response fixes the past: it extends an idle branch whose newest non-failed response it names, and forks
    otherwise; it never queues. In a conversation, a busy branch queues the turn or refuses it, as the policy says.
    """
    idle = place.active_run == NIL and place.queued == 0
    now: Literal["claim", "queue"] = "claim" if write.claim is not None else "queue"
    if place.previous is not None:
        if not place.previous.ended:
            raise Conflict("The previous response has not ended yet.", code="previous_response_in_progress")
        extend = idle and place.last_run == place.previous.id and not place.left
        return Verdict(move=now, fork_at=None if extend else place.previous.out_hi)
    if idle:
        return Verdict(move=now)
    return while_busy(write, place, now)


def while_busy(write: AcceptTurn, place: Place, now: Literal["claim", "queue"]) -> Verdict:
    """The one place where double texting is decided. A turn that supersedes others is never refused for their number."""
    match write.policy:
        case "reject":
            raise Busy("A turn is active on this conversation.", code="conversation_busy", run=place.active_run)
        case "parallel":
            return Verdict(move=now, fork_at=place.settled)
        case "latest":
            return Verdict(move="queue", drop_waiting=True)
        case "rollback" if place.active_run != NIL and not place.foreign:
            return Verdict(move=now, fork_at=place.settled, undo=True)
    if place.queued >= write.queue_max:
        raise Busy(f"{place.queued} turns are waiting on this conversation already.", code="queue_full")
    if write.policy == "interrupt":
        return Verdict(move="queue", interrupt=place.active_run != NIL and not place.foreign)
    return Verdict(move="queue", merge=write.policy == "merge" and place.active_run != NIL)


def underway(first: Run | None) -> bool:
    """Whether the first of a queue had begun: its answer was waited for, or its worker was lost. It counts as active."""
    return first is not None and first.fence > 0


def starts(verdict: Verdict, *, active: bytes, queued: int) -> bool:
    """Whether a turn can start at once, on the branch as it is when the others gave way."""
    return verdict.move == "claim" or (active == NIL and (verdict.interrupt or queued == 0))


def drops(waiting: Run) -> bool:
    """Whether a newer turn may drop this one: only what never began."""
    return waiting.fence == 0


def joins(waiting: Run, run: Run) -> bool:
    """Whether a waiting turn is to be taken in by this run: it asked to be, for the same agent, and never began."""
    return waiting.merge and waiting.agent == run.agent and waiting.fence == 0


def superseded(by: bytes) -> bytes:
    """The error of a run that gave way to a newer turn."""
    return msgspec.json.encode({"code": "superseded", "message": "A newer turn took its place.", "by": by.hex()})


def rolled_back(by: bytes) -> bytes:
    """The error of a run that was undone for a newer turn."""
    return msgspec.json.encode({"code": "rolled_back", "message": "A newer turn undid it.", "by": by.hex()})


def gives_up(run: Run, attempts_max: int) -> bool:
    """Whether a run whose worker died has had all its attempts."""
    return run.attempt >= attempts_max


def marks_input(status: Status) -> Literal["", "failed"]:
    """Input of a turn that ended badly is kept and marked; the window leaves it out."""
    return "failed" if status in ("failed", "cancelled", "expired") else ""


def check_step(known: Step | None, step: Step) -> None:
    """A result is final; an intent may be renewed by a later attempt."""
    if known is not None and known.status == "done":
        raise Conflict(f"Step {step.key[:80]!r} is done.", code="step_done", step=step.key)


def check_pause(actions: Iterable[Action]) -> None:
    """A run that waits for nothing would wait for ever (P9)."""
    if all(action.status != "pending" for action in actions):
        raise IllegalMove("There is nothing to wait for.", status="in_progress", move="pause")


def check_use(action: Action) -> None:
    """An approval is spent once, and only when it was answered."""
    if action.kind != "approval" or action.status != "resolved":
        raise Conflict("This approval was not given, or was used before.", code="approval_used", status=action.status)


def resolve(action: Action, write: Resolve, *, now: int, by: str) -> Action | None:
    """The action as answered, or None when it was answered just so before."""
    if write.expired:
        if action.status != "pending" or not action.until or action.until > now:
            raise Conflict("The action has not expired.", code="not_expired", status=action.status)
        return replace(action, status="resolved" if action.kind == "timer" else "expired", resolution=b'{"expired":true}')
    if action.status in ("expired", "closed"):
        raise Gone("This action is no longer waited for.", code="action_expired")
    if action.kind == "approval" and write.digest != action.digest:
        raise Conflict("The approval is for other arguments.", code="digest_mismatch")
    if action.status != "pending":
        if action.resolution == write.resolution and action.by == by:
            return None
        raise Conflict("This action was answered before, differently.", code="action_resolved", by=action.by)
    if action.until and action.until <= now:
        raise Gone("This action has expired.", code="action_expired")
    return replace(action, status="resolved", resolution=write.resolution, by=by)


def end_of(policy: Policy) -> Status | None:
    """How a run ends when an action expires; None: it goes on with the answer that nobody answered."""
    return ENDS[policy]
