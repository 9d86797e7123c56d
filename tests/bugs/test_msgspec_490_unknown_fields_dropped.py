"""msgspec/msgspec#490, and every store that reads into fixed types: what a newer client writes and this version does not know
was lost on the way through. Here items keep their bytes."""

from __future__ import annotations

import pytest

from stateroom.conversation.model import ItemQuery
from stateroom.ids import parse
from tests.services.places import Place

pytestmark = pytest.mark.anyio

BODY = b'{"type":"hologram_call","z":1.50,"angle":{"b":2,"a":1e3},"note":"\\u00e9 \xe2\x9c\xa8","list":[null, true]}'


async def test_P30_an_item_of_tomorrow_comes_back_byte_for_byte(place: Place) -> None:
    async with place.opened() as room:
        made = parse("conversation", (await room.create()).id)
        await room.stack.conversations.append(room.scope, made, [BODY])
    async with place.opened() as other:
        (item,) = await other.stack.conversations.items(other.scope, ItemQuery(branch=made, limit=10))
        assert (item.kind, item.body) == ("hologram_call", BODY)
