"""A process is killed at every named place of a turn that does a step of every class; the same key then has one answer, and
what happened outside is what the class promises."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from stateroom.flows.failpoint import NAMES
from tests.crash import plays, scale
from tests.crash.actor import EFFECTS
from tests.crash.verdict import verdict
from tests.crash.zygote import Zygote

pytestmark = [pytest.mark.anyio, pytest.mark.crash]

ALWAYS = ("turn.accepted", "turn.hydrated", "turn.recorded", "turn.answered", "turn.finished", "step.performed")
ALL = "+".join(EFFECTS)


def places(effect: str) -> tuple[str, ...]:
    """The named places that a turn with this one step passes in its first life."""
    return ALWAYS + ("step.intended",) * (effect != "pure") + ("turn.paused",) * (effect == "approved")


FIRST_LIVES = [(effect, name) for effect in EFFECTS for name in places(effect)]


async def lives(
    zygote: Zygote, folder: Path, kinds: str, failpoint: str, *, play: Callable[..., Coroutine[Any, Any, None]] = plays.turns,
    **given: Any,
) -> bool:  # fmt: skip
    """One life of a worker, up to a place. Whether it got there and was killed."""
    folder.mkdir(exist_ok=True)
    child = await zygote.fork(play, folder, environ={"STATEROOM_FAILPOINT": failpoint}, kinds=[kinds], **given)
    status = await child.ended()
    assert status in (0, -signal.SIGKILL), child.last_words()
    return status != 0


def test_every_failpoint_is_tried() -> None:
    assert {name for _, name in FIRST_LIVES} | {"recover.requeued", "cancel.asked"} == {
        name for name in NAMES if name.partition(".")[0] not in ("rollback", "expire", "restore")
    }


@pytest.mark.parametrize(("effect", "failpoint"), FIRST_LIVES)
async def test_P1_P9_P10_P14_P15_P16_P17_killed_at_a_named_place(
    zygote: Zygote, tmp_path: Path, effect: str, failpoint: str
) -> None:
    assert await lives(zygote, tmp_path, effect, f"{failpoint}:kill"), "it gets there"
    found = await verdict(tmp_path, [effect])
    assert found.faults == []
    if effect == "once" and failpoint in ("step.intended", "step.performed"):
        assert found.asked == ["reconcile"], "nobody knows whether it happened: somebody is asked"
    elif effect != "once":
        assert found.asked == (["approval"] if effect == "approved" else [])


@pytest.mark.parametrize("effect", EFFECTS)
async def test_P9_P15_P16_killed_in_two_lives(zygote: Zygote, tmp_path: Path, effect: str, figure: Callable[[str], None]) -> None:
    """Every place of the second life, recovery's own among them, after every place of the first (bounded: some)."""
    seconds = dict.fromkeys((*places(effect), "turn.paused", "recover.requeued"))
    pairs = list(itertools.product(places(effect), seconds))[EFFECTS.index(effect) % scale.STRIDE :: scale.STRIDE]
    tried = 0
    for first, second in pairs:
        folder = tmp_path / f"{first}-{second}"
        assert await lives(zygote, folder, effect, f"{first}:kill")
        tried += await lives(zygote, folder, effect, f"{second}:kill")
        assert (await verdict(folder, [effect])).faults == [], (first, second)
    figure(f"steps: {effect}: two workers died at {tried} of {len(pairs)} pairs of places, 0 lost, 0 doubled")
    assert tried


async def test_P15_a_step_that_was_reconciled_and_began_again_is_asked_about_again(zygote: Zygote, tmp_path: Path) -> None:
    """It did not happen, somebody said so, it was begun again, and the worker died again: now it did happen."""
    assert await lives(zygote, tmp_path, "once", "step.intended:kill")
    assert await lives(zygote, tmp_path, "once", "step.performed:kill")
    found = await verdict(tmp_path, ["once"])
    assert (found.faults, found.asked) == ([], ["reconcile", "reconcile"])


async def test_P1_P9_P10_P14_P15_P16_P17_killed_at_every_passing_of_every_place(
    zygote: Zygote, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    """One turn that does all classes in a row passes each place many times."""
    tried = 0
    for name in (*ALWAYS, "step.intended", "turn.paused"):
        for number in itertools.count(1 + scale.STRIDE // 2, scale.STRIDE):
            folder = tmp_path / f"{name}-{number}"
            killed = await lives(zygote, folder, ALL, f"{name}:kill:{number}", pause_s=0.031)
            assert (await verdict(folder, [ALL])).faults == [], (name, number)
            tried += killed
            if not killed:
                break
    figure(f"steps: killed at {tried} passings of named places in a turn with every class of step, 0 lost, 0 doubled")
    assert tried


@pytest.mark.parametrize("effect", EFFECTS)
async def test_P10_P12_P15_P16_killed_when_a_cancel_was_asked_for(zygote: Zygote, tmp_path: Path, effect: str) -> None:
    for number, wait_s in enumerate((0.0, 0.03, 0.08)):
        folder, kinds = tmp_path / str(number), f"{effect}+wait"
        assert await lives(zygote, folder, kinds, "cancel.asked:kill", play=plays.a_cancel, wait_s=wait_s)
        found = await verdict(folder, [kinds], completed=False)
        assert (found.faults, found.statuses) == ([], ["cancelled"])


async def test_P15_a_build_that_begins_effects_without_saying_so_is_found_out(zygote: Zygote, tmp_path: Path) -> None:
    """The negative control."""
    assert await lives(zygote, tmp_path, "once", "step.performed:kill", build="no intent")
    assert any(fault.startswith("doubled: a once step") for fault in (await verdict(tmp_path, ["once"])).faults)
