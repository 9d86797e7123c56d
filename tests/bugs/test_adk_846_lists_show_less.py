"""google/adk-python#846: listing sessions gave empty ones on the database and full ones in memory. Here a list gives the
same heads as reading one by one, on every store."""

from __future__ import annotations

import pytest

from stateroom.ids import parse
from tests.services.places import Place

pytestmark = pytest.mark.anyio


async def test_a_list_gives_what_reading_gives(place: Place) -> None:
    async with place.opened() as room:
        desk = await room.open_session(state={"size": 10})
        await desk.patch({"colour": "black"})
        made = await room.create(metadata={"shop": "north"})
        sessions = room.stack.sessions
        assert await sessions.recent(room.scope) == [await sessions.get(room.scope, parse("session", desk.id))]
        assert await room.conversations() == [await room.conversation(made.id)]
