"""What an agent wants on the desk, as patches."""

from __future__ import annotations

from collections.abc import Mapping

from stateroom.flows.agent import Turn
from stateroom.session import rules
from stateroom.session.changes import Changes, encoded
from stateroom.session.model import Slot, SlotPatch


def patches_of(turn: Turn, slots: Mapping[str, Slot], *, agent: str) -> list[tuple[SlotPatch, ...]]:
    """In layers that land one after another. What is set is guarded by the version it was hydrated at, and stays of its
    kind; what is done to a slot is done to whatever lies there."""
    wanted = Changes(origin=f"agent:{agent}")
    for name, value in turn.changes.items():
        slot = slots.get(name)
        version, kind = (slot.version, slot.kind) if slot is not None else (0, "value")
        wanted.apply(SlotPatch(name=name, body=encoded(value), expected=version, kind=kind))
    for name in sorted(turn.removed & slots.keys()):
        wanted.apply(SlotPatch(name=name, body=None, expected=slots[name].version, kind=slots[name].kind))
    for patch in turn.operations.patches():
        wanted.join(patch)
    for layer in (layers := wanted.layers()):
        rules.check_patches(layer)
    return layers
