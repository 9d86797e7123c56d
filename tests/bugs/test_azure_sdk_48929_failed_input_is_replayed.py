"""Azure/azure-sdk-for-python#48929: the input of a failed turn was replayed into every later one, so one bad item
spoiled the conversation for good. Here it is kept in the record, marked, and left out of the window."""

from __future__ import annotations

import pytest

from stateroom.flows.agent import Turn
from tests.services.places import Place

pytestmark = pytest.mark.anyio

UNASKED = {"type": "function_call_output", "call_id": "call_nobody_made", "output": "4"}


async def test_input_of_a_failed_turn_does_not_spoil_the_next_one(place: Place) -> None:
    async def provider(turn: Turn) -> str:
        if any(item["type"] == "function_call_output" for item in turn.input + turn.window):
            raise ValueError("No tool call found for call_nobody_made")
        return "Hello."

    async with place.opened(provider) as room:
        poisoned = await room.turn([UNASKED])
        assert poisoned.status == "failed"
        after = await room.turn("Hi", conversation=poisoned.conversation)
        assert (after.status, after.text) == ("completed", "Hello.")
        kept = [item["type"] async for item in room.items(poisoned.conversation)]
        assert kept == ["function_call_output", "message", "message"]
