"""Several agents on one desk: what each may see and change, and in whose hands the desk is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from stateroom.desk import Desk
from stateroom.errors import Conflict, Forbidden, NotFound, StaleFence
from stateroom.flows.agent import Turn
from stateroom.principal import LOCAL
from stateroom.session.access import Grant
from stateroom.session.changes import Changes
from stateroom.stack import Stateroom
from tests.flows.conftest import Acts, Bench, ask

pytestmark = pytest.mark.anyio


async def desk_of(room: Stateroom, session: bytes, agent: str = "") -> Desk:
    desk = Desk(room, LOCAL, await room.sessions.get(LOCAL, session), acting=agent)
    await desk.refresh()
    return desk


async def board(room: Stateroom) -> tuple[Desk, Desk, Desk]:
    """A desk, as its owner, a coder and somebody unnamed see it."""
    session = (await room.sessions.open(LOCAL, slots={"spec": "s", "files.a": 1, "secret": 7, "log": []})).id
    owner = await desk_of(room, session)
    await owner.allow("coder", read=["spec", "files.*"], write=["files.*", "note"])
    await owner.allow("*", read=["spec"])
    return owner, await desk_of(room, session, "coder"), await desk_of(room, session, "stranger")


async def test_an_agent_sees_and_changes_what_it_may(bench: Bench) -> None:
    room = await bench.room()
    owner, coder, stranger = await board(room)
    assert (coder.state, stranger.state) == ({"spec": "s", "files.a": 1}, {"spec": "s"})
    await coder.set("files.b", 2)
    assert (await owner.slot("files.b")).agent == "coder"
    before = coder.version
    for refused in (
        coder.set("spec", "mine"),
        coder.set("secret", 1),
        coder.remove("secret"),
        coder.apply(Changes().set("files.c", 1).count("secret")),
        coder.set("note", 1, expected=0),  # it may not see whether it is there
        coder.edit("note", [{"op": "test", "path": "", "value": 1}]),
        coder.apply(Changes().set("files.d", 1, sources=["secret"])),
        coder.roll_back(1),
        stranger.set("spec", 1),
    ):
        with pytest.raises(Forbidden) as error:
            await refused
        assert error.value.reason == "slot_forbidden"
    await owner.refresh()
    assert owner.version == before, "nothing was written"
    await coder.set("note", "written, not read")
    assert "note" not in coder.state
    await owner.refresh()
    assert owner.state["note"] == "written, not read"


async def test_what_may_not_be_seen_is_like_what_is_not_there(bench: Bench) -> None:
    room = await bench.room()
    owner, coder, _ = await board(room)
    for name in ("secret", "no such slot"):
        for read in (coder.slot(name), coder.entries(name), coder.document(name)):
            with pytest.raises(NotFound) as missing:
                await read
            assert missing.value.message == f"No slot {name!r}."
        with pytest.raises(Forbidden) as refused:
            await coder.set(name, 1)
        assert refused.value.message == f"Agent 'coder' may not change slot {name!r}."
    assert await coder.at(1) == {"spec": "s", "files.a": 1}
    await owner.patch({"secret": 8, "files.a": 2})
    assert [one.name for one in await coder.diff(1)] == ["files.a"]
    seen = list[dict[str, Any]]()
    async with asyncio.timeout(10), aclosing(coder.watch(after=3)) as events:
        async for event in events:
            seen.append(event)
            if event["version"] == owner.version:
                break
    assert [event["version"] for event in seen] == list(range(4, owner.version + 1)), "no number is missing"
    assert seen[-1]["slots"] == {"files.a": 2}


async def test_an_agent_neither_changes_the_rules_nor_forks_itself_out_of_them(bench: Bench) -> None:
    owner, coder, _ = await board(await bench.room())
    with pytest.raises(Forbidden):
        await coder.allow("coder", read=["*"], write=["*"])
    fork = await coder.fork()
    assert fork.state == coder.state, "what may not be seen is not there either"
    with pytest.raises(Forbidden):
        await fork.set("spec", "mine")
    await owner.allow("chief", read=["*"], write=["*"])
    await (await desk_of(coder._stack, coder._key, "chief")).allow("coder", read=["secret"])
    await coder.refresh()
    assert coder.state == {"secret": 7}


async def test_rules_that_change_show_and_hide_at_once(bench: Bench) -> None:
    room = await bench.room()
    owner, coder, stranger = await board(room)
    await owner.allow("coder", read=["secret"])
    await coder.refresh()
    assert coder.state == {"secret": 7}
    with pytest.raises(Forbidden):
        await coder.set("files.a", 2)
    await room.sessions.grant(LOCAL, coder._key, "coder", rules=None)
    await coder.refresh()
    assert coder.state == stranger.state == {"spec": "s"}
    fork = await owner.fork()
    assert (await desk_of(room, fork._key, "stranger")).state == {"spec": "s"}, "a fork has the same rules"


async def test_an_agents_turns_see_and_change_what_it_may(bench: Bench) -> None:
    seen = list[dict[str, Any]]()

    async def work(turn: Turn) -> AsyncIterator[Any]:
        seen.append(dict(turn.slots))
        turn.set(turn.text, "mine")
        return
        yield

    room = await bench.room(Acts(work))
    first = await ask(room, "open")
    where = {"conversation": first.run.conversation}
    await room.sessions.change(LOCAL, first.run.session, Changes().set("secret", 7))
    await room.sessions.grant(LOCAL, first.run.session, "agent", rules=Grant(read=("open",), write=("open",)))
    for _ in range(2):
        assert (await ask(room, "open", **where)).run.error == b""
    refused = await ask(room, "secret", **where)
    assert (refused.run.status, b"slot_forbidden" in refused.run.error) == ("completed", True)
    assert seen == [{}, {"open": "mine"}, {"open": "mine"}, {"open": "mine"}]
    assert (await room.sessions.state(LOCAL, first.run.session))["secret"] == 7


async def test_P8_a_desk_is_handed_over_with_a_fence(bench: Bench) -> None:
    room = await bench.room()
    session = (await room.sessions.open(LOCAL, slots={"a": 1})).id
    planner, coder = await desk_of(room, session, "planner"), await desk_of(room, session, "coder")
    first = await planner.hold(seconds=30)
    assert await planner.hold(seconds=60) == first, "who has it keeps it"
    with pytest.raises(Conflict) as held:
        await coder.hold(seconds=30)
    assert (held.value.reason, held.value.facts) == ("desk_held", {"holder": "planner"})
    await planner.set("a", 2)
    coder.take_over(await planner.hand_over("coder", seconds=30))
    for stale in (
        planner.set("a", 3),
        planner.hold(seconds=30),
        planner.roll_back(1),
        planner.update(lambda state: state.clear()),
    ):
        with pytest.raises(StaleFence):
            await stale
    await coder.set("a", 4)
    await coder.let_go()
    assert await planner_again(room, session) > first
    with pytest.raises(StaleFence):
        await planner.set("a", 5)
    assert (await room.sessions.state(LOCAL, session))["a"] == 4


async def planner_again(room: Stateroom, session: bytes) -> int:
    return await (await desk_of(room, session, "planner")).hold(seconds=0.05)


async def test_a_hold_ends_by_itself(bench: Bench) -> None:
    room = await bench.room()
    session = (await room.sessions.open(LOCAL)).id
    await planner_again(room, session)
    await asyncio.sleep(0.1)
    coder = await desk_of(room, session, "coder")
    assert await coder.hold(seconds=30) == 2
