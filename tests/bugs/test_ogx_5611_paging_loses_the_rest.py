"""ogx-ai/ogx#5611: listing items always said that there was no more, and ignored `after`: clients that page lost
everything beyond the first page. Here a page knows whether there is more, in both orders."""

from __future__ import annotations

import pytest

from stateroom.errors import NotFound
from stateroom.ids import NIL, parse
from tests.services.places import Place

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("newest_first", [True, False])
async def test_every_item_is_reached_by_paging(place: Place, newest_first: bool) -> None:
    async with place.opened() as room:
        items = [{"type": "message", "role": "user", "content": str(number)} for number in range(1, 26)]
        made = parse("conversation", (await room.create(items)).id)
        seqs, sizes, after, more = [], [], NIL, True
        while more:
            page, more = await room.stack.conversations.page(room.scope, made, after=after, limit=10, newest_first=newest_first)
            seqs += [item.seq for item in page]
            sizes.append(len(page))
            after = page[-1].id
        assert seqs == sorted(range(1, 26), reverse=newest_first)
        assert sizes == [10, 10, 5]


async def test_an_unknown_place_to_go_on_from_is_an_error_not_an_empty_page(place: Place) -> None:
    async with place.opened() as room:
        made = parse("conversation", (await room.create()).id)
        with pytest.raises(NotFound):
            await room.stack.conversations.page(room.scope, made, after=b"x" * 16)
