"""openai/openai-agents-python#1900, aws/bedrock-agentcore-sdk-python#571: items written within one tick came back in
another order, because order was a timestamp. Here it is a number the store gives: the clock stands still in this test."""

from __future__ import annotations

import pytest

from stateroom.clock import Clock, FrozenClock
from stateroom.conversation.service import Conversations
from stateroom.face import encoded
from stateroom.flows.agent import text_of
from stateroom.ids import parse
from tests.services.places import Place

pytestmark = pytest.mark.anyio


@pytest.fixture
def clock() -> Clock:
    return FrozenClock()


async def test_items_of_one_tick_keep_their_order(place: Place) -> None:
    """Two handles append by turns, as two processes would."""
    wanted = [str(number) for number in range(40)]
    async with place.opened() as room:
        made = (await room.create()).id
        handles = [Conversations(await place.backend()) for _ in range(2)]
        for number, text in enumerate(wanted):
            item = encoded({"type": "message", "role": "user", "content": text})
            await handles[number % 2].append(room.scope, parse("conversation", made), [item])
        assert [text_of(item) async for item in room.items(made)] == wanted
        for handle in handles:
            await handle._store.close()  # type: ignore[attr-defined]


async def test_a_call_stays_before_its_output_when_the_clock_goes_back(place: Place, clock: FrozenClock) -> None:
    async with place.opened() as room:
        made = (await room.create()).id
        await room.append(made, [{"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}])
        clock.wall -= 60_000
        await room.append(made, [{"type": "function_call_output", "call_id": "c", "output": "42"}])
        assert [item["type"] async for item in room.items(made)] == ["function_call", "function_call_output"]
