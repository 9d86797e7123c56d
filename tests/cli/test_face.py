"""The Python face: the twelve lines of the README, and everything a program may ask beyond them."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import stateroom
import stateroom.blocking
from stateroom import face
from stateroom.errors import Conflict, Gone, InvalidInput, KeyReused, NotFound
from stateroom.flows.agent import Turn
from stateroom.principal import own

pytestmark = pytest.mark.anyio


async def echo(turn: Turn) -> str:
    turn.set("turns", turn.slots.get("turns", 0) + 1)
    return f"heard {turn.text}"


async def slowly(turn: Turn) -> AsyncIterator[str]:
    for word in ("one ", "two ", "three"):
        yield word
        await asyncio.sleep(0.05)


async def broken(turn: Turn) -> str:
    raise RuntimeError("out of order")


@pytest.fixture
async def room(store_url: str) -> AsyncIterator[face.Room]:
    async with await stateroom.open(store_url, agents=[echo, slowly, broken]) as room:
        yield room


async def test_the_twelve_lines(store_url: str) -> None:
    async with await stateroom.open(store_url) as room:
        first = await room.turn("I need black running shoes, size 10, under 120")
        again = await room.turn("show me cheaper ones", conversation=first.conversation)
        assert again.text
        assert again.slots["size"] == 10
        kinds = [item["type"] async for item in room.items(first.conversation)]
        assert "function_call" in kinds
        session = await room.session(again.session)
        await session.patch({"size": 11}, expected={"size": session.slot_versions["size"]})
        assert session.state["size"] == 11
        events = [event async for event in room.follow(again.run)]
        assert events[-1]["type"] == "response.completed"


async def test_a_turn_tells_what_came_of_it(room: face.Room) -> None:
    reply = await room.turn("hello", options={"metadata": {"a": "b"}})
    assert (reply.text, reply.status, reply.error, reply.slots) == ("heard hello", "completed", None, {"turns": 1})
    assert [(item["type"], item["role"]) for item in reply.items] == [("message", "assistant")]
    assert reply.response.removeprefix("resp_") == reply.run.removeprefix("run_")
    assert set(reply.timings) >= {"accept", "hydrate", "window", "model", "commit"}
    assert [head.id for head in await room.conversations()] == [reply.conversation]
    back = await room.run(reply.response)
    assert (back.text, back.items, back.timings) == (reply.text, reply.items, {})


async def test_a_turn_that_fails_is_a_reply_that_says_so(room: face.Room) -> None:
    reply = await room.turn("hello", agent="broken")
    assert (reply.status, reply.text) == ("failed", "")
    assert reply.error is not None
    assert reply.error["code"] == "agent_error"


async def test_P14_one_key_one_answer_even_where_it_begins_a_conversation(room: face.Room) -> None:
    one, two = await room.turn("hello", key="k"), await room.turn("hello", key="k")
    assert (one.response, one.conversation) == (two.response, two.conversation)
    assert len(await room.conversations()) == 1
    with pytest.raises(KeyReused):
        await room.turn("something else", key="k")
    with pytest.raises(KeyReused):
        await room.turn("hello", key="k", agent="slowly")


async def test_a_stream_is_the_turns_events_and_can_be_read_again_from_anywhere(room: face.Room) -> None:
    events = [event async for event in room.stream("count", agent="slowly")]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert "".join(deltas) == "one two three"
    assert len(deltas) > 1
    run = events[0]["response"]["id"]
    for after in (-1, 0, 3, len(events) - 1):
        assert [event async for event in room.follow(run, after=after)] == events[after + 1 :]


async def test_a_reader_that_goes_away_stops_nothing(room: face.Room) -> None:
    stream = room.stream("count", agent="slowly")
    first = await anext(stream)
    await stream.aclose()
    reply = await room.reply(first["response"]["id"], timeout_s=5)
    assert (reply.status, reply.text) == ("completed", "one two three")


async def test_a_run_can_be_cancelled(room: face.Room) -> None:
    stream = room.stream("count", agent="slowly")
    run = (await anext(stream))["response"]["id"]
    assert (await room.cancel(run)).status == "cancelled"
    assert (await room.cancel(run)).status == "cancelled"
    assert [event["type"] async for event in stream][-1] in ("response.failed", "response.cancelled", "response.incomplete")


async def test_previous_goes_on_from_an_answer_and_forks_when_others_came_after(room: face.Room) -> None:
    first = await room.turn("one")
    second = await room.turn("two", previous=first.response)
    other = await room.turn("two, differently", previous=first.response)
    assert second.status == other.status == "completed"
    texts = [item["content"] async for item in room.items(first.conversation) if item["role"] == "user"]
    assert texts == ["one", "two"]
    with pytest.raises(InvalidInput):
        await room.turn("x", previous=first.response, conversation=first.conversation)


async def test_what_is_not_stored_leaves_nothing(room: face.Room) -> None:
    reply = await room.turn("hello", options={"store": False})
    assert (reply.text, reply.conversation, reply.session) == ("heard hello", "", "")
    assert await room.conversations() == []


async def test_conversations_are_made_read_forked_and_deleted(room: face.Room) -> None:
    item = {"type": "message", "role": "assistant", "content": "Welcome."}
    made = await room.create([item], metadata={"shop": "shoes"}, key="c")
    assert (await room.create([item], metadata={"shop": "shoes"}, key="c")).id == made.id
    with pytest.raises(KeyReused):
        await room.create(key="c")
    assert (await room.conversation(made.id)).metadata == {"shop": "shoes"}
    assert await room.append(made.id, [{"role": "user", "content": "Hi"}, {"type": "x_new", "deep": {"a": [1]}}]) == 3
    with pytest.raises(Conflict):
        await room.append(made.id, [item], expected_tail=1)
    items = [found async for found in room.items(made.id)]
    assert [found["type"] for found in items] == ["message", "message", "x_new"]
    assert items[2]["deep"] == {"a": [1]}
    fork = await room.fork(made.id, after=items[0]["id"])
    assert len([found async for found in room.items(fork.id)]) == 1
    await room.delete(made.id)
    with pytest.raises(NotFound):
        await room.conversation(made.id)
    with pytest.raises(NotFound):
        _ = [found async for found in room.items(made.id)]
    assert len([found async for found in room.items(fork.id)]) == 1


async def test_a_long_conversation_is_read_whole(room: face.Room) -> None:
    made = await room.create()
    for start in range(0, 2500, 500):
        await room.append(made.id, [{"role": "user", "content": str(number)} for number in range(start, start + 500)])
    assert [item["content"] async for item in room.items(made.id)] == [str(number) for number in range(2500)]


async def test_P21_a_desk_is_read_patched_and_ended(room: face.Room) -> None:
    desk = await room.open_session(state={"size": 10, "colour": "black"})
    other = await room.session(desk.id)
    assert (desk.version, desk.state) == (1, {"size": 10, "colour": "black"})
    assert await desk.patch({"size": 11}, expected={"size": 1}) == 2
    assert desk.slot_versions == {"size": 2, "colour": 1}
    with pytest.raises(Conflict) as raised:
        await other.patch({"size": 12}, expected={"size": 1})
    assert raised.value.facts["slots"] == {"size": 2}
    await other.refresh()
    assert other.state["size"] == 11
    await other.patch({}, removed=["colour"])
    await desk.refresh()
    assert (desk.state, desk.version) == ({"size": 11}, 3)
    await desk.end()
    with pytest.raises(Gone):
        await room.session(desk.id)


async def test_P21_sixteen_state_functions_lose_no_change(room: face.Room) -> None:
    opened = await room.open_session(state={"count": 0, "cart": {"items": []}})
    desks = [await room.session(opened.id) for _ in range(16)]

    def one_more(mine: int) -> Callable[[dict[str, Any]], None]:
        def change(state: dict[str, Any]) -> None:
            state["count"] += 1
            state["cart"]["items"].append(mine)

        return change

    versions = await asyncio.gather(*(desk.update(one_more(n)) for n, desk in enumerate(desks)))
    await opened.refresh()
    assert opened.state["count"] == 16
    assert sorted(opened.state["cart"]["items"]) == list(range(16))
    assert sorted(versions) == list(range(2, 18))


async def test_P21_a_state_function_decides_on_nothing_that_is_gone(room: face.Room, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = await room.open_session(state={"budget": 100, "ordered": False})
    other, asked = await room.session(desk.id), list[int]()

    def order(state: dict[str, Any]) -> None:
        asked.append(state["budget"])
        if state["budget"] >= 80:
            state["ordered"] = True

    reading, spent = room.stack.backend.slots, list[int]()

    async def meanwhile(*given: Any, **named: Any) -> Any:
        """Somebody is quicker, once."""
        found = await reading(*given, **named)
        if not spent:
            spent.append(20)
            await other.patch({"budget": 20})
        return found

    monkeypatch.setattr(room.stack.backend, "slots", meanwhile)
    await desk.update(order)
    assert asked == [100, 20]
    assert desk.state == {"budget": 20, "ordered": False}
    version = desk.version
    assert await desk.update(lambda state: None) == version, "what changes nothing writes nothing"


WRONG = [float("nan"), float("inf"), {1, 2}, "\ud800", "a\0b", object(), b"bytes"]


@pytest.mark.parametrize("value", WRONG, ids=lambda value: type(value).__name__)
async def test_P31_what_is_no_json_is_refused_and_nothing_is_written(room: face.Room, value: Any) -> None:
    desk = await room.open_session()
    made = await room.create()
    for attempt in (
        desk.patch({"slot": value}),
        room.append(made.id, [{"type": "x", "field": value}]),
        room.turn([{"role": "user", "content": "x", "field": value}], conversation=made.id),
        room.turn("x", conversation=made.id, options={"field": value}),
        room.create(metadata={"field": value}),
    ):
        with pytest.raises(InvalidInput):
            await attempt
    await desk.refresh()
    assert desk.state == {}
    assert [item async for item in room.items(made.id)] == []


async def test_P31_deep_nesting_is_refused(room: face.Room) -> None:
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidInput):
        await room.turn("x", options={"deep": deep})


@pytest.mark.parametrize("id_", ["", "conv_", "conv_zz", "nonsense", "sess_" + "0" * 32, "conv_" + "0" * 32])
async def test_P28_an_id_that_is_none_is_not_found(room: face.Room, id_: str) -> None:
    for attempt in (room.conversation(id_), room.session(id_), room.run(id_), room.reply(id_)):
        with pytest.raises(NotFound):
            await attempt


async def test_P28_scopes_of_one_store_do_not_see_each_other(store_url: str) -> None:
    async with await stateroom.open(store_url, agents=[echo], scope=own("shop", "ann")) as ann:
        reply = await ann.turn("secret")
        async with await stateroom.open(store_url, agents=[echo], scope=own("shop", "bob")) as bob:
            for attempt in (bob.conversation(reply.conversation), bob.session(reply.session), bob.run(reply.run)):
                with pytest.raises(NotFound):
                    await attempt
            assert await bob.conversations() == []


@pytest.mark.parametrize("agents", [[echo, echo], ["text"], [None]], ids=["twice", "no agent", "nothing"])
async def test_agents_that_are_none_are_told(store_url: str, agents: Any) -> None:
    with pytest.raises(InvalidInput):
        await stateroom.open(store_url, agents=agents)


async def test_an_agent_nobody_knows_is_told(room: face.Room) -> None:
    with pytest.raises(InvalidInput) as raised:
        await room.turn("x", agent="nobody")
    assert raised.value.reason == "agent_unknown"
    assert "echo" in raised.value.message


def test_the_blocking_face_forwards_every_call_with_its_signature() -> None:
    for name in ("Room", "Desk"):
        ours, theirs = getattr(stateroom.blocking, name), getattr(face, name)
        calls = {
            method
            for method, found in vars(theirs).items()
            if not method.startswith("_") and (inspect.iscoroutinefunction(found) or inspect.isasyncgenfunction(found))
        }
        assert calls <= set(vars(ours)), f"{name} lacks {calls - set(vars(ours))}"
        for method in calls - {"close"}:
            assert inspect.signature(getattr(ours, method)) == inspect.signature(getattr(theirs, method))


async def test_public_names_are_there() -> None:
    for name in stateroom.__all__:
        assert getattr(stateroom, name) is not None
    with pytest.raises(AttributeError):
        _ = stateroom.nothing  # type: ignore[attr-defined]


async def test_a_turn_that_waits_says_for_what_and_goes_on_when_it_is_answered(store_url: str) -> None:
    async def refunder(turn: Turn) -> str:
        if await turn.approval("refund", {"cents": 1}):
            return "refunded"
        return "no"

    async with await stateroom.open(store_url, agents=[refunder]) as room:
        reply = await room.turn("refund me")
        assert (reply.status, reply.text, [one.arguments for one in reply.actions]) == ("requires_action", "", [{"cents": 1}])
        await room.resolve(reply.actions[0], {"approved": True})
        assert (await room.reply(reply.run, timeout_s=5)).text == "refunded"


async def test_a_policy_nobody_knows_is_refused(room: face.Room) -> None:
    with pytest.raises(InvalidInput) as refused:
        await room.turn("hi", options={"double_text": "shout"})
    assert refused.value.reason == "double_text_unknown"
