"""Azure/azure-sdk-for-python#45941: the platform stored the message before it called the agent, the agent read the record
and found it there and in the request as well. Here the window holds it once, also when nothing is cached."""

from __future__ import annotations

from typing import Any

import pytest

from stateroom.flows.agent import Turn, text_of
from tests.services.places import Place

pytestmark = pytest.mark.anyio


async def test_the_input_is_in_the_window_once_and_in_the_record_once(place: Place) -> None:
    seen: list[list[str]] = []

    async def listen(turn: Turn) -> str:
        seen.append([text_of(item) for item in turn.window])
        return "yes"

    async with place.opened(listen) as room:
        first = await room.turn("one")
        await room.turn("two", conversation=first.conversation)
    async with place.opened(listen) as cold:
        await cold.turn("three", conversation=first.conversation)
        record: list[Any] = [text_of(item) async for item in cold.items(first.conversation)]
    assert seen == [["one"], ["one", "yes", "two"], ["one", "yes", "two", "yes", "three"]]
    assert record == ["one", "yes", "two", "yes", "three", "yes"]
