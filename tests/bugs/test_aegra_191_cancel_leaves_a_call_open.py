"""aegra/aegra#191: a turn cancelled in the middle of a tool call left the call without an output, and every later turn was
refused by the provider. Here the window never shows a call that nobody answered (P17)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from stateroom.flows.agent import Turn
from stateroom.ids import parse
from stateroom.run.model import RunQuery
from tests.services.places import Place

pytestmark = pytest.mark.anyio

CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}


async def test_a_cancelled_call_does_not_spoil_the_next_turn(place: Place) -> None:
    calling = anyio.Event()
    seen: list[dict[str, Any]] = []

    async def agent(turn: Turn) -> AsyncIterator[Any]:
        if turn.text == "Look it up":
            yield CALL
            calling.set()
            await anyio.sleep_forever()
        seen.extend(turn.window)
        yield "Hello."

    async with place.opened(agent) as room:
        made = (await room.create()).id
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: room.turn("Look it up", conversation=made, key="t1"))
            await calling.wait()
            (run,) = await room.stack.runs.recent(room.scope, RunQuery(conversation=parse("conversation", made)))
            cancelled = await room.cancel(f"run_{run.id.hex()}")
        assert cancelled.status == "cancelled"
        after = await room.turn("Hi", conversation=made)
        assert after.status == "completed"
        calls = {item["call_id"] for item in seen if item["type"] == "function_call"}
        outputs = {item["call_id"] for item in seen if item["type"] == "function_call_output"}
        assert calls == outputs
