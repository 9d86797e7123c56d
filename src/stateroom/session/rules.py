"""Pure rules of the desk: what a slot may be called and hold, and whether a patch's preconditions hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from stateroom import limits
from stateroom.errors import Conflict, InvalidInput, LimitExceeded
from stateroom.session.model import PatchSlots, Slot, SlotPatch


def check_name(name: str) -> str:
    """A slot name: 1..64 printable characters, no dot at the start."""
    if not 0 < len(name) <= limits.NAME_CHARS_MAX or not name.isprintable() or name.startswith("."):
        raise InvalidInput(
            f"A slot name has 1 to {limits.NAME_CHARS_MAX} printable characters: {name[:80]!r}.", code="slot_name_invalid"
        )
    return name


def check_value(value: Any) -> None:
    """Integers beyond ±2**53 are refused: another language would silently round them (D15)."""
    stack = [value]
    while stack:
        found = stack.pop()
        if isinstance(found, dict):
            stack.extend(found.values())
        elif isinstance(found, list):
            stack.extend(found)
        elif isinstance(found, int) and not -limits.JSON_INT_MAX <= found <= limits.JSON_INT_MAX:
            raise InvalidInput("State holds integers within ±2**53; send larger ones as strings.", code="integer_too_large")


def check_patches(patches: Iterable[SlotPatch]) -> None:
    """Names, sizes and number of a patch; one change per slot."""
    seen: set[str] = set()
    for patch in patches:
        check_name(patch.name)
        if patch.name in seen:
            raise InvalidInput(f"Slot {patch.name!r} is named twice in one patch.", code="slot_named_twice")
        seen.add(patch.name)
        if patch.body is not None and len(patch.body) > limits.SLOT_BYTES_MAX:
            raise LimitExceeded(f"A slot holds {limits.SLOT_BYTES_MAX} bytes.", code="slot_too_large", param=patch.name)
    if len(seen) > limits.PATCH_SLOTS_MAX:
        raise LimitExceeded(f"One patch may change {limits.PATCH_SLOTS_MAX} slots.", code="patch_too_large")


def check_room(added: int, known: int) -> None:
    """Whether `added` new names fit into a session that knows `known` (removed ones count: the delta still tells them)."""
    if added and known + added > limits.SLOTS_MAX:
        raise LimitExceeded(f"One session has {limits.SLOTS_MAX} slots, removed ones included.", code="too_many_slots")


def check_preconditions(write: PatchSlots, current: Mapping[str, Slot], version: int) -> None:
    """Conflict with the actual versions unless every precondition holds. A removed slot counts as absent (0)."""
    if write.expected_version is not None and write.expected_version != version:
        raise Conflict(
            f"The session is at version {version}, not {write.expected_version}.", code="version_conflict", version=version
        )
    actual = {
        patch.name: 0 if (slot := current.get(patch.name)) is None or slot.body is None else slot.version
        for patch in write.patches
        if patch.expected is not None
    }
    stale = {patch.name: actual[patch.name] for patch in write.patches if patch.expected not in (None, actual.get(patch.name))}
    if stale:
        raise Conflict(
            f"Slots changed meanwhile: {', '.join(sorted(stale))}.", code="slot_conflict", version=version, slots=stale
        )
