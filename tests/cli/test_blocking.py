"""The blocking face: the same, without a loop."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import stateroom
import stateroom.blocking
from stateroom.errors import Conflict, NotFound
from stateroom.flows.agent import Turn


async def echo(turn: Turn) -> str:
    turn.set("turns", turn.slots.get("turns", 0) + 1)
    return f"heard {turn.text}"


def test_a_conversation_without_a_loop(store_url: str) -> None:
    with stateroom.blocking.open(store_url, agents=[echo]) as room:
        first = room.turn("hello")
        again = room.turn("again", conversation=first.conversation)
        assert (again.text, again.slots) == ("heard again", {"turns": 2})
        assert room.conversation(first.conversation).id == first.conversation
        assert len(list(room.items(first.conversation))) == 4
        desk = room.session(again.session)
        assert desk.patch({"size": 11}, expected={"size": 0}) == desk.version == 3
        assert desk.state == {"turns": 2, "size": 11}
        with pytest.raises(Conflict):
            desk.patch({"size": 12}, expected={"size": 0})
        events = list(room.stream("more", conversation=first.conversation))
        assert events[-1]["type"] == "response.completed"
        assert list(room.follow(events[0]["response"]["id"], after=2)) == events[3:]
        with pytest.raises(NotFound):
            room.conversation("conv_nothing")
    with stateroom.blocking.open(store_url, agents=[echo]) as room:
        assert len(list(room.items(first.conversation))) == 6


def test_an_iterator_that_is_left_early_is_closed(store_url: str) -> None:
    with stateroom.blocking.open(store_url, agents=[echo]) as room:
        run = room.turn("hello", options={"stream": True}).run
        for event in room.follow(run):
            assert event["sequence_number"] == 0
            break
        assert room.reply(run).status == "completed"


def test_several_threads_share_a_room(store_url: str) -> None:
    with stateroom.blocking.open(store_url, agents=[echo]) as room, ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(lambda number: room.turn(f"{number}").text, range(40)))
        assert texts == [f"heard {number}" for number in range(40)]


def test_closing_twice_is_closing_once_and_ends_its_thread(store_url: str) -> None:
    before = threading.active_count()
    room = stateroom.blocking.open(store_url, agents=[echo])
    room.turn("hello")
    room.close()
    room.close()
    assert threading.active_count() == before


def test_a_store_that_does_not_open_leaves_no_thread() -> None:
    before = threading.active_count()
    with pytest.raises(stateroom.StateroomError):
        stateroom.blocking.open("nothing://")
    assert threading.active_count() == before
