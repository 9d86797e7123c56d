"""The run machine as a table, and where a turn goes."""

from __future__ import annotations

from itertools import product
from typing import Any, get_args

import pytest
from msgspec.structs import replace

from stateroom.errors import Busy, Conflict, IllegalMove, StaleFence, StateroomError
from stateroom.ids import NIL
from stateroom.run import machine
from stateroom.run.model import TERMINAL, AcceptTurn, DoubleText, Lease, Run, Status

STATUSES: tuple[Any, ...] = get_args(Status)
MOVES: tuple[Any, ...] = get_args(machine.Move)

# status: where its moves lead. Whatever is not here is refused.
LEGAL = {
    "queued": {
        "claim": "in_progress",
        "merge": "completed",
        "cancel": "cancelled",
        "cancelled": "cancelled",
        "expire": "expired",
        "fail": "failed",
    },
    "in_progress": {
        "pause": "requires_action",
        "complete": "completed",
        "truncate": "incomplete",
        "fail": "failed",
        "cancel": "cancelling",
        "cancelled": "cancelled",
        "expire": "expired",
        "requeue": "queued",
    },
    "requires_action": {
        "resume": "queued",
        "cancel": "cancelled",
        "cancelled": "cancelled",
        "expire": "expired",
        "fail": "failed",
    },
    "cancelling": {
        "cancel": "cancelling",
        "cancelled": "cancelled",
        "complete": "completed",
        "truncate": "incomplete",
        "fail": "failed",
        "expire": "expired",
    },
}
ID, OTHER = b"r" * 16, b"o" * 16
RUN = Run(
    id=ID, conversation=NIL, branch=b"b" * 16, session=NIL, agent="a", owner="o", subject="s", status="in_progress", fence=3
)  # fmt: skip


@pytest.mark.parametrize(("status", "move"), list(product(STATUSES, MOVES)))
def test_P11_every_pair_of_status_and_move(status: Status, move: machine.Move) -> None:
    target = LEGAL.get(status, {}).get(move)
    if target is not None:
        assert machine.advance(status, move) == target
    else:
        with pytest.raises(IllegalMove) as refused:
            machine.advance(status, move)
        assert refused.value.facts == {"status": status, "move": move}


def test_P10_no_move_leaves_a_terminal_status() -> None:
    assert {status for status, _ in machine.MOVES} & TERMINAL == set()
    assert set(machine.TO_MOVE) == TERMINAL


def test_P12_whatever_has_not_ended_can_be_cancelled() -> None:
    assert {status for status, move in machine.MOVES if move == "cancel"} == set(STATUSES) - TERMINAL


def test_P9_every_status_can_reach_an_end() -> None:
    for start in STATUSES:
        reached, found = set(), {start}
        while found - reached:
            reached |= found
            found = {target for (status, _), target in machine.MOVES.items() if status in reached}
        assert reached & TERMINAL


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("target", STATUSES)
def test_a_run_ends_where_the_table_says(status: Status, target: Status) -> None:
    run = replace(RUN, status=status)
    allowed = LEGAL.get(status, {}).get(machine.TO_MOVE.get(target, "")) == target and target in TERMINAL
    if allowed:
        assert machine.ending(run, target) == target
    else:
        with pytest.raises(IllegalMove):
            machine.ending(run, target)


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("fence", [2, 3, 4])
def test_P8_only_the_newest_lease_of_a_run_at_work_writes(status: Status, fence: int) -> None:
    run = replace(RUN, status=status)
    if fence == 3 and status in ("in_progress", "cancelling"):
        machine.check_fence(run, fence)
    else:
        with pytest.raises(StaleFence) as refused:
            machine.check_fence(run, fence)
        assert refused.value.facts == {"fence": 3, "status": status}


@pytest.mark.parametrize(
    ("status", "active", "first", "refusal"),
    [
        ("queued", NIL, ID, None),
        ("queued", OTHER, ID, Conflict),
        ("queued", NIL, OTHER, Conflict),
        ("queued", NIL, NIL, Conflict),
        ("in_progress", NIL, ID, IllegalMove),
        ("completed", NIL, ID, IllegalMove),
    ],
)
def test_a_run_is_claimed_first_in_its_queue_on_an_idle_branch(
    status: Status, active: bytes, first: bytes, refusal: type[StateroomError] | None
) -> None:
    check = lambda: machine.check_claim(replace(RUN, status=status), active=active, first_queued=first)  # noqa: E731
    if refusal is None:
        check()
    else:
        with pytest.raises(refusal) as refused:
            check()
        assert type(refused.value) is refusal


@pytest.mark.parametrize(
    ("until", "owner_gone", "fence", "code"),
    [
        (99, False, 3, ""),
        (100, False, 3, ""),
        (101, False, 3, "lease_alive"),
        (101, True, 3, ""),
        (99, True, 2, "stale_fence"),
    ],
)
def test_only_a_lease_that_ended_is_taken_away(until: int, owner_gone: bool, fence: int, code: str) -> None:
    run = replace(RUN, lease_until=until)
    if not code:
        machine.check_requeue(run, now=100, fence=fence, owner_gone=owner_gone)
    else:
        with pytest.raises(Conflict) as refused:
            machine.check_requeue(run, now=100, fence=fence, owner_gone=owner_gone)
        assert refused.value.reason == code


# ── where a turn goes ───────────────────────────────────────────────────────────────────────────────────────────────

IDLE = machine.Place(branch=b"b" * 16, tail=9, active_run=NIL, queued=0, last_run=OTHER)
BUSY, WAITING, FULL = replace(IDLE, active_run=ID), replace(IDLE, queued=1), replace(IDLE, active_run=ID, queued=2)
LAST = replace(RUN, id=OTHER, status="completed", out_hi=7)
OLDER = replace(RUN, id=ID, status="completed", out_hi=4)
LEASE = Lease("w", 1)


@pytest.mark.parametrize(
    ("place", "previous", "how", "verdict"),
    [
        (IDLE, None, {"claim": LEASE}, ("claim", None)),
        (IDLE, None, {}, ("queue", None)),
        (IDLE, None, {"claim": LEASE, "policy": "reject"}, ("claim", None)),
        (BUSY, None, {"claim": LEASE}, ("queue", None)),
        (WAITING, None, {"claim": LEASE}, ("queue", None)),
        (BUSY, None, {"claim": LEASE, "policy": "reject"}, "conversation_busy"),
        (WAITING, None, {"claim": LEASE, "policy": "reject"}, "conversation_busy"),
        (FULL, None, {"claim": LEASE, "queue_max": 2}, "queue_full"),
        (FULL, None, {"claim": LEASE, "queue_max": 3}, ("queue", None)),
        (IDLE, LAST, {"claim": LEASE}, ("claim", None)),
        (IDLE, LAST, {}, ("queue", None)),
        (IDLE, OLDER, {"claim": LEASE}, ("claim", 4)),
        (BUSY, LAST, {"claim": LEASE, "policy": "reject"}, ("claim", 7)),
        (WAITING, LAST, {"claim": LEASE}, ("claim", 7)),
        (FULL, OLDER, {"claim": LEASE, "queue_max": 1}, ("claim", 4)),
        (IDLE, RUN, {"claim": LEASE}, "previous_response_in_progress"),
        (replace(BUSY, settled=5), None, {"claim": LEASE, "policy": "parallel"}, ("claim", 5)),
        (replace(BUSY, settled=5), None, {"policy": "parallel"}, ("queue", 5)),
        (IDLE, None, {"claim": LEASE, "policy": "parallel"}, ("claim", None)),
        (FULL, None, {"claim": LEASE, "policy": "interrupt", "queue_max": 2}, "queue_full"),
        (FULL, None, {"claim": LEASE, "policy": "merge", "queue_max": 2}, "queue_full"),
        (FULL, None, {"claim": LEASE, "policy": "latest", "queue_max": 2}, ("queue", None)),
    ],
)
def test_where_a_turn_goes(place: machine.Place, previous: Run | None, how: dict[str, Any], verdict: Any) -> None:
    write = AcceptTurn(run=b"n" * 16, agent="a", owner="o", subject="s", **how)
    place = replace(place, previous=previous)
    if isinstance(verdict, tuple):
        found = machine.accept(write, place)
        assert (found.move, found.fork_at) == verdict
    else:
        with pytest.raises(Conflict) as refused:
            machine.accept(write, place)
        assert refused.value.reason == verdict
        assert isinstance(refused.value, Busy) == (previous is None)


@pytest.mark.parametrize(
    ("policy", "place", "does"),
    [
        ("enqueue", BUSY, set()),
        ("merge", BUSY, {"merge"}),
        ("merge", WAITING, set()),
        ("latest", BUSY, {"drop_waiting"}),
        ("latest", WAITING, {"drop_waiting"}),
        ("interrupt", BUSY, {"interrupt"}),
        ("interrupt", WAITING, set()),
        ("interrupt", replace(BUSY, foreign=True), set()),
        ("parallel", BUSY, set()),
        *((policy, IDLE, set()) for policy in get_args(DoubleText)),
    ],
)
def test_what_a_second_turn_does_to_the_others(policy: DoubleText, place: machine.Place, does: set[str]) -> None:
    write = AcceptTurn(run=b"n" * 16, agent="a", owner="o", subject="s", policy=policy, claim=LEASE)
    verdict = machine.accept(write, place)
    assert {name for name in ("drop_waiting", "interrupt", "merge") if getattr(verdict, name)} == does


@pytest.mark.parametrize(
    ("verdict", "active", "queued", "starts"),
    [
        (machine.Verdict("claim"), ID, 3, True),
        (machine.Verdict("queue"), NIL, 0, True),
        (machine.Verdict("queue"), NIL, 1, False),
        (machine.Verdict("queue"), ID, 0, False),
        (machine.Verdict("queue", interrupt=True), NIL, 2, True),
        (machine.Verdict("queue", interrupt=True), ID, 0, False),
        (machine.Verdict("queue", drop_waiting=True), NIL, 1, False),
    ],
)
def test_a_turn_starts_at_once_when_the_others_gave_way(
    verdict: machine.Verdict, active: bytes, queued: int, starts: bool
) -> None:
    assert machine.starts(verdict, active=active, queued=queued) == starts


@pytest.mark.parametrize("fence", [0, 1, 4])
@pytest.mark.parametrize("merge", [False, True])
@pytest.mark.parametrize("agent", ["a", "other"])
def test_what_has_begun_is_neither_dropped_nor_taken_in(fence: int, merge: bool, agent: str) -> None:
    waiting = replace(RUN, status="queued", fence=fence, merge=merge, agent=agent)
    assert machine.underway(waiting) == (fence > 0)
    assert machine.drops(waiting) == (fence == 0)
    assert machine.joins(waiting, RUN) == (fence == 0 and merge and agent == "a")
    assert not machine.underway(None)


@pytest.mark.parametrize("attempt", [1, 2, 3, 4])
def test_a_run_is_given_up_after_its_last_attempt(attempt: int) -> None:
    assert machine.gives_up(replace(RUN, attempt=attempt), 3) == (attempt >= 3)


def test_input_is_marked_when_its_turn_ended_badly() -> None:
    marks = {status: machine.marks_input(status) for status in sorted(TERMINAL)}
    assert marks == {"completed": "", "incomplete": "", "failed": "failed", "cancelled": "failed", "expired": "failed"}
