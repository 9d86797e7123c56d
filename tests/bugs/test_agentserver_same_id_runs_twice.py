"""azure-ai-agentserver-responses 2.3.0: the same response id posted twice ran the handler twice. Here one key is one
execution and one answer (P14), also for those who come while it runs, and after a restart."""

from __future__ import annotations

import anyio
import pytest

from stateroom.errors import KeyReused
from stateroom.flows.agent import Turn
from tests.services.places import Place

pytestmark = pytest.mark.anyio


async def test_P14_one_key_is_one_execution(place: Place) -> None:
    executed: list[str] = []

    async def order(turn: Turn) -> str:
        executed.append(turn.run)
        await anyio.sleep(0.05)
        return f"Order {len(executed)}"

    texts: list[str] = []
    async with place.opened(order) as room:
        async with anyio.create_task_group() as group:

            async def ask() -> None:
                texts.append((await room.turn("Buy one", key="order-7")).text)

            for _ in range(10):
                group.start_soon(ask)
        with pytest.raises(KeyReused):
            await room.turn("Buy two", key="order-7")
    async with place.opened(order) as again:
        texts.append((await again.turn("Buy one", key="order-7")).text)
    assert len(executed) == 1
    assert texts == ["Order 1"] * 11
