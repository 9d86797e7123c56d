"""What a program gives that cannot be: the same InvalidInput from every call of the face on every kind of store, and nothing
is written. The asynchronous face and the blocking one are the same calls."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

import stateroom
import stateroom.blocking
from stateroom import Changes, face
from stateroom.errors import InvalidInput, StateroomError
from stateroom.flows.agent import Turn
from tests.services.places import DURABLE, EVERY, Kind, Place

pytestmark = pytest.mark.anyio

NUL, HALF = "a\0b", "a\ud800"
Call = Callable[[face.Room, face.Desk], Any]


async def echo(turn: Turn) -> str:
    return f"heard {turn.text}"


def turn(**given: Any) -> Call:
    return lambda room, desk: room.turn("hello", **given)


def late(given: Any) -> Call:
    return turn(options={"deadline_s": given})


CALLS: dict[str, tuple[Call, str]] = {
    "a key that is empty": (turn(key=""), "idempotency_key_invalid"),
    "a key that is too long": (turn(key="k" * 256), "idempotency_key_invalid"),
    "a key with a NUL": (turn(key=NUL), "idempotency_key_invalid"),
    "a key with half a character": (turn(key=HALF), "idempotency_key_invalid"),
    "a key that is no text": (turn(key=7), "idempotency_key_invalid"),
    "a conversation's key": (lambda room, desk: room.create(key="k" * 256), "idempotency_key_invalid"),
    "a conversation's empty key": (lambda room, desk: room.create(key=""), "idempotency_key_invalid"),
    "a deadline in words": (late("soon"), "deadline_invalid"),
    "a deadline as digits": (late("5"), "deadline_invalid"),
    "no deadline at all": (late(0), "deadline_invalid"),
    "a deadline that is over": (late(-1), "deadline_invalid"),
    "a deadline that is true": (late(True), "deadline_invalid"),
    "a deadline too far": (late(10**9), "deadline_invalid"),
    "an unstored deadline": (turn(options={"deadline_s": 5, "store": False}), "deadline_invalid"),
    "storing in words": (turn(options={"store": "no"}), "wrong_type"),
    "an agent with a NUL": (turn(agent=NUL), "json_nul"),
    "metadata with a NUL": (lambda room, desk: room.create(metadata={"a": NUL}), "json_nul"),
    "metadata with half a character": (lambda room, desk: room.create(metadata={HALF: "a"}), "json_invalid"),
    "a session's metadata": (lambda room, desk: room.open_session(metadata={NUL: "a"}), "json_nul"),
    "a fork's metadata": (lambda room, desk: desk.fork(metadata={"a": HALF}), "json_invalid"),
    "a subject with a NUL": (lambda room, desk: room.create(subject=NUL), "text_invalid"),
    "a subject with half a character": (lambda room, desk: room.open_session(subject=HALF), "text_invalid"),
    "a session's ttl": (lambda room, desk: room.open_session(ttl_s=math.nan), "lifetime_invalid"),
    "a session's maximum": (lambda room, desk: room.open_session(max_s=math.inf), "lifetime_invalid"),
    "a ttl in words": (lambda room, desk: room.open_session(ttl_s="1"), "lifetime_invalid"),  # type: ignore[arg-type]
    "a negative ttl": (lambda room, desk: room.open_session(ttl_s=-1), "lifetime_invalid"),
    "who acts, with a NUL": (lambda room, desk: room.session(desk.id, agent=NUL), "text_invalid"),
    "a queue with a NUL": (lambda room, desk: room.handed_off(NUL), "text_invalid"),
    "a page's size": (lambda room, desk: room.conversations(limit=1.5), "limit_invalid"),  # type: ignore[arg-type]
    "a queue's size": (lambda room, desk: room.handed_off("q", limit=0), "limit_invalid"),
    "a tail": (lambda room, desk: appended(room, 1.5), "number_invalid"),
    "where to follow from": (lambda room, desk: followed(room, -2), "number_invalid"),
    "where to follow from, as a fraction": (lambda room, desk: followed(room, 0.5), "number_invalid"),
    "to roll back to a fraction": (lambda room, desk: desk.roll_back(1.5), "number_invalid"),  # type: ignore[arg-type]
    "to roll back to true": (lambda room, desk: desk.roll_back(True), "number_invalid"),
    "to roll back below zero": (lambda room, desk: desk.roll_back(-1), "number_invalid"),
    "to roll back too far": (lambda room, desk: desk.roll_back(2**70), "number_invalid"),
    "to roll back to a NUL": (lambda room, desk: desk.roll_back(NUL), "text_invalid"),
    "what to roll back from": (lambda room, desk: desk.roll_back(0, expected_version=0.5), "number_invalid"),  # type: ignore[arg-type]
    "to fork at a fraction": (lambda room, desk: desk.fork(to=1.5), "number_invalid"),  # type: ignore[arg-type]
    "to fork below zero": (lambda room, desk: desk.fork(to=-1), "number_invalid"),
    "a version that was, a fraction": (lambda room, desk: desk.at(0.5), "number_invalid"),  # type: ignore[arg-type]
    "a version that was, below zero": (lambda room, desk: desk.at(-1), "number_invalid"),
    "a difference to a fraction": (lambda room, desk: desk.diff(0, 0.5), "number_invalid"),  # type: ignore[arg-type]
    "to name a fraction": (lambda room, desk: desk.checkpoint("c", version=0.5), "number_invalid"),  # type: ignore[arg-type]
    "a checkpoint with a NUL": (lambda room, desk: desk.checkpoint(NUL), "slot_name_invalid"),
    "a checkpoint with half a character": (lambda room, desk: desk.checkpoint(HALF), "slot_name_invalid"),
    "to drop a NUL": (lambda room, desk: desk.drop_checkpoint(NUL), "text_invalid"),
    "a slot with a NUL": (lambda room, desk: desk.set(NUL, 1), "slot_name_invalid"),
    "a slot with half a character": (lambda room, desk: desk.patch({HALF: 1}), "slot_name_invalid"),
    "a slot that is no text": (lambda room, desk: desk.set(7, 1), "slot_name_invalid"),  # type: ignore[arg-type]
    "to remove a NUL": (lambda room, desk: desk.remove(NUL), "slot_name_invalid"),
    "to update a NUL": (lambda room, desk: desk.update(lambda state: state.update({NUL: 1})), "slot_name_invalid"),
    "a source with a NUL": (lambda room, desk: desk.apply(Changes().set("a", 1, sources=[NUL])), "slot_name_invalid"),
    "a version expected, a fraction": (lambda room, desk: desk.set("a", 1, expected=0.5), "wrong_type"),  # type: ignore[arg-type]
    "a version expected, below zero": (lambda room, desk: desk.set("a", 1, expected=-1), "wrong_type"),
    "the desk's version": (lambda room, desk: desk.apply(Changes().set("a", 1), expected_version=1.5), "number_invalid"),  # type: ignore[arg-type]
    "a first slot with a NUL": (lambda room, desk: room.open_session(state={NUL: 1}), "json_nul"),
    "to read a NUL": (lambda room, desk: desk.slot(NUL), "text_invalid"),
    "to look through half a character": (lambda room, desk: desk.entries(HALF), "text_invalid"),
    "to look as of a fraction": (lambda room, desk: desk.entries("w", as_of=0.5), "number_invalid"),  # type: ignore[arg-type]
    "a document with a NUL": (lambda room, desk: desk.document(NUL), "text_invalid"),
    "when it was observed": (lambda room, desk: desk.observe("w", b"x", at=0.5), "entry_invalid"),  # type: ignore[arg-type]
    "what was observed": (lambda room, desk: desk.observe("w", "x"), "entry_invalid"),  # type: ignore[arg-type]
    "what media it is": (lambda room, desk: desk.observe("w", b"x", media=NUL), "text_invalid"),
    "to count a fraction": (lambda room, desk: desk.count("n", 0.5), "operand_invalid"),  # type: ignore[arg-type]
    "to watch from below zero": (lambda room, desk: watched(desk, -1), "number_invalid"),
    "to watch from a fraction": (lambda room, desk: watched(desk, 0.5), "number_invalid"),
    "who may, with a NUL": (lambda room, desk: desk.allow(NUL, read=["*"]), "text_invalid"),
    "what may be read, with half a character": (lambda room, desk: desk.allow("a", read=[HALF]), "text_invalid"),
    "who holds it, with a NUL": (lambda room, desk: desk.hold(NUL, seconds=5), "text_invalid"),
    "how long it is held": (lambda room, desk: desk.hold("a", seconds=math.nan), "hold_invalid"),
    "how long, beyond all numbers": (lambda room, desk: desk.hold("a", seconds=1e308), "hold_invalid"),
    "a ttl beyond all numbers": (lambda room, desk: room.open_session(ttl_s=10**400), "lifetime_invalid"),
    "what may be read, one name": (lambda room, desk: desk.allow("a", read="files.*"), "wrong_type"),
    "what may be written, one name": (lambda room, desk: desk.allow("a", write="files.*"), "wrong_type"),
    "what is removed, one name": (lambda room, desk: desk.patch({"a": 1}, removed="ab"), "wrong_type"),
    "another slot's version": (lambda room, desk: desk.patch({"a": 1}, expected={"b": 0.5}), "number_invalid"),  # type: ignore[dict-item]
    "entries in a list": (lambda room, desk: desk.put("m", [1]), "operand_invalid"),  # type: ignore[arg-type]
    "no operations": (lambda room, desk: desk.edit("a", 5), "patch_invalid"),  # type: ignore[arg-type]
    "a document in words": (lambda room, desk: desk.sync("d", "x"), "doc_invalid"),  # type: ignore[arg-type]
    "to update with a NUL": (lambda room, desk: desk.update(lambda state: state.update(a=NUL)), "json_nul"),
    "to update with half a character": (lambda room, desk: desk.update(lambda state: state.update(a=HALF)), "json_invalid"),
    "to update with no number": (lambda room, desk: desk.update(lambda state: state.update(a=math.nan)), "json_invalid"),
    "to update with bytes": (lambda room, desk: desk.update(lambda state: state.update(a=b"x")), "json_invalid"),
    "to update too deep": (lambda room, desk: desk.update(lambda state: state.update(a=nested(65))), "json_too_deep"),
    "to update no name": (lambda room, desk: desk.update(lambda state: state.update({7: 1})), "slot_name_invalid"),  # type: ignore[dict-item]
    "to update later": (lambda room, desk: desk.update(later), "wrong_type"),  # type: ignore[arg-type]
    "how long, in words": (lambda room, desk: desk.hold("a", seconds="5"), "hold_invalid"),  # type: ignore[arg-type]
}  # fmt: skip


def nested(depth: int) -> Any:
    return [nested(depth - 1)] if depth else 1


async def later(state: dict[str, Any]) -> None:
    state["a"] = 1


async def appended(room: face.Room, tail: Any) -> None:
    made = await room.create()
    await room.append(made.id, [{"type": "message", "role": "user", "content": "x"}], expected_tail=tail)


async def followed(room: face.Room, after: Any) -> None:
    run = (await room.turn("hello")).run
    async for _ in room.follow(run, after=after):
        return


async def watched(desk: face.Desk, after: Any) -> None:
    async for _ in desk.watch(after=after):
        return


@pytest.fixture(params=EVERY)
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
async def room(place: Place) -> AsyncIterator[face.Room]:
    async with place.opened(echo) as room:
        yield room


@pytest.mark.parametrize("what", CALLS)
async def test_P31_what_cannot_be_is_refused_alike_everywhere(room: face.Room, what: str) -> None:
    call, code = CALLS[what]
    desk = await room.open_session(state={"a": 1})
    await desk.window("w", seconds=60)
    before = (desk.version, desk.state.copy())
    asked: Coroutine[Any, Any, Any] = call(room, desk)
    with pytest.raises(InvalidInput) as refused:
        await asked
    assert refused.value.reason == code
    await desk.refresh()
    assert (desk.version, desk.state) == before


@pytest.mark.parametrize("kind", DURABLE)
def test_the_blocking_face_refuses_as_the_other_one(store_url: str) -> None:
    with stateroom.blocking.open(store_url, agents=[echo]) as room:
        desk = room.open_session()
        for asked in (
            lambda: room.turn("x", key=""),
            lambda: room.turn("x", options={"deadline_s": -1}),
            lambda: desk.roll_back(1.5),  # type: ignore[arg-type]
            lambda: next(iter(desk.watch(after=-1))),
            lambda: desk.slot(NUL),
        ):
            with pytest.raises(StateroomError) as refused:
                asked()
            assert isinstance(refused.value, InvalidInput)
