"""What a run may do, as one table, and where a new turn goes. Pure.

    queued → in_progress ⇄ requires_action ; cancelling ; completed | incomplete | failed | cancelled | expired

Terminal is final: there is no move out of it (P10).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from stateroom.batch import Record
from stateroom.errors import Busy, Conflict, IllegalMove, StaleFence
from stateroom.ids import NIL
from stateroom.run.model import AcceptTurn, Run, Status

Move = Literal["claim", "pause", "resume", "complete", "truncate", "fail", "cancel", "cancelled", "expire", "requeue"]

MOVES: Mapping[tuple[Status, Move], Status] = {
    ("queued", "claim"): "in_progress",
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
    """What a backend found where a turn wants to go: the branch as it is in this transaction."""

    branch: bytes
    tail: int
    active_run: bytes
    queued: int
    last_run: bytes
    previous: Run | None = None


class Verdict(Record, frozen=True):
    """Where the turn goes: `claim` (now), `queue` (behind others), or on a fork at `fork_at` (always idle)."""

    move: Literal["claim", "queue"]
    fork_at: int | None = None


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
        extend = idle and place.last_run == place.previous.id
        return Verdict(move=now, fork_at=None if extend else place.previous.out_hi)
    if idle:
        return Verdict(move=now)
    if write.policy == "reject":
        raise Busy("A turn is active on this conversation.", code="conversation_busy", run=place.active_run)
    if place.queued >= write.queue_max:
        raise Busy(f"{place.queued} turns are waiting on this conversation already.", code="queue_full")
    return Verdict(move="queue")


def gives_up(run: Run, attempts_max: int) -> bool:
    """Whether a run whose worker died has had all its attempts."""
    return run.attempt >= attempts_max


def marks_input(status: Status) -> Literal["", "failed"]:
    """Input of a turn that ended badly is kept and marked; the window leaves it out."""
    return "failed" if status in ("failed", "cancelled", "expired") else ""
