"""Pure rules of the desk: what a slot may be called and hold, and whether a patch's preconditions hold."""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Iterable, Mapping
from typing import Any

from stateroom import limits
from stateroom.errors import Conflict, InvalidInput, LimitExceeded, NotFound
from stateroom.session import kinds
from stateroom.session.model import PatchSlots, Slot, SlotKind, SlotPatch
from stateroom.wire import json


def check_name(name: str) -> str:
    """A slot name: 1..64 printable characters, no dot at the start."""
    sound = isinstance(name, str) and 0 < len(name) <= limits.NAME_CHARS_MAX and name.isprintable()
    if not sound or name.startswith("."):
        raise InvalidInput(
            f"A slot name has 1 to {limits.NAME_CHARS_MAX} printable characters: {str(name)[:80]!r}.", code="slot_name_invalid"
        )
    return name


def check_patches(patches: Iterable[SlotPatch]) -> None:
    """Names, sizes and number of a patch; one change per slot."""
    seen: set[str] = set()
    for patch in patches:
        check_name(patch.name)
        if patch.name in seen:
            raise InvalidInput(f"Slot {patch.name!r} is named twice in one patch.", code="slot_named_twice")
        seen.add(patch.name)
        for source in patch.sources:
            check_name(source)
        if patch.expected is not None and (type(patch.expected) is not int or patch.expected < 0):
            raise InvalidInput("The version expected of a slot is a whole number.", code="wrong_type", param="expected")
        kinds.check_operation(patch.kind, patch.op)
        if patch.body is not None and len(patch.body) > limits.SLOT_BYTES_MAX:
            raise LimitExceeded(f"A slot holds {limits.SLOT_BYTES_MAX} bytes.", code="slot_too_large", param=patch.name)
    if len(seen) > limits.PATCH_SLOTS_MAX:
        raise LimitExceeded(f"One patch may change {limits.PATCH_SLOTS_MAX} slots.", code="patch_too_large")


def check_room(added: int, known: int) -> None:
    """Whether `added` new names fit into a session that knows `known` (removed ones count: the delta still tells them)."""
    if added and known + added > limits.SLOTS_MAX:
        raise LimitExceeded(f"One session has {limits.SLOTS_MAX} slots, removed ones included.", code="too_many_slots")


def check_checkpoints(count: int) -> None:
    """Whether another named checkpoint fits beside `count` that are there."""
    if count >= limits.CHECKPOINTS_MAX:
        raise LimitExceeded(f"One session has {limits.CHECKPOINTS_MAX} named checkpoints.", code="too_many_checkpoints")


def check_silent(answer: Any) -> None:
    """A state function that is to be awaited has not run yet: nothing it does would be written."""
    if isinstance(answer, Awaitable):
        if isinstance(answer, Coroutine):
            answer.close()
        raise InvalidInput("A state function is a plain one, not an async one.", code="wrong_type", param="change")


def standing(slot: Slot | None) -> int:
    """The version that a precondition names: a removed slot counts as absent (0)."""
    return 0 if slot is None or slot.body is None else slot.version


def of_kind(slot: Slot | None, name: str, kind: SlotKind) -> Slot:
    """The living slot, when it is of this kind."""
    if slot is None or slot.body is None:
        raise no_slot(name)
    if slot.kind != kind:
        raise InvalidInput(f"Slot {name[:80]!r} is a {slot.kind}, not a {kind}.", code="slot_kind_mismatch")
    return slot


def no_slot(name: str) -> NotFound:
    return NotFound(f"No slot {name[:80]!r}.", code="slot_missing")


def no_checkpoint(name: str) -> NotFound:
    return NotFound(f"No checkpoint {name[:80]!r}.", code="checkpoint_missing")


def check_version(expected: int | None, version: int) -> None:
    """Conflict unless the whole desk is at the version that the caller saw; None: whatever it is."""
    if expected is not None and expected != version:
        raise Conflict(f"The session is at version {version}, not {expected}.", code="version_conflict", version=version)


def check_preconditions(write: PatchSlots, current: Mapping[str, Slot], version: int) -> None:
    """Conflict with the actual versions unless every precondition holds. A removed slot counts as absent (0)."""
    check_version(write.expected_version, version)
    expected = [(patch.name, patch.expected) for patch in write.patches if patch.expected is not None]
    believed = [*expected, *write.seen]
    stale = {name: standing(current.get(name)) for name, version in believed if standing(current.get(name)) != version}
    if stale:
        raise Conflict(
            f"Slots changed meanwhile: {', '.join(sorted(stale))}.", code="slot_conflict", version=version, slots=stale,
            values={name: _value(current.get(name)) for name in sorted(stale)},
        )  # fmt: skip


def _value(slot: Slot | None) -> Any:
    """What a refused caller is shown, so that it can go on without another read."""
    return None if slot is None or slot.body is None else json.decode_trusted(slot.body)
