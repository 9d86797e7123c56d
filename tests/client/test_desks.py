"""The client's desks: the same verbs over HTTP, changes that are done once, and patches that come once."""

from __future__ import annotations

import threading

import loro
import pytest

from stateroom import Changes
from stateroom.client import AsyncClient, Client
from stateroom.errors import Conflict, Forbidden, Gone, InvalidInput, NotFound, StaleFence
from tests.server.serving import Served


def test_every_verb_reaches_the_desk(served: Served) -> None:
    with Client(served.url) as room:
        desk = room.open_session(slots={"a": 1, "w": {"seconds": 30}}, kinds={"w": "window"}, ttl_s=60)
        changes = Changes().set("a", 2, expected=1).count("n").count("n").add("tags", "x").append("log", 1).put("m", {"k": 1})
        found = desk.apply(changes.merge("wish", {"size": 1}).edit("wish", [{"op": "test", "path": "/size", "value": 1}]))
        assert {name: found["slots"][name] for name in ("a", "n", "tags", "log", "m", "wish")} == {
            "a": 2, "n": 2, "tags": ["x"], "log": [1], "m": {"k": 1}, "wish": {"size": 1},
        }  # fmt: skip
        with pytest.raises(Conflict) as refused:
            desk.apply(Changes().set("a", 3), expected={"a": 1})
        assert (refused.value.facts["slots"], refused.value.facts["values"]) == ({"a": 2}, {"a": 2})
        desk.checkpoint("first")
        desk.merge({"wish": {"size": None, "width": 2}, "log": None})
        assert [change["name"] for change in desk.diff(found["version"])["changes"]] == ["log", "wish"]
        assert desk.roll_back("first")["slots"]["wish"] == {"size": 1}
        assert [one["name"] for one in desk.checkpoints()["data"]][-1] == "first"
        desk.observe("w", b"\x00\xff", media="image/png")
        assert desk.entries("w")["data"][0]["base64"] == "AP8="
        assert desk.slot("n")["kind"] == "counter"
        fork = room.session(desk.fork(to=1)["id"])
        assert fork.get()["slots"]["a"] == 1
        assert desk.get(version=1)["slots"]["a"] == 1
        with pytest.raises(InvalidInput):
            desk.edit([{"op": "nothing", "path": "/a"}])
        desk.drop_checkpoint("first")
        with pytest.raises(NotFound):
            desk.roll_back("first")
        desk.end()
        with pytest.raises(Gone):
            desk.get()


@pytest.mark.parametrize("name", ["..", ".", ""])
def test_a_name_never_leads_to_something_else(served: Served, name: str) -> None:
    with Client(served.url) as room:
        desk, other = room.open_session(slots={"a": 1}), room.open_session()
        for call in (desk.drop_checkpoint, desk.slot, desk.entries, desk.document):
            with pytest.raises(InvalidInput):
                call(name)
        for wrong in (f"{other.id}/../{desk.id}", f"../sessions/{desk.id}", f"{desk.id}?x="):
            with pytest.raises(NotFound):
                room.session(wrong).end()
            with pytest.raises(NotFound):
                room.run(wrong)
        assert desk.get()["slots"] == {"a": 1}, "it is not the session that was dropped or ended"


@pytest.mark.parametrize(
    "name", ["files/a", "/", "a%2Fb", "a%2fb/c", "%", "a b?c#d", "über/größe", "a/../b", "entries", "x/entries"]
)
def test_a_slot_of_any_name_has_an_address(served: Served, name: str) -> None:
    with Client(served.url) as room:
        desk = room.open_session(slots={name: 7, "a": 1})
        assert (desk.slot(name)["name"], desk.slot(name)["value"]) == (name, 7)
        window = f"w{name}"
        desk.apply(Changes().window(window, seconds=60))
        desk.observe(window, b"x", media="text/plain")
        assert [entry["base64"] for entry in desk.entries(window)["data"]] == ["eA=="]
        desk.checkpoint(name)
        desk.drop_checkpoint(name)
        with pytest.raises(NotFound) as refused:
            desk.slot(f"{name}~")
        assert refused.value.reason == "slot_missing"


def test_a_document_is_edited_by_replicas(served: Served) -> None:
    with Client(served.url) as room:
        desk, replica = room.open_session(), loro.LoroDoc()
        replica.get_text("text").insert(0, "hello")
        replica.commit()
        desk.sync("a/spec", bytes(replica.export(loro.ExportMode.Snapshot())))
        found = desk.document("a/spec")
        other = loro.LoroDoc()
        other.import_(found["snapshot"])
        assert (other.get_text("text").to_string(), found["version"]) == ("hello", 1)
        other.get_text("text").insert(5, " there")
        other.commit()
        assert desk.sync("a/spec", bytes(other.export(loro.ExportMode.Snapshot())), epoch=found["epoch"])["version"] == 2
        assert desk.slot("a/spec")["value"] == {"text": "hello there"}
        desk.apply(Changes().restart("a/spec"))
        with pytest.raises(Conflict):
            desk.sync("a/spec", bytes(other.export(loro.ExportMode.Snapshot())), epoch=found["epoch"])
        with pytest.raises(NotFound):
            desk.document("nothing")


def test_agents_see_what_they_may_and_hold_the_desk_one_after_the_other(served: Served) -> None:
    with Client(served.url) as room:
        desk = room.open_session(slots={"size": 10, "secret": 1})
        desk.allow("planner", read=["size"], write=["size"])
        desk.allow("coder", read=["*"], write=["*"])
        planner, coder = (room.session(desk.id, agent=name) for name in ("planner", "coder"))
        assert planner.get()["slots"] == {"size": 10}
        assert next(planner.watch()).body["slots"] == {"size": 10}
        with pytest.raises(Forbidden):
            planner.apply(Changes().set("secret", 2))
        assert planner.hold(seconds=60) == 1
        with pytest.raises(Conflict) as refused:
            coder.hold(seconds=60)
        assert refused.value.reason == "desk_held"
        planner.apply(Changes().set("size", 11))
        coder.take_over(planner.hand_over("coder", seconds=60))
        coder.apply(Changes().set("size", 12))
        with pytest.raises(StaleFence):
            planner.apply(Changes().set("size", 13))
        coder.let_go()
        assert desk.get()["holder"] is None


@pytest.mark.anyio
async def test_the_same_without_waiting(served: Served) -> None:
    async with AsyncClient(served.url) as room:
        desk = await room.open_session(slots={"size": 10})
        await desk.allow("coder", read=["*"], write=["*"])
        replica = loro.LoroDoc()
        replica.get_text("text").insert(0, "hello")
        await desk.sync("spec", bytes(replica.export(loro.ExportMode.Snapshot())))
        found = await desk.document("spec")
        assert len(found["snapshot"]) > 0
        assert (found["version"], found["epoch"]) == (3, 3)
        first, second = (room.session(desk.id, agent="coder") for _ in range(2))
        await first.hold(seconds=60)
        second.take_over(await first.hand_over("coder", seconds=60))
        await second.apply(Changes().set("size", 11))
        await second.let_go()


def test_update_is_asked_again_until_nobody_was_quicker(served: Served) -> None:
    with Client(served.url) as room:
        desk = room.open_session(slots={"n": 0, "it/em~": 1})

        def more() -> None:
            def change(state: dict[str, int]) -> None:
                state["n"] += 1
                state.pop("it/em~", None)

            desk.update(change)

        threads = [threading.Thread(target=more) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert desk.get()["slots"] == {"n": 5}


@pytest.mark.anyio
async def test_a_watcher_gets_every_patch_once_and_goes_on_behind_its_cursor(served: Served) -> None:
    async with AsyncClient(served.url) as room:
        desk = await room.open_session(slots={"a": 1})
        cursors, seen = list[str](), list[int]()
        for n in range(4):
            await desk.apply(Changes().count("n", n))
        async for event in desk.watch():
            cursors.append(event.cursor)
            assert event.body["slots"] == {"a": 1, "n": 6}
            break
        await desk.apply(Changes().count("n"))
        await desk.apply(Changes().count("n"))
        async for event in desk.watch(after=cursors[0]):
            seen.append(event.body["slots"]["n"])
            if len(seen) == 2:
                break
        assert seen == [7, 8]
        found = [event.type async for event in ended(desk)]
        assert found == ["session.state", "session.ended"]


async def ended(desk):  # type: ignore[no-untyped-def]
    async for event in desk.watch():
        if event.type == "session.state":
            await desk.end()
        yield event
