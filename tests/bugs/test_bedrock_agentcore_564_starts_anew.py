"""aws/bedrock-agentcore-sdk-python#564: a marker was read through an index that lagged behind, so an agent that was restarted
right after a write began with nothing, silently. Here whoever reads after an acknowledgement sees what was acknowledged."""

from __future__ import annotations

import pytest

from stateroom.flows.agent import Turn
from tests.services.places import Place

pytestmark = pytest.mark.anyio


async def test_what_was_acknowledged_is_there_at_once_for_everybody(place: Place) -> None:
    async def count(turn: Turn) -> str:
        turn.set("turns", turn.slots.get("turns", 0) + 1)
        return f"turn {turn.slots['turns']}, {len(turn.window)} items"

    conversation, told = "", []
    for _ in range(4):  # another worker each time
        async with place.opened(count) as room:
            reply = await room.turn("again", conversation=conversation)
            conversation = reply.conversation
            told.append(reply.text)
    assert told == ["turn 1, 1 items", "turn 2, 3 items", "turn 3, 5 items", "turn 4, 7 items"]
