"""What has to be true of a store after whatever happened to it. Functions over what was acknowledged and what is kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import apsw
import msgspec

from stateroom import ids
from stateroom.backends.base import Backend
from stateroom.conversation.model import ItemQuery
from stateroom.face import Room
from stateroom.ids import NIL
from stateroom.principal import LOCAL
from stateroom.run.model import Run, RunQuery


class Acked(msgspec.Struct, frozen=True):
    """A line of the writer: this turn was acknowledged."""

    key: str
    conversation: str
    response: str


def acks(output: bytes) -> list[Acked]:
    """The writer's whole lines."""
    whole, _, _ = output.rpartition(b"\n")
    return [Acked(*line.split()) for line in whole.decode().splitlines()]


def wrong_with(acknowledged: Sequence[Acked], record: dict[str, list[str]]) -> list[str]:
    """Faults of a record (texts by conversation) against what was acknowledged: lost, doubled, reordered, unanswered.

    A turn `k` is the texts "turn k", "heard turn k", next to each other. Turns that nobody was told of may be there.
    """
    faults: list[str] = []
    for conversation in {ack.conversation for ack in acknowledged}:
        kept = record.get(conversation, [])
        counts = Counter(kept)
        places: list[int] = []
        for ack in (ack for ack in acknowledged if ack.conversation == conversation):
            said, answer = f"turn {ack.key}", f"heard turn {ack.key}"
            for text in (said, answer):
                if counts[text] != 1:
                    faults.append(f"{'lost' if not counts[text] else 'doubled'}: {text!r} is there {counts[text]} times")
            if counts[said] and counts[answer]:
                places.append(kept.index(said))
                if kept.index(answer) != kept.index(said) + 1:
                    faults.append(f"reordered: {answer!r} does not follow its question")
        if places != sorted(places):
            faults.append(f"reordered: the turns of {conversation} stand in another order")
        faults += [f"doubled: {text!r} is there {count} times" for text, count in counts.items() if count > 1]
    return sorted(set(faults))


async def record_of(room: Room, conversations: Iterable[str]) -> dict[str, list[str]]:
    """The texts of some conversations, in order."""
    record: dict[str, list[str]] = {}
    for conversation in conversations:
        record[conversation] = [_text(item["content"]) async for item in room.items(conversation)]
    return record


def _text(content: object) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)  # type: ignore[attr-defined]


async def runs_of(backend: Backend) -> list[Run]:
    """Every run of the store."""
    found: list[Run] = []
    after = NIL
    while page := await backend.runs(LOCAL, RunQuery(limit=100, after=after)):
        found += page
        after = page[-1].id
    return found


async def broken_invariants(backend: Backend) -> list[str]:
    """What a store must never show while nobody works on it (P2, P9, P10): by query, over everything it holds."""
    faults: list[str] = []
    runs = await runs_of(backend)
    for run in runs:
        name = ids.text("run", run.id)
        if not run.ended and run.status != "requires_action":
            faults.append(f"{name} is {run.status}")
        if run.lease_owner:
            faults.append(f"{name} is still leased to {run.lease_owner}")
        log = await backend.log(LOCAL, run.id, after=0, limit=10_000)
        numbers = [seq for row in log for seq in range(row.first, row.first + row.count)]
        if numbers != list(range(1, len(numbers) + 1)):
            faults.append(f"the log of {name} has numbers {numbers}")
        if run.ended and [row.kind for row in log].count("end") != 1:
            faults.append(f"the log of {name} has {[row.kind for row in log].count('end')} ends")
    faults += [f"{owner} holds a lease" for owner in await backend.owners()]
    for branch in {run.branch for run in runs if run.branch != NIL}:
        faults += await _broken_branch(backend, branch)
    return faults


async def _broken_branch(backend: Backend, branch: bytes) -> list[str]:
    head = await backend.branch(LOCAL, branch)
    seqs: list[int] = []
    while page := await backend.items(LOCAL, ItemQuery(branch=branch, after=seqs[-1] if seqs else 0, limit=1000)):
        seqs += [item.seq for item in page]
    faults = [] if seqs == list(range(1, head.tail + 1)) else [f"{branch.hex()} has seqs {seqs}, its tail is {head.tail}"]
    if head.active_run != NIL or head.queued:
        faults.append(f"{branch.hex()} is busy: {head.active_run.hex()}, {head.queued} queued")
    return faults


def damage(folder: Path) -> list[str]:
    """What SQLite finds wrong with the file."""
    db = apsw.Connection(str(folder / "state.db"), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        answers = [str(row[0]) for row in db.execute("pragma integrity_check")]
    finally:
        db.close()
    return [] if answers == ["ok"] else answers
