"""Steps and actions: what may be recorded, spent and answered."""

from __future__ import annotations

from itertools import product
from typing import Any, get_args

import pytest
from msgspec.structs import replace

from stateroom.errors import Conflict, Gone, IllegalMove, StateroomError
from stateroom.run import machine
from stateroom.run.steps import Action, ActionKind, ActionStatus, Policy, Resolve, Step, StepStatus

STEP = Step(key="pay#1", name="pay", effect="once", status="intended")
ASKED = Action(id=b"a" * 16, run=b"r" * 16, key="pay?", kind="approval", name="pay", digest=b"80 euros", until=100)
ANSWER = Resolve(run=ASKED.run, action=ASKED.id, resolution=b'{"approved":true}', digest=b"80 euros")


@pytest.mark.parametrize("known", [None, *get_args(StepStatus)])
@pytest.mark.parametrize("status", get_args(StepStatus))
def test_P15_only_a_step_that_is_done_is_final(known: StepStatus | None, status: StepStatus) -> None:
    before = replace(STEP, status=known) if known else None
    if known != "done":
        machine.check_step(before, replace(STEP, status=status))
    else:
        with pytest.raises(Conflict) as refused:
            machine.check_step(before, replace(STEP, status=status))
        assert (refused.value.reason, refused.value.facts) == ("step_done", {"step": "pay#1"})


@pytest.mark.parametrize(("kind", "status"), list(product(get_args(ActionKind), get_args(ActionStatus))))
def test_P16_only_an_approval_that_was_answered_and_not_spent_can_be_spent(kind: ActionKind, status: ActionStatus) -> None:
    action = replace(ASKED, kind=kind, status=status)
    if (kind, status) == ("approval", "resolved"):
        machine.check_use(action)
    else:
        with pytest.raises(Conflict) as refused:
            machine.check_use(action)
        assert refused.value.reason == "approval_used"


def test_P9_a_run_waits_for_something() -> None:
    machine.check_pause([replace(ASKED, status="resolved"), ASKED])
    for nothing in ([], [replace(ASKED, status="resolved")]):
        with pytest.raises(IllegalMove):
            machine.check_pause(nothing)


def answered(action: Action, *, now: int = 99, by: str = "alice", **fields: Any) -> Action | None:
    return machine.resolve(action, replace(ANSWER, **fields), now=now, by=by)


def test_P16_an_answer_is_kept_with_its_giver() -> None:
    kept = answered(ASKED)
    assert kept == replace(ASKED, status="resolved", resolution=ANSWER.resolution, by="alice")
    for status in ("resolved", "used"):
        assert answered(replace(kept, status=status)) is None, "the same again changes nothing"


@pytest.mark.parametrize(
    ("before", "how", "kind", "code"),
    [
        ({}, {"digest": b"8,000 euros"}, Conflict, "digest_mismatch"),
        ({}, {"digest": b""}, Conflict, "digest_mismatch"),
        ({}, {"now": 100}, Gone, "action_expired"),
        ({"status": "expired"}, {}, Gone, "action_expired"),
        ({"status": "closed"}, {}, Gone, "action_expired"),
        ({"status": "resolved", "by": "alice", "resolution": b"{}"}, {}, Conflict, "action_resolved"),
        ({"status": "used", "by": "olga", "resolution": ANSWER.resolution}, {}, Conflict, "action_resolved"),
        ({}, {"expired": True}, Conflict, "not_expired"),
        ({"until": 0}, {"expired": True, "now": 10**12}, Conflict, "not_expired"),
        ({"status": "resolved"}, {"expired": True, "now": 100}, Conflict, "not_expired"),
        ({"status": "closed"}, {"expired": True, "now": 100}, Conflict, "not_expired"),
    ],
)
def test_P16_answers_that_do_not_count(
    before: dict[str, Any], how: dict[str, Any], kind: type[StateroomError], code: str
) -> None:
    with pytest.raises(kind) as refused:
        answered(replace(ASKED, **before), **how)
    assert refused.value.reason == code


@pytest.mark.parametrize("kind", get_args(ActionKind))
def test_a_digest_binds_approvals_only(kind: ActionKind) -> None:
    action = replace(ASKED, kind=kind)
    if kind == "approval":
        with pytest.raises(Conflict):
            answered(action, digest=b"")
    else:
        assert answered(action, digest=b"") is not None


@pytest.mark.parametrize("kind", get_args(ActionKind))
def test_a_timer_fires_and_everything_else_expires(kind: ActionKind) -> None:
    over = answered(replace(ASKED, kind=kind), expired=True, now=100)
    assert over is not None
    assert (over.status, over.resolution, over.by) == ("resolved" if kind == "timer" else "expired", b'{"expired":true}', "")


def test_what_follows_when_nobody_answers() -> None:
    assert {policy: machine.end_of(policy) for policy in get_args(Policy)} == {
        "deny": None,
        "expire": "expired",
        "fail": "failed",
    }
