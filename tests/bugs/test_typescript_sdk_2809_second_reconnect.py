"""modelcontextprotocol/typescript-sdk#2809, cloudflare/agents#1607: a reader that was cut twice without an event in between
lost its place, and one that missed the last event found nothing to read again. Here a cursor is the reader's own, and
reading clears nothing: any number of cuts at every event gives 1..n."""

from __future__ import annotations

import pytest

from stateroom.flows.agent import Turn
from tests.services.places import Place

pytestmark = pytest.mark.anyio


async def test_P4_cut_twice_in_a_row_at_every_event(place: Place) -> None:
    async def speak(turn: Turn) -> str:
        return "There and back again"

    async with place.opened(speak) as room:
        whole = [event async for event in room.stream("Tell")]
        run = whole[0]["response"]["id"]
        for cut in range(-1, len(whole)):
            for _ in range(2):  # attached and gone before the first event
                await anext(room.follow(run, after=cut), None)
            assert whole[: cut + 1] + [event async for event in room.follow(run, after=cut)] == whole
