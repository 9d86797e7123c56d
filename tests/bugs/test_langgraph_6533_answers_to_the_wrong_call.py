"""langchain-ai/langgraph#6533: answers to parallel calls went to the wrong tool when they came in another order. Here an
answer belongs to the call that its id names."""

from __future__ import annotations

from typing import Any

import pytest

from stateroom.flows.agent import Turn
from tests.services.places import Place

pytestmark = pytest.mark.anyio


def call(id_: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": id_, "name": f"look_{id_}", "arguments": "{}"}


def output(id_: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": id_, "output": f"of {id_}"}


async def test_answers_in_another_order_belong_to_their_calls(place: Place) -> None:
    async def agent(turn: Turn) -> Any:
        return [call("a"), call("b")] if turn.text else [turn_window(turn)]

    async with place.opened(agent) as room:
        asked = await room.turn("Look both up")
        assert asked.status == "completed"
        answered = await room.turn([output("b"), output("a")], conversation=asked.conversation)
        assert answered.items[0]["content"] == "a: of a, b: of b"


def turn_window(turn: Turn) -> dict[str, Any]:
    """Which output each call got, as the agent sees it."""
    outputs = {item["call_id"]: item["output"] for item in turn.window if item["type"] == "function_call_output"}
    calls = [item["call_id"] for item in turn.window if item["type"] == "function_call"]
    return {"type": "message", "role": "assistant", "content": ", ".join(f"{id_}: {outputs[id_]}" for id_ in calls)}
