"""a2aproject/A2A#1635: what happened while the connection was down was lost for good. Here a reader that comes back after
event 2 gets 3, 4 and so on: live, after the end, and after a restart."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest

from stateroom.flows.agent import Turn
from tests.services.places import Place

pytestmark = pytest.mark.anyio


async def test_P4_a_reader_that_comes_back_gets_what_it_missed(place: Place) -> None:
    go_on = anyio.Event()

    async def speak(turn: Turn) -> AsyncIterator[str]:
        yield "one "
        await go_on.wait()
        yield "two"

    async with place.opened(speak) as room:
        before = []
        stream = room.stream("Count")
        async for event in stream:
            before.append(event)
            if len(before) == 3:
                break
        await stream.aclose()  # type: ignore[attr-defined]
        run = before[0]["response"]["id"]
        go_on.set()
        await room.reply(run)
        missed = [event async for event in room.follow(run, after=before[-1]["sequence_number"])]
        whole = [event async for event in room.follow(run)]
        assert before + missed == whole
        assert [event["sequence_number"] for event in whole] == list(range(len(whole)))
        assert whole[-1]["type"] == "response.completed"
    async with place.opened() as restarted:
        assert [event async for event in restarted.follow(run, after=before[-1]["sequence_number"])] == missed
