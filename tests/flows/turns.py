"""Turns made by hand, and what agents tell in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stateroom.flows.agent import Agent, AgentEvent, Delta, Done, End, Output, Start, Turn, Usage


def says(text: str, role: str = "user") -> dict[str, Any]:
    return {"type": "message", "role": role, "content": text}


def turn_of(
    *input: dict[str, Any],
    past: Sequence[dict[str, Any]] = (),
    slots: Mapping[str, Any] | None = None,
    request: Mapping[str, Any] | None = None,
    run: str = "run_1",
) -> Turn:
    return Turn(window=[*past, *input], input=list(input), slots=slots or {}, request=request or {}, ids={"run": run})


async def told(agent: Agent, turn: Turn) -> list[AgentEvent]:
    return [event async for event in agent.work(turn)]


def spoken(events: Sequence[AgentEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, Delta))


def items(events: Sequence[AgentEvent]) -> list[dict[str, Any]]:
    return [event.item for event in events if isinstance(event, Output)]


def assert_well_formed(events: Sequence[AgentEvent]) -> None:
    """Every delta belongs to a started item, and every started item is completed before anything else begins."""
    begun = False
    for event in events:
        if isinstance(event, Start | Output | End):
            assert not begun
        if isinstance(event, Delta | Done):
            assert begun
        begun = isinstance(event, Start | Delta) or (begun and isinstance(event, Usage))
    assert not begun
