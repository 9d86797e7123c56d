"""Versions of a desk, pure: what one was, how two differ, what forks share, what may go."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from stateroom import limits
from stateroom.errors import AlreadyExists, Conflict, Gone, InvalidInput
from stateroom.session import rules, window
from stateroom.session.change import Changed, Stamp
from stateroom.session.model import Change, Checkpoint, MakeCheckpoint, RollBack, Session, Slot, Told

AUTOMATIC = ("turn", "undone")


def turn_name(run: bytes) -> str:
    """The checkpoint that the end of a turn makes."""
    return f".turn/{run.hex()}"


def undone_name(version: int) -> str:
    return f".undone/{version}"


def fork_name(fork: bytes) -> str:
    """The checkpoint by which a fork holds the version that it stands on."""
    return f".fork/{fork.hex()}"


def shown_at(slot: Slot, version: int) -> Slot | None:
    """What a slot's present row says of `version`; None: it came later. A window is of time: it lies there from when it
    began, and what it holds now says nothing of then."""
    if slot.version <= version:
        return slot
    if slot.kind == "window" and slot.body is not None and slot.epoch <= version:
        return replace(slot, version=version, body=window.bare(slot.body))
    return None


def left_behind(head: Session, old: Slot | None, new: Slot) -> Slot | None:
    """What of a desk's own window stays in its past when it is removed: what it kept, from when it began. Its forks go on
    with that, and an earlier version still shows it."""
    if old is None or new.body is not None or old.kind != "window" or old.body is None or old.epoch <= head.base:
        return None
    return replace(old, version=old.epoch, body=window.bare(old.body))


def tidies(before: int, after: int) -> bool:
    """Whether a count that has grown is reason to look what of a desk's past may go: now and then, so that it costs
    nothing."""
    return before // limits.TIDY_EVERY != after // limits.TIDY_EVERY


def inherit(slot: Slot) -> Slot:
    """A parent's slot on its fork: what the parent's window holds is the parent's to count."""
    return replace(slot, body=window.bare(slot.body)) if slot.kind == "window" and slot.body is not None else slot


def overlay(own: Mapping[str, Slot], inherited: Mapping[str, Slot]) -> dict[str, Slot]:
    """What a fork shows: its own, and what its parent was before it."""
    return {**inherited, **own}


def shown(slots: Iterable[Slot]) -> list[Slot]:
    """The living ones, by name."""
    return sorted((slot for slot in slots if slot.body is not None), key=lambda slot: slot.name)


def diff(before: Iterable[Slot], after: Iterable[Slot]) -> list[Change]:
    """The slots that differ between two states, by name."""
    old, new = {slot.name: slot for slot in before}, {slot.name: slot for slot in after}
    return [
        Change(name=name, before=old.get(name), after=new.get(name))
        for name in sorted(old.keys() | new.keys())
        if _content(old.get(name)) != _content(new.get(name))
    ]


def _content(slot: Slot | None) -> tuple[object, ...]:
    if slot is None or slot.body is None:
        return ()
    return (slot.kind, slot.schema, window.bare(slot.body) if slot.kind == "window" else slot.body)


def check_kept(head: Session, version: int, named: bool) -> None:
    """Gone when a version was compacted; `named` says whether a checkpoint keeps it. InvalidInput when it never was."""
    if not 0 <= version <= head.version:
        raise InvalidInput(f"The session has versions 0 to {head.version}.", code="version_unknown", param="version")
    if version < head.kept_from and not named:
        raise Gone(f"Version {version} is no longer kept.", code="version_not_kept", kept_from=head.kept_from)


def check_followed(head: Session, after: int) -> None:
    """Whether every version after this one can be told."""
    if after > head.version:
        raise InvalidInput(f"The session has versions 0 to {head.version}.", code="version_unknown", param="version")
    first = max(head.base, head.kept_from - 1)
    if after < first:
        raise Gone(f"Versions are told from {first} on.", code="version_not_kept", kept_from=head.kept_from)


def last_told(head: Session, after: int, *, sizes: Mapping[int, int], limit: int) -> int:
    """Up to which version one answer tells: `limit` versions, and no more bytes than one page of events, but at least one."""
    until, held = after, 0
    while until < min(head.version, after + limit):
        held += sizes.get(until + 1, 0)
        if until > after and held > limits.FOLLOW_BYTES_MAX:
            break
        until += 1
    return until


def told(head: Session, after: int, *, until: int, rows: Iterable[Slot] = ()) -> Told:
    slots = sorted((slot for slot in rows if after < slot.version <= until), key=lambda slot: (slot.version, slot.name))
    return Told(after=after, until=until, head=head.version, slots=tuple(slots))


def check_own(head: Session, version: int) -> None:
    """A fork names its own versions: its parent would not know that an older one is to be kept."""
    if version < head.base:
        raise InvalidInput(f"Versions before {head.base} are those of the parent.", code="version_of_parent", param="version")


def target(write: RollBack, known: Checkpoint | None) -> int:
    """The version that a rollback goes to."""
    if write.checkpoint:
        if known is None:
            raise rules.no_checkpoint(write.checkpoint)
        return known.version
    if write.version is None:
        raise InvalidInput("Say to which checkpoint or version.", code="rollback_nowhere")
    return write.version


def inherited(known: Checkpoint, shown: int) -> bool:
    """Whether a fork shows its parent's checkpoint, when it shows the parent up to `shown`."""
    return known.version <= shown and known.kind != "fork"


def goes(known: Checkpoint, before: int) -> bool:
    """Whether a checkpoint goes with the versions that are compacted: automatic ones do."""
    return known.kind in AUTOMATIC and known.version < before


def newest(known: Iterable[Checkpoint]) -> list[Checkpoint]:
    return sorted(known, key=lambda checkpoint: (checkpoint.version, checkpoint.name), reverse=True)


def check_checkpoint(write: MakeCheckpoint, known: Checkpoint | None, *, version: int, named: int) -> bool:
    """Whether a checkpoint has to be made; it is there already when the same version has the same name."""
    if write.kind == "named":
        rules.check_name(write.name)
        rules.check_checkpoints(named)
    elif not write.name.startswith("."):
        raise InvalidInput("Names of automatic checkpoints begin with a dot.", code="checkpoint_name_invalid")
    if known is None:
        return True
    if known.version != version:
        raise AlreadyExists(f"Checkpoint {write.name!r} names version {known.version}.", code="checkpoint_exists")
    return False


def checkpoint(write: MakeCheckpoint, version: int, at: int) -> Checkpoint:
    return Checkpoint(
        name=write.name, version=version, kind=write.kind, by=write.by, agent=write.agent, run=write.run, branch=write.branch,
        seq=write.seq, at=at,
    )  # fmt: skip


def undone(write: RollBack, version: int, at: int) -> Checkpoint:
    """What a rollback undoes becomes a checkpoint: it can be rolled back to as well."""
    return Checkpoint(
        name=undone_name(version), version=version, kind="undone", by=write.by, agent=write.agent, run=write.run,
        branch=write.branch, seq=write.seq, at=at,
    )  # fmt: skip


def check_droppable(known: Checkpoint) -> None:
    if known.kind == "fork":
        raise Conflict("By this checkpoint a fork holds the version that it was made from.", code="checkpoint_held")


def restored(now: Slot, then: Slot | None, mark: Stamp, *, document: bytes | None) -> Changed:
    """A slot as it was, at a new version. What it was keeps its origin and trust; a document begins another epoch, so that
    no replica brings back what was undone."""
    if then is None or then.body is None:
        slot = replace(now, body=None, schema="", epoch=0)
        return Changed(slot=_stamped(slot, mark))
    epoch = mark.version if then.kind == "doc" else then.epoch
    return Changed(slot=_stamped(replace(then, epoch=epoch), mark), document=document if then.kind == "doc" else None)


def _stamped(slot: Slot, mark: Stamp) -> Slot:
    return replace(slot, version=mark.version, by=mark.by, agent=mark.agent, run=mark.run, at=mark.at)


class Over(NamedTuple):
    """A past version of a slot, and the version with which it was over."""

    name: str
    version: int
    until: int


def droppable(name: str, versions: Sequence[int], current: int, *, before: int, kept: Iterable[int]) -> list[Over]:
    """Which past versions of a slot may go: those that were over by version `before`, and that no kept version shows.
    `versions` ascend, `current` is the slot's present one."""
    named, ends = sorted(kept), [*versions, current][1:]
    past = (Over(name, start, end) for start, end in zip(versions, ends, strict=True))
    return [row for row in past if row.until <= before and bisect_left(named, row.version) == bisect_left(named, row.until)]


def going(rows: Iterable[Over], *, before: int, limit: int) -> tuple[list[Over], int]:
    """Which of the rows that may go do so now, those that were over first, and from which version on all is whole then.
    About `limit` of them (0: all): what was over at once goes at once."""
    ordered = sorted(rows, key=lambda row: row.until)
    if not limit or len(ordered) <= limit:
        return ordered, before
    reached = ordered[limit - 1].until
    going = [row for row in ordered if row.until <= reached]
    return going, before if len(going) == len(ordered) else reached
