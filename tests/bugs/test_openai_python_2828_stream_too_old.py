"""openai/openai-python#2828: a background stream could not be resumed once it was five minutes old. Here age does not matter:
the log is kept as long as the run."""

from __future__ import annotations

import pytest

from stateroom.clock import Clock, FrozenClock
from tests.services.places import Place

pytestmark = pytest.mark.anyio


@pytest.fixture
def clock() -> Clock:
    return FrozenClock()


async def test_a_stream_is_resumed_a_day_later(place: Place, clock: FrozenClock) -> None:
    async with place.opened() as room:
        events = [event async for event in room.stream("Hello")]
        run = events[0]["response"]["id"]
        for minutes in (6, 24 * 60):
            clock.advance(minutes * 60_000)
            assert [event async for event in room.follow(run, after=2)] == events[3:]
