"""The checker of the campaigns: the next worker on a store that was left in whatever state, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from stateroom import ids
from stateroom.principal import LOCAL
from stateroom.run.model import Run
from stateroom.stack import Stateroom
from stateroom.wire import json
from tests.crash import plays
from tests.crash.actor import EFFECTS, USAGE, begin, begun, done, ended, opened, take, text_of
from tests.crash.checks import runs_of
from tests.crash.invariants import Effects, effects_of, unsound_windows, violations
from tests.crash.plays import Told
from tests.crash.where import inside_of, place_of


class Verdict(NamedTuple):
    """`faults`: in words, empty when all is well. `asked`: the kinds of questions that the turns asked, in order."""

    faults: list[str]
    statuses: list[str]
    asked: list[str]


async def verdict(folder: Path, kinds: Sequence[str], *, completed: bool = True) -> Verdict:
    """Open the store, which recovers it; ask every turn of `plays.turns` again, twice; take one more; close; query.

    `completed`: whether every turn has to be.
    """
    world = plays.world_of(folder)
    room = await opened(place_of(folder), world)
    conversation = await begin(room, "c")
    secret, faults, runs, asked = room.backend.secret, list[str](), list[Run](), list[str]()
    for number, kind in enumerate(kinds):
        ticket = await take(room, f"{kind} t{number}", conversation=conversation, key=f"k{number}")
        answered = await ended(room, world, ticket.run.id)
        faults += await _answered_anew(room, answered.run, f"k{number}", text_of(answered), plays.told_in(folder))
        if answered.run.status == "completed":
            wanted = f"{begun(f't{number}')} {done(kind, f't{number}')}"
            faults += [] if text_of(answered) == wanted else [f"lost: the answer is {text_of(answered)!r}, not {wanted!r}"]
            faults += [] if json.decode(answered.run.usage) == USAGE else [f"usage is {answered.run.usage!r}"]
        elif completed:
            faults.append(f"lost: t{number} is {answered.run.status}: {answered.run.error!r}")
        runs.append(answered.run)
        asked += [action.kind for action in await room.answers.all(LOCAL, ticket.run.id)]
    last = await take(room, "pure last", conversation=conversation, key="last")
    faults += [] if (await ended(room, world, last.run.id)).run.status == "completed" else ["the conversation does not go on"]
    faults += await unsound_windows(room, [conversation])
    found = len(await runs_of(room.backend))
    faults += [] if found == len(kinds) + 1 else [f"doubled: {found} runs for {len(kinds) + 1} keys"]
    await room.close()
    faults += violations(inside_of(folder))
    effects = effects_of(inside_of(folder), world, secret=secret)
    faults += effects.faults
    if all(run.status == "completed" for run in runs):
        faults += _miscounted(effects, [kind for several in kinds for kind in several.split("+")], folder)
    return Verdict(faults, [run.status for run in runs], asked)


async def _answered_anew(room: Stateroom, run: Run, key: str, text: str, told: Collection[Told]) -> list[str]:
    """Whether a key has another answer than the one that somebody was told, or that it had a moment ago."""
    now = Told(key, ids.text("run", run.id), run.status, text)
    faults = [
        f"doubled: {one} was told, now it is {now}" for one in told if one.key == key and one not in (now, now._replace(text=""))
    ]
    again = await room.turns.outcome(LOCAL, run.id)
    if (again.run, text_of(again)) != (run, text):
        faults.append(f"{key} changed after its end")
    return faults


def _miscounted(effects: Effects, kinds: Sequence[str], folder: Path) -> list[str]:
    """When every turn completed, each step is done once, as far as its class goes (P15)."""
    faults = []
    outside = plays.world_of(folder).effects()
    for kind in EFFECTS:
        wanted = kinds.count(kind) + (kind == "pure")  # the last turn's
        distinct = len({key for found, key in outside if found == kind})
        counted = effects.done[kind] if kind not in ("pure", "idempotent") else distinct
        if (effects.steps[kind], counted) != (wanted, wanted):
            faults.append(f"{wanted} {kind} steps were to be done; {effects.steps[kind]} are, with {counted} effects")
    return faults
