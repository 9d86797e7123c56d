"""The desk in Python: every kind of slot, versions, windows, documents, and agents' own verbs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest

import stateroom
from stateroom import Changes, face
from stateroom.errors import Conflict, Gone, InvalidInput, NotFound
from stateroom.flows.agent import Turn
from stateroom.flows.steps import Doing

pytestmark = pytest.mark.anyio


class Size(msgspec.Struct):
    eu: int


async def shopkeeper(turn: Turn) -> str:
    """Uses every verb that an agent has."""

    def pay(doing: Doing) -> str:
        doing.desk.count("paid").append("receipts", "r1")
        return "paid"

    turn.count("visits")
    turn.count("visits", 2)
    turn.add("tags", "a", "b")
    turn.discard("tags", "a")
    turn.append("viewed", "x")
    turn.append("viewed", "y")
    turn.put("cart", {"shoe": 1, "sock": 2})
    turn.drop("cart", "sock")
    turn.merge("wish", {"size": 42, "colour": None})
    if "order" in turn.slots:
        turn.edit("order", [{"op": "add", "path": "/lines/-", "value": "shoe"}])
    turn.set("note", "n")
    turn.remove("old")
    await turn.step("pay", pay, effect="transactional")
    return f"{turn.slots['visits']} visits"


@pytest.fixture
async def room(store_url: str) -> AsyncIterator[face.Room]:
    async with await stateroom.open(store_url, agents=[shopkeeper]) as room:
        yield room


async def refreshed() -> None:
    pytest.fail("read although nobody came between")


async def test_a_change_that_nobody_came_between_reads_nothing(room: face.Room, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = await room.open_session(state={"size": 10, "colour": "black"})
    monkeypatch.setattr(desk, "refresh", refreshed)
    layered = Changes().set("size", 11).set("size", 12).count("visits").remove("colour").append("viewed", "x")
    assert await desk.apply(layered) == 3
    assert await desk.patch({"size": 13}, expected={"size": 3}) == 4
    await desk.window("lidar", seconds=5)
    assert await desk.observe("lidar", b"abc") == 6
    found = await room.session(desk.id)
    assert (desk.version, desk.state, desk.slot_versions) == (found.version, found.state, found.slot_versions)
    assert (desk.state["size"], desk.state["visits"], desk.state["lidar"]["held"]) == (13, 1, 3)


async def test_a_change_that_somebody_came_between_has_read_what_they_changed(room: face.Room) -> None:
    desk = await room.open_session(state={"size": 10})
    other = await room.session(desk.id)
    await other.patch({"colour": "red"})
    assert await desk.patch({"size": 11}) == 3
    assert desk.state == {"size": 11, "colour": "red"}
    await other.allow("scout", read=["colour"], write=["*"])
    scout = await room.session(desk.id, agent="scout")
    await scout.patch({"size": 12, "colour": "blue"})
    assert (scout.version, scout.state) == (5, {"colour": "blue"})
    await desk.allow("scout", read=["size"], write=["*"])
    await scout.patch({"colour": "green"})
    assert scout.state == {"size": 12}, "other rules show other slots"


async def test_every_kind_of_slot_has_its_verbs(room: face.Room) -> None:
    desk = await room.open_session(state={"wish": {"size": 10, "colour": "black"}})
    await desk.merge("wish", {"size": 11, "colour": None})
    await desk.edit("wish", [{"op": "add", "path": "/width", "value": "wide"}])
    await desk.count("visits")
    await desk.count("visits", 4)
    await desk.add("tags", "b", "a")
    await desk.discard("tags", "b")
    await desk.append("viewed", 1, 2)
    await desk.put("cart", {"shoe": 1, "sock": 2})
    await desk.drop("cart", "sock")
    assert desk.state == {
        "wish": {"size": 11, "width": "wide"}, "visits": 5, "tags": ["a"], "viewed": [1, 2], "cart": {"shoe": 1},
    }  # fmt: skip
    await desk.set("visits", 0)
    assert (await desk.slot("visits")).kind == "counter"
    await desk.remove("visits")
    assert "visits" not in desk.state
    with pytest.raises(NotFound):
        await desk.slot("visits")


async def test_several_changes_land_together_or_not_at_all(room: face.Room) -> None:
    desk = await room.open_session(state={"size": 10})
    version = await desk.apply(Changes().set("size", 11, expected=1).count("n").append("log", "a").count("n"))
    assert (version, desk.state) == (2, {"size": 11, "n": 2, "log": ["a"]})
    with pytest.raises(Conflict) as refused:
        await desk.apply(Changes().set("size", 12, expected=1).count("n"))
    assert refused.value.facts == {"version": 2, "slots": {"size": 2}, "values": {"size": 11}}
    assert await desk.apply(Changes().set("a", 1).set("a", 2)) == 4  # a version for each
    with pytest.raises(Conflict):
        await desk.apply(Changes().count("n"), expected_version=3)
    with pytest.raises(InvalidInput):
        await desk.apply(Changes())
    assert desk.state == {"size": 11, "n": 2, "log": ["a"], "a": 2}


async def test_update_is_asked_again_until_nobody_was_quicker(room: face.Room) -> None:
    desk = await room.open_session(state={"n": 0})
    others = [await room.session(desk.id) for _ in range(6)]

    def more(state: dict[str, Any]) -> None:
        state["n"] += 1

    await asyncio.gather(*(other.update(more) for other in others))
    await desk.refresh()
    assert desk.state["n"] == 6


async def test_a_patch_stands_on_every_version_that_it_names(room: face.Room) -> None:
    desk = await room.open_session(state={"size": 10, "budget": 90})
    seen = desk.slot_versions["size"]
    assert await desk.patch({"budget": 80}, expected={"size": seen, "colour": 0}) == 2
    await (await room.session(desk.id)).set("size", 11)
    with pytest.raises(Conflict) as quicker:
        await desk.patch({"budget": 70}, expected={"size": seen})
    assert quicker.value.facts["values"] == {"size": 11}
    await desk.refresh()
    assert desk.state["budget"] == 80


@pytest.mark.parametrize("free", [lambda state: not any(name.startswith("lock.") for name in state), lambda state: not state])
async def test_update_stands_on_what_was_not_there_too(room: face.Room, free: Callable[[dict[str, Any]], bool]) -> None:
    desk = await room.open_session()
    others = [await room.session(desk.id) for _ in range(8)]

    def lock(name: str) -> Callable[[dict[str, Any]], None]:
        return lambda state: state.update({f"lock.{name}": True}) if free(state) else None

    await asyncio.gather(*(other.update(lock(str(n))) for n, other in enumerate(others)))
    await desk.refresh()
    assert len(desk.state) == 1, "one of them has it"


async def test_update_comes_through_among_sixteen(room: face.Room) -> None:
    desk = await room.open_session(state={"n": 0})
    others = [await room.session(desk.id) for _ in range(16)]

    def more(state: dict[str, Any]) -> None:
        state["n"] += 1

    async def ten(other: face.Desk) -> None:
        for _ in range(10):
            await other.update(more)

    await asyncio.gather(*(ten(other) for other in others))
    await desk.refresh()
    assert desk.state["n"] == 160


async def test_a_document_holds_what_any_store_takes_back(room: face.Room) -> None:
    loro = pytest.importorskip("loro")
    document, desk = loro.LoroDoc(), await room.open_session()
    document.get_text("text").insert(0, "a\0b")
    document.commit()
    with pytest.raises(InvalidInput) as refused:
        await desk.sync("note", document.export(loro.ExportMode.Snapshot()))
    assert refused.value.reason == "json_nul"


async def test_a_slot_keeps_its_schema_and_objects_are_taken_as_they_are(room: face.Room) -> None:
    desk = await room.open_session()
    await desk.set("size", Size(eu=43), schema=Size)
    assert desk.state["size"] == {"eu": 43}
    with pytest.raises(InvalidInput) as refused:
        await desk.set("size", {"eu": "large"})
    assert (refused.value.reason, refused.value.facts["path"]) == ("schema_broken", "/eu")
    await desk.set("plan", {"steps": [{"title": "measure"}]}, schema="stateroom/plan/1")
    with pytest.raises(InvalidInput):
        await desk.edit("plan", [{"op": "add", "path": "/steps/0/status", "value": "perhaps"}])
    for bad in (float("nan"), 2**60, "\ud800"):
        with pytest.raises(InvalidInput):
            await desk.set("bad", bad)


async def test_versions_are_named_compared_gone_back_to_and_forked(room: face.Room) -> None:
    desk = await room.open_session(state={"a": 1, "b": 1})
    named = await desk.checkpoint("first")
    assert (named.name, named.version, named.kind) == ("first", 1, "named")
    await desk.patch({"a": 2, "c": 2}, removed=["b"])
    changes = {one.name: (one.before and one.before.value, one.after and one.after.value) for one in await desk.diff(1)}
    assert changes == {"a": (1, 2), "b": (1, None), "c": (None, 2)}
    assert await desk.at(1) == {"a": 1, "b": 1}
    fork = await desk.fork(to=1)
    await fork.set("a", 9)
    assert await desk.roll_back("first") == 3
    assert (desk.state, fork.state) == ({"a": 1, "b": 1}, {"a": 9, "b": 1})
    names = [(one.name, one.kind) for one in await desk.checkpoints() if one.kind != "fork"]
    assert names == [
        (".undone/2", "undone"),
        ("first", "named"),
    ]
    await desk.roll_back(2)
    assert desk.state == {"a": 2, "c": 2}
    await desk.drop_checkpoint("first")
    with pytest.raises(NotFound):
        await desk.roll_back("first")


async def test_a_window_takes_bytes_and_is_read_as_of_a_time(room: face.Room) -> None:
    desk = await room.open_session()
    await desk.window("lidar", seconds=30)
    now = room.stack.backend.clock.wall_ms()
    for n in range(3):
        await desk.observe("lidar", b"\x00\xff%d" % n, at=now - 3000 + n * 1000, media="application/x-points")
    assert [entry.body[2:] for entry in await desk.entries("lidar")] == [b"0", b"1", b"2"]
    assert [entry.body[2:] for entry in await desk.entries("lidar", as_of=now - 2000)] == [b"0", b"1"]
    assert (await desk.entries("lidar", limit=1))[0].media == "application/x-points"


async def test_a_document_is_edited_by_replicas(room: face.Room) -> None:
    loro = pytest.importorskip("loro")
    desk, replica = await room.open_session(), loro.LoroDoc()
    replica.get_text("text").insert(0, "hello")
    await desk.sync("spec", bytes(replica.export(loro.ExportMode.Snapshot())))
    assert desk.state["spec"] == {"text": "hello"}
    found = await desk.document("spec")
    other = loro.LoroDoc()
    other.import_(found.snapshot)
    other.get_text("text").insert(5, " world")
    await desk.sync("spec", bytes(other.export(loro.ExportMode.Snapshot())), epoch=found.epoch)
    assert desk.state["spec"] == {"text": "hello world"}
    await desk.restart("spec")
    assert (await desk.document("spec")).epoch > found.epoch


async def test_an_agent_has_the_same_verbs_for_its_own_desk(room: face.Room) -> None:
    first = await room.turn("hello")
    assert (first.error, first.text) == (None, "3 visits")
    conversation, desk = first.conversation, await room.session(first.session)
    await desk.set("order", {"lines": []})
    await desk.patch({"old": 1, "wish": {"colour": "red"}})
    assert (await room.turn("again", conversation=conversation)).error is None
    await desk.refresh()
    assert desk.state == {
        "visits": 6, "tags": ["b"], "viewed": ["x", "y"] * 2, "cart": {"shoe": 1}, "wish": {"size": 42},
        "order": {"lines": ["shoe"]}, "note": "n", "paid": 2, "receipts": ["r1", "r1"],
    }  # fmt: skip
    assert [(await desk.slot(name)).origin for name in ("visits", "paid", "note")] == ["agent:shopkeeper"] * 3


async def test_a_bound_desk_goes_back_and_forks_with_its_conversation(room: face.Room) -> None:
    first = await room.turn("one")
    desk = await room.session(first.session)
    await desk.checkpoint("after one")
    await room.turn("two", conversation=first.conversation)
    fork = await desk.fork(to="after one", conversation=True)
    await desk.roll_back("after one")
    assert (fork.state["visits"], desk.state["visits"]) == (3, 3)
    assert fork.conversation != desk.conversation
    for conversation in (fork.conversation, desk.conversation):
        said = [item["content"] async for item in room.items(conversation) if item.get("role") == "user"]
        assert said == ["one"]
    third = await room.turn("three", conversation=first.conversation)
    assert third.slots["visits"] == 6


async def test_a_desk_expires_unless_it_is_used(room: face.Room) -> None:
    desk = await room.open_session(state={"a": 1}, ttl_s=0.3)
    await asyncio.sleep(0.2)
    await desk.touch()
    await asyncio.sleep(0.2)
    await desk.refresh()
    await asyncio.sleep(0.25)
    with pytest.raises(Gone):
        await desk.refresh()


def test_the_same_without_a_loop(store_url: str) -> None:
    import stateroom.blocking

    with stateroom.blocking.open(store_url) as room:
        desk = room.open_session(state={"a": 1})
        desk.count("n")
        desk.checkpoint("one")
        fork = desk.fork()
        fork.append("log", "x")
        assert (fork.state, desk.state) == ({"a": 1, "n": 1, "log": ["x"]}, {"a": 1, "n": 1})


async def test_an_ephemeral_desk_is_opened_used_and_ended_by_its_id(room: face.Room) -> None:
    desk = await room.open_session(state={"size": 10}, ephemeral=True)
    await desk.append("moves", "e2e4")
    assert (await room.session(desk.id)).state == {"size": 10, "moves": ["e2e4"]}
    await room.end_session(desk.id)
    with pytest.raises(Gone):
        await room.session(desk.id)
