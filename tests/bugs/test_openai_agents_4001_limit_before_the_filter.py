"""openai/openai-agents-python#4001, yaalalabs/agent-kernel#739: a limit counted rows that were then left out, and some
stores gave the oldest N for the newest N. Here a limit counts what is returned, on every store."""

from __future__ import annotations

import pytest

from stateroom.conversation.model import ItemQuery
from stateroom.flows.agent import text_of
from stateroom.ids import parse
from stateroom.wire import json
from tests.services.places import Place

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(("newest_first", "deleted", "wanted"), [(True, "5", ["4", "3"]), (False, "1", ["2", "3"])])
async def test_a_limit_counts_what_is_returned(place: Place, newest_first: bool, deleted: str, wanted: list[str]) -> None:
    async with place.opened() as room:
        made = await room.create([{"type": "message", "role": "user", "content": text} for text in "12345"])
        branch, conversations = parse("conversation", made.id), room.stack.conversations
        items = await conversations.items(room.scope, ItemQuery(branch=branch, limit=10))
        (gone,) = [item.id for item in items if text_of(json.decode(item.body)) == deleted]
        await conversations.delete_item(room.scope, branch, gone)
        found = await conversations.items(room.scope, ItemQuery(branch=branch, limit=2, newest_first=newest_first))
        assert [text_of(json.decode(item.body)) for item in found] == wanted
