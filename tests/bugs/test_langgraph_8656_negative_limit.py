"""langchain-ai/langgraph#8656: for a negative limit one store returned nothing, another one everything. Here it is
refused once, above the stores, with one code."""

from __future__ import annotations

import pytest

from stateroom import limits
from stateroom.conversation.model import ItemQuery
from stateroom.errors import InvalidInput
from stateroom.ids import parse
from stateroom.run.model import RunQuery
from tests.services.places import Place

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("limit", [-1, 0, limits.READ_ITEMS_MAX + 1])
@pytest.mark.parametrize("listing", ["page", "items", "conversations", "sessions", "runs"])
async def test_a_limit_out_of_range_is_refused_everywhere(place: Place, listing: str, limit: int) -> None:
    async with place.opened() as room:
        first = await room.turn("one")
        branch, stack = parse("conversation", first.conversation), room.stack
        ask = {
            "page": lambda: stack.conversations.page(room.scope, branch, limit=limit),
            "items": lambda: stack.conversations.items(room.scope, ItemQuery(branch=branch, limit=limit)),
            "conversations": lambda: stack.conversations.recent(room.scope, limit=limit),
            "sessions": lambda: stack.sessions.recent(room.scope, limit=limit),
            "runs": lambda: stack.runs.recent(room.scope, RunQuery(limit=limit)),
        }[listing]
        with pytest.raises(InvalidInput) as refused:
            await ask()
        assert refused.value.reason == "limit_invalid"
