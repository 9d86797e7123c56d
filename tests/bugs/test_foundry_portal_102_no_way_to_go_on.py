"""microsoft-foundry/new-foundry-portal#102: a response without a conversation could not be continued at all. Here every
kept response can be, by `previous`."""

from __future__ import annotations

import pytest

from stateroom.flows.agent import Turn, text_of
from stateroom.flows.turn import TurnRequest
from stateroom.ids import text
from stateroom.wire import json
from tests.services.places import Place

pytestmark = pytest.mark.anyio


async def test_a_bare_response_is_continued_by_its_id(place: Place) -> None:
    async def listen(turn: Turn) -> str:
        return " / ".join(text_of(item) for item in turn.window)

    async with place.opened(listen) as room:
        said = json.encode({"type": "message", "role": "user", "content": "one"})
        bare = await room.stack.turns.take(room.scope, TurnRequest(agent="agent", input=(said,)))
        await room.stack.turns.outcome(room.scope, bare.run.id)
        further = await room.turn("two", previous=text("response", bare.run.id))
        assert further.text == "one / one / two"
