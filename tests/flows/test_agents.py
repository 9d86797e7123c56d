"""Agents that need nobody else: a Python function and a tape. What they tell is what the contract allows."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from stateroom.errors import InvalidInput, NotFound, StateroomError
from stateroom.flows.agent import AgentEvent, Delta, Done, End, Output, Start, Turn, Usage
from stateroom.hosting.callable import CallableAgent
from stateroom.hosting.tape import Tape, TapeAgent
from stateroom.hosting.transcripts import TapedTurn, Transcript, read
from tests.flows.turns import assert_well_formed, items, says, spoken, told, turn_of

pytestmark = pytest.mark.anyio


# ── a Python function ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (None, []),
        ("hi", [Start({"type": "message", "role": "assistant"}), Delta("hi"), Done()]),
        (says("hi", "assistant"), [Output(says("hi", "assistant"))]),
        ([{"type": "a"}, {"type": "b"}], [Output({"type": "a"}), Output({"type": "b"})]),
    ],
)
async def test_a_function_returns_text_an_item_items_or_nothing(answer: Any, expected: list[AgentEvent]) -> None:
    async def function(turn: Turn) -> Any:
        return answer

    assert await told(CallableAgent("f", function), turn_of(says("hello"))) == expected


async def test_a_function_sees_the_turn_and_changes_the_desk() -> None:
    async def function(turn: Turn) -> str:
        turn.set("seen", turn.slots.get("seen", 0) + 1)
        return turn.text.upper()

    turn = turn_of(says("hello"), slots={"seen": 1})
    assert spoken(await told(CallableAgent("f", function), turn)) == "HELLO"
    assert turn.changes == {"seen": 2}


async def test_a_generator_mixes_text_items_and_events() -> None:
    async def function(turn: Turn) -> Any:
        yield "a"
        yield "b"
        yield Usage({"input_tokens": 1})
        yield {"type": "x"}
        yield "c"
        yield Start({"type": "message", "role": "assistant"})
        yield "d"
        yield Done()
        yield End("incomplete", reason="max_output_tokens")

    events = await told(CallableAgent("f", function), turn_of(says("hello")))
    assert_well_formed(events)
    head = Start({"type": "message", "role": "assistant"})
    assert events == [
        head, Delta("a"), Delta("b"), Usage({"input_tokens": 1}), Done(), Output({"type": "x"}),
        head, Delta("c"), Done(), head, Delta("d"), Done(), End("incomplete", reason="max_output_tokens"),
    ]  # fmt: skip


async def test_what_a_generator_began_is_completed_at_its_end() -> None:
    async def function(turn: Turn) -> Any:
        yield "a"

    assert (await told(CallableAgent("f", function), turn_of(says("hello"))))[-1] == Done()


async def test_a_generator_is_closed_when_the_turn_is_cancelled() -> None:
    closed = []

    async def function(turn: Turn) -> Any:
        try:
            yield "a"
            await anyio.sleep_forever()
        finally:
            closed.append(True)

    with anyio.move_on_after(0.05):
        await told(CallableAgent("f", function), turn_of(says("hello")))
    assert closed == [True]
    left_early: Any = CallableAgent("f", function).work(turn_of(says("hello")))
    await anext(left_early)
    await left_early.aclose()
    assert closed == [True, True]


async def returns_a_number(turn: Turn) -> Any:
    return 7


async def returns_numbers(turn: Turn) -> Any:
    return [{"type": "ok"}, 7]


async def yields_a_number(turn: Turn) -> Any:
    yield 7


def is_not_async(turn: Turn) -> Any:
    return "text"


@pytest.mark.parametrize("function", [returns_a_number, returns_numbers, yields_a_number, is_not_async])
async def test_P31_a_wrong_answer_is_a_typed_error(function: Any) -> None:
    with pytest.raises(StateroomError) as raised:
        await told(CallableAgent("f", function), turn_of(says("hello")))
    assert raised.value.reason == "agent_answer_invalid"


# ── a tape ──────────────────────────────────────────────────────────────────────────────────────────────────────────

CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{not json"}
FOUND = {"type": "function_call_output", "call_id": "c1", "output": "\u2028 😀 1.50"}
DONE = says("done", "assistant")
RECORDED = Transcript(
    id="t1", source="here", items=[says("welcome", "assistant"), says("one"), CALL, FOUND, DONE, says("two"), says("three")]
)  # fmt: skip


def test_a_transcript_falls_into_turns_at_its_user_messages() -> None:
    assert RECORDED.turns() == [
        TapedTurn(input=[], outputs=[says("welcome", "assistant")]),
        TapedTurn(input=[says("one")], outputs=[CALL, FOUND, says("done", "assistant")]),
        TapedTurn(input=[says("two")], outputs=[]),
        TapedTurn(input=[says("three")], outputs=[]),
    ]


@pytest.mark.parametrize("name", ["tape.jsonl", "tape.jsonl.gz"])
def test_transcripts_are_read_plain_and_gzipped(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    lines = msgspec.json.encode(RECORDED) + b"\n\n" + msgspec.json.encode(RECORDED) + b"\n"
    path.write_bytes(gzip.compress(lines) if name.endswith("gz") else lines)
    assert list(read(path)) == [RECORDED, RECORDED]


@pytest.mark.parametrize("line", [b"{", b"[]", b'{"id": "x"}', b'{"id": "x", "source": "", "items": [1]}'])
def test_P31_a_line_that_is_no_transcript_is_named(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "tape.jsonl"
    path.write_bytes(msgspec.json.encode(RECORDED) + b"\n" + line)
    with pytest.raises(InvalidInput, match="line 2") as raised:
        list(read(path))
    assert raised.value.reason == "transcript_invalid"


def named(transcript: str, number: int) -> dict[str, Any]:
    return {"metadata": {"tape": transcript, "turn": str(number)}}


async def test_a_tape_says_what_was_recorded_byte_for_byte(tmp_path: Path) -> None:
    path = tmp_path / "tape.jsonl"
    path.write_bytes(msgspec.json.encode(RECORDED))
    agent = TapeAgent(Tape.load(path))
    assert agent.name == "tape"
    bodies = []
    for number, recorded in enumerate(RECORDED.turns()):
        events = await told(agent, turn_of(*recorded.input, request=named("t1", number)))
        bodies += [msgspec.json.encode(item) for item in (*recorded.input, *items(events))]
    assert bodies == [msgspec.json.encode(item) for item in RECORDED.items]


async def test_a_tape_streams_messages_in_pieces() -> None:
    agent = TapeAgent(Tape([RECORDED]), stream_chars=3)
    events = await told(agent, turn_of(says("one"), request=named("t1", 1)))
    assert events == [
        Output(CALL), Output(FOUND), Start({"type": "message", "role": "assistant"}), Delta("don"), Delta("e"),
        Done(says("done", "assistant")),
    ]  # fmt: skip


async def test_a_tape_can_be_slow() -> None:
    with anyio.move_on_after(0.05) as scope:
        await told(TapeAgent(Tape([RECORDED]), delay_ms=1000), turn_of(request=named("t1", 0)))
    assert scope.cancelled_caught


@pytest.mark.parametrize("metadata", [None, "t1", {"tape": "t1"}, {"tape": "t1", "turn": "x"}, {"tape": "t1", "turn": 1}])
async def test_P31_a_request_must_name_its_recording(metadata: Any) -> None:
    with pytest.raises(InvalidInput) as raised:
        await told(TapeAgent(Tape([RECORDED])), turn_of(request={"metadata": metadata}))
    assert raised.value.reason == "tape_not_named"


@pytest.mark.parametrize("request_", [named("t1", 4), named("t2", 0)])
async def test_P31_what_is_not_on_the_tape_is_not_found(request_: dict[str, Any]) -> None:
    with pytest.raises(NotFound):
        await told(TapeAgent(Tape([RECORDED])), turn_of(request=request_))
