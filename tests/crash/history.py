"""The checker of campaigns in which many clients said many things: everything they were told against what is kept."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from stateroom import ids, limits
from stateroom.conversation.model import Item, ItemQuery
from stateroom.errors import NotFound
from stateroom.ids import NIL
from stateroom.principal import LOCAL
from stateroom.run.model import Run
from stateroom.stack import Stateroom
from stateroom.wire import json
from tests.crash import plays
from tests.crash.actor import USAGE, begun, done, ended, opened, text_of
from tests.crash.checks import runs_of
from tests.crash.invariants import Effects, effects_of, texts, unsound_windows, violations
from tests.crash.where import inside_of, place_of

MARKS = {"completed": ("",), "incomplete": ("",), "cancelled": ("", "failed", "not_run"), "failed": ("failed",)}


class History(NamedTuple):
    """`lost` and `doubled` are faults by their first word; `faults` has all of them."""

    faults: list[str]
    runs: Counter[str]  # by status
    told: int
    effects: Effects

    @property
    def text(self) -> str:
        lost, doubled = (sum(fault.startswith(word) for fault in self.faults) for word in ("lost", "doubled"))
        ended_as = ", ".join(f"{count} {status}" for status, count in sorted(self.runs.items()))
        happened = ", ".join(f"{count} {kind}" for kind, count in sorted(self.effects.done.items()))
        return f"{self.told} answers told; runs: {ended_as}; effects: {happened}; {lost} lost, {doubled} doubled"


async def history(folder: Path) -> History:
    """Let everything come to its end, in a worker that nobody kills; then ask and query."""
    world, told = plays.world_of(folder), plays.told_in(folder)
    room = await opened(place_of(folder), world)
    await asyncio.gather(*(ended(room, world, run.id) for run in await runs_of(room.backend) if not run.ended))
    runs = {run.id: run for run in await runs_of(room.backend)}
    secret, faults = room.backend.secret, list[str]()
    record = {branch: await _items(room, branch) for branch in {run.branch for run in runs.values()}}
    for run in runs.values():
        faults += await _wrong_with_run(room, run, texts([item for item in record[run.branch] if item.run == run.id]))
    for one in told:
        faults += await _wrong_with_told(room, one)
    faults += await unsound_windows(room, list(record))
    await room.close()
    faults += violations(inside_of(folder))
    effects = effects_of(inside_of(folder), world, secret=secret)
    return History(faults + effects.faults, Counter(run.status for run in runs.values()), len(told), effects)


async def _items(room: Stateroom, branch: bytes) -> list[Item]:
    items: list[Item] = []
    while page := await room.backend.items(
        LOCAL, ItemQuery(branch=branch, after=items[-1].seq if items else 0, limit=limits.READ_ITEMS_MAX)
    ):
        items += page
    return items


async def _wrong_with_run(room: Stateroom, run: Run, said: list[str]) -> list[str]:
    """Its input stands once in the record, with the mark that its end calls for; its answer is whole."""
    faults = [] if len(said) == 1 else [f"{'lost' if not said else 'doubled'}: {run.key!r} was said {len(said)} times"]
    text, _, mark = said[0].partition(" [") if said else ("", "", "")
    if text != run.key or mark.rstrip("]") not in MARKS.get(run.status, ()):
        faults.append(f"lost: {run.key!r} is {run.status}; said was {said}")
    if run.status == "failed" and json.decode_trusted(run.error)["code"] != "run_lost":
        faults.append(f"lost: {run.key!r} failed: {run.error!r}")
    if run.status == "completed":
        answered = await room.turns.outcome(LOCAL, run.id)
        kinds, _, tag = run.key.partition(" ")
        good = text_of(answered).startswith(begun(tag)) and tag in text_of(answered).rpartition(".")[0]
        if run.merged_into == NIL:
            merged = text_of(answered) != f"{begun(tag)} {done(kinds, tag)}"
            good = good and (not merged or text_of(answered).startswith(f"{begun(tag)} {done(kinds, tag)[: -len(' did it.')]}"))
            faults += [] if json.decode(run.usage) == USAGE else [f"the usage of {run.key!r} is {run.usage!r}"]
        elif answered.run.status == "completed":
            good = f" {tag}" in text_of(answered)
        else:
            good = True  # the run that took it in did not complete
        faults += [] if good else [f"lost: the answer to {run.key!r} is {text_of(answered)!r}"]
    return faults


async def _wrong_with_told(room: Stateroom, told: plays.Told) -> list[str]:
    """What somebody was told is still so."""
    try:
        run = await room.backend.run(LOCAL, ids.parse("run", told.run))
    except NotFound:
        return [f"lost: {told} is not there"]
    now = plays.Told(run.key, told.run, run.status, text_of(await room.turns.outcome(LOCAL, run.id)))
    return [] if now == told else [f"doubled: {told} was told, now it is {now}"]
