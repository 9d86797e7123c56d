"""google/adk-python#2950: creating a session whose id exists was an internal error on the database, and fine in memory.
Here it is `already_exists` on every store, for every kind of object, and nothing of the second one is written."""

from __future__ import annotations

import pytest

from stateroom.errors import AlreadyExists
from stateroom.ids import parse
from tests.services.places import Place

pytestmark = pytest.mark.anyio


async def test_a_session_with_an_id_that_is_taken(place: Place) -> None:
    async with place.opened() as room:
        desk = await room.open_session(state={"size": 10})
        with pytest.raises(AlreadyExists) as refused:
            await room.stack.sessions.open(room.scope, id=parse("session", desk.id), slots={"size": 11})
        assert refused.value.reason == "already_exists"
        assert (await room.session(desk.id)).state == {"size": 10}


async def test_a_conversation_with_an_id_that_is_taken(place: Place) -> None:
    async with place.opened() as room:
        made = await room.create([{"type": "message", "role": "user", "content": "one"}])
        with pytest.raises(AlreadyExists):
            await room.stack.conversations.create(room.scope, id=parse("conversation", made.id), metadata=b'{"a":"b"}')
        assert (await room.conversation(made.id)).metadata == {}
        assert len([item async for item in room.items(made.id)]) == 1
