"""What an agent wants on the desk, as patches."""

from __future__ import annotations

from collections.abc import Mapping

from stateroom.flows.agent import Turn
from stateroom.session.model import Slot, SlotPatch
from stateroom.trust import TRUST
from stateroom.wire import json


def patches_of(turn: Turn, slots: Mapping[str, Slot], *, agent: str) -> tuple[SlotPatch, ...]:
    """Each slot guarded by the version it was hydrated at; one that is there stays of its kind."""
    origin, trust = f"agent:{agent}", TRUST["agent"]
    seen = {name: slot.version for name, slot in slots.items()}
    values: dict[str, bytes | None] = {name: json.encode(value) for name, value in turn.changes.items()}
    values |= {name: None for name in turn.removed if name in seen}
    return tuple(
        SlotPatch(
            name=name, body=body, expected=seen.get(name, 0), kind=slots[name].kind if name in slots else "value",
            origin=origin, trust=trust,
        )
        for name, body in values.items()
    )  # fmt: skip
