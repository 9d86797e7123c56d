"""redis/agent-memory-server (working_memory.py): the session of another user, and any fault, read like an empty memory. Here
it is `not_found`, the same as for an id that nobody ever had (P28)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from stateroom.errors import NotFound
from stateroom.face import Room
from stateroom.principal import own
from tests.services.places import Place

pytestmark = pytest.mark.anyio


async def refusal(read: Callable[[str], Awaitable[object]], id_: str) -> str:
    with pytest.raises(NotFound) as refused:
        await read(id_)
    return refused.value.message.replace(id_, "ID").replace(id_.partition("_")[2], "ID")


@pytest.mark.parametrize("what", ["conversation", "session", "run"])
async def test_P28_what_belongs_to_somebody_else_is_not_found(place: Place, what: str) -> None:
    async with place.opened(scope=own("shop", "ada")) as ada:
        foreign = getattr(await ada.turn("mine"), what)
        unknown = foreign.partition("_")[0] + "_" + "0" * 32
        read = getattr(Room(ada.stack, own("shop", "bob")), what)
        assert await refusal(read, foreign) == await refusal(read, unknown)
