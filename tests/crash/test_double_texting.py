"""A worker is killed while several turns want one conversation, under each policy: every message that the policy keeps is in
the record and in the next turn's window, which a provider would take, and nobody waits for ever (P9, P17)."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from stateroom import ids, limits
from stateroom.context.build import build
from stateroom.conversation.model import ItemQuery
from stateroom.errors import Busy
from stateroom.flows.failpoint import NAMES
from stateroom.ids import NIL
from stateroom.principal import LOCAL
from stateroom.run.model import DoubleText
from stateroom.stack import Stateroom
from tests.crash import plays, scale
from tests.crash.actor import begin, ended, opened, take, text_of
from tests.crash.invariants import effects_of, texts, unsound_windows, violations
from tests.crash.where import inside_of, place_of
from tests.crash.zygote import Zygote

pytestmark = [pytest.mark.anyio, pytest.mark.crash]

POLICIES: tuple[tuple[DoubleText, ...], ...] = (
    ("enqueue",), ("reject",), ("merge",), ("latest",), ("enqueue", "latest"),
    ("interrupt",), ("enqueue", "interrupt"), ("parallel",), ("rollback",), ("enqueue", "rollback"),
)  # fmt: skip
PLACES = [f"{name}:{number}" for name in NAMES if not name.startswith(("expire.", "restore.")) for number in (1, 2, 3)]
TELLING = {("merge",): "turn.answered:1"}  # where a build that forgets what was merged is found out


async def after_a_crash(folder: Path, policies: Sequence[DoubleText]) -> list[str]:
    """Ask everything again, with the same keys and policies, and say what is wrong with the outcome."""
    world = plays.world_of(folder)
    room = await opened(place_of(folder), world)
    conversation, told, faults = await begin(room, "c"), plays.told_in(folder), list[str]()
    for (key, text), policy in zip(plays.DOUBLE.items(), ("enqueue", *policies), strict=False):
        try:
            ticket = await take(room, text, conversation=conversation, key=key, policy=policy)
        except Busy:
            faults += [] if policy == "reject" else [f"{key} was refused"]
            continue
        answered = await ended(room, world, ticket.run.id)
        now = plays.Told(key, ids.text("run", ticket.run.id), answered.run.status, text_of(answered))
        faults += [f"doubled: {one} was told, now it is {now}" for one in told if one.key == key and one != now]
        wanted = ("completed", "cancelled") if {"interrupt", "latest", "rollback"} & {*policies} else ("completed",)
        faults += [] if answered.run.status in wanted else [f"lost: {key} is {answered.run.status}: {answered.run.error!r}"]
        if (await room.backend.run(LOCAL, ticket.run.id)).merged_into != NIL and text.split()[1] not in text_of(answered):
            faults.append(f"lost: {key} was merged, and the answer does not know of it: {text_of(answered)!r}")
        faults += await _kept(room, ticket.run.id, text, key=key, policies=policies)
    last = await take(room, "pure last", conversation=conversation, key="last")
    faults += [] if (await ended(room, world, last.run.id)).run.status == "completed" else ["the conversation is stuck"]
    faults += await unsound_windows(room, [conversation])
    secret = room.backend.secret
    await room.close()
    return faults + violations(inside_of(folder)) + effects_of(inside_of(folder), world, secret=secret).faults


async def _kept(room: Stateroom, run: bytes, text: str, *, key: str, policies: Sequence[DoubleText]) -> list[str]:
    """Whether what was said stands once in the record, and is shown to the model unless its turn was dropped."""
    row = await room.backend.run(LOCAL, run)
    items = await room.backend.items(LOCAL, ItemQuery(branch=row.branch, limit=limits.READ_ITEMS_MAX))
    said = Counter(found.partition(" [")[0] for found in texts(items))
    faults = [] if said[text] == 1 else [f"{'lost' if not said[text] else 'doubled'}: {key} was said {said[text]} times"]
    window = build(items, run=NIL, items_max=limits.WINDOW_ITEMS_MAX, bytes_max=limits.WINDOW_BYTES_MAX).items
    shown = text in [item.get("content") for item in window]
    dropped = policies == ("enqueue", "latest") and key == "k1" and row.status == "cancelled"
    dropped = dropped or ("rollback" in policies and row.status == "cancelled")
    return faults + ([] if shown != dropped else [f"lost: {key} is {row.status} and {'' if shown else 'not '}shown to the model"])


@pytest.mark.parametrize("policies", POLICIES, ids="+".join)
async def test_P9_P10_P14_P17_killed_while_turns_want_one_conversation(
    zygote: Zygote,
    tmp_path: Path,
    policies: tuple[DoubleText, ...],
    monkeypatch: pytest.MonkeyPatch,
    figure: Callable[[str], None],
) -> None:
    monkeypatch.setattr(limits, "QUEUE_LOOK_MS", 40)
    tried, first = 0, PLACES.index(TELLING.get(policies, PLACES[POLICIES.index(policies) % len(PLACES)]))
    for place in PLACES[first:] + PLACES[:first]:  # the bounded run ends at its second kill, at another place per policy
        if tried == 2 and not scale.WHOLE:
            break
        folder = tmp_path / place
        folder.mkdir()
        name, _, number = place.partition(":")
        child = await zygote.fork(
            plays.double, folder, environ={"STATEROOM_FAILPOINT": f"{name}:kill:{number}"}, policies=policies
        )  # fmt: skip
        status = await child.ended()
        assert status in (0, -signal.SIGKILL), child.last_words()
        assert await after_a_crash(folder, policies) == [], place
        tried += status != 0
    figure(f"double texting, {' then '.join(policies)}: killed at {tried} places, 0 lost, 0 doubled, no queue stuck")
    assert tried
