"""Watching a desk: every patch exactly once and in order, from any cursor, whoever wrote it and wherever."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from stateroom.errors import CursorInvalid, Gone, NotFound
from stateroom.ids import NIL
from stateroom.principal import LOCAL, own
from stateroom.session.changes import Changes
from stateroom.session.model import CompactPast
from stateroom.stack import Stateroom
from tests.flows.conftest import Bench

pytestmark = pytest.mark.anyio


async def opened(room: Stateroom, **slots: Any) -> bytes:
    return (await room.sessions.open(LOCAL, slots=slots)).id


async def read(room: Stateroom, session: bytes, after: int | None, *, until: int) -> list[dict[str, Any]]:
    """The events after a version, up to and including another one."""
    start, found = None if after is None else room.watchers.at(session, after), list[dict[str, Any]]()
    async with asyncio.timeout(10), aclosing(room.watchers.events(LOCAL, session, start)) as events:
        async for event in events:
            if event is not None:
                assert str(event[0]).endswith(f".{event[1]['version']}")
                found.append(event[1])
                if event[1]["version"] >= until:
                    break
    return found


async def test_every_patch_comes_once_and_in_order_from_any_cursor(bench: Bench) -> None:
    room = await bench.room()
    session = await opened(room, a=1)
    for n in range(6):
        changes = Changes().set("a", n).count("n") if n % 2 else Changes().remove("a").append("log", n)
        await room.sessions.change(LOCAL, session, changes)
    whole = await read(room, session, 0, until=7)
    assert [event["version"] for event in whole] == [1, 2, 3, 4, 5, 6, 7]
    assert (whole[1]["removed"], whole[1]["slots"]) == (["a"], {"log": [0]})
    assert (whole[2]["slots"], whole[2]["kinds"]) == ({"a": 1, "n": 1}, {"a": "value", "n": "counter"})
    for after in range(7):
        assert await read(room, session, after, until=7) == whole[after:]
    (state,) = await read(room, session, None, until=7)
    assert (state["type"], state["slots"]) == ("session.state", {"a": 5, "n": 3, "log": [0, 2, 4]})


async def test_a_watcher_sees_what_another_handle_writes_while_it_waits(bench: Bench) -> None:
    room, other = await bench.room(), await bench.room()
    session = await opened(room)
    reading = asyncio.create_task(read(room, session, 0, until=20))
    for n in range(20):
        await (room if n % 2 else other).sessions.change(LOCAL, session, Changes().count("n"))
        await asyncio.sleep(0)
    assert [event["slots"] for event in await reading] == [{"n": n + 1} for n in range(20)]


async def test_the_end_is_told_and_differs_from_a_cut(bench: Bench) -> None:
    room = await bench.room()
    session = await opened(room, a=1)
    reading = asyncio.create_task(read(room, session, 1, until=2))
    await asyncio.sleep(0.05)
    await room.sessions.end(LOCAL, session)
    (ended,) = await reading
    assert (ended["type"], ended["reason"]) == ("session.ended", "session_ended")


async def test_P6_a_cursor_that_cannot_be_told_is_refused(bench: Bench) -> None:
    room = await bench.room()
    session = await opened(room, a=1)
    for n in range(5):
        await room.sessions.change(LOCAL, session, Changes().set("a", n))
    with pytest.raises(CursorInvalid):
        await room.watchers.check(LOCAL, session, room.watchers.at(session, 9))
    with pytest.raises(Gone):
        room.watchers.cursor(session, "00000000.1")
    with pytest.raises(NotFound):
        await room.watchers.check(own("local", "mallory"), session, None)
    await room.sessions._commit(LOCAL, session, CompactPast(session=session, before=4))
    with pytest.raises(Gone) as gone:
        await room.watchers.check(LOCAL, session, room.watchers.at(session, 1))
    assert gone.value.reason == "cursor_gone"
    assert [event["version"] for event in await read(room, session, 3, until=6)] == [4, 5, 6]


async def test_P7_a_watcher_far_behind_is_told_in_pages(bench: Bench) -> None:
    room = await bench.room()
    session = await opened(room)
    for n in range(12):
        await room.sessions.change(LOCAL, session, Changes().set("page", "x" * 40_000).set("n", n))
    page = await room.backend.told(LOCAL, session, after=0, limit=256)
    assert page.until == 1, "one page holds about FOLLOW_BYTES_MAX"
    assert [event["slots"]["n"] for event in await read(room, session, 0, until=12)] == list(range(12))


async def test_a_rollback_is_one_patch_and_a_fork_is_watched_from_where_it_began(bench: Bench) -> None:
    room = await bench.room()
    session = await opened(room, a=1, b=1)
    await room.sessions.change(LOCAL, session, Changes().set("a", 2).set("c", 2))
    await room.sessions.roll_back(LOCAL, session, 1)
    (back,) = await read(room, session, 2, until=3)
    assert (back["slots"], back["removed"]) == ({"a": 1}, ["c"])
    fork = await room.sessions.fork(LOCAL, session)
    await room.sessions.change(LOCAL, fork.id, Changes().set("b", 9))
    assert [event["slots"] for event in await read(room, fork.id, fork.version, until=fork.version + 1)] == [{"b": 9}]
    assert fork.parent != NIL
