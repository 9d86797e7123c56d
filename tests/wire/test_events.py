"""The renderer: whatever an agent tells, the stream has exactly the events its log counted, and they add up to the answer."""

from __future__ import annotations

import gzip
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import openresponses_types
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stateroom.samples
from stateroom import stack
from stateroom.batch import Draft
from stateroom.connection.model import Cursor
from stateroom.flows.agent import AgentEvent, Delta, Done, End, Output, Start, Turn, Usage
from stateroom.flows.turn import TurnRequest
from stateroom.hosting.callable import CallableAgent
from stateroom.ids import NIL
from stateroom.principal import LOCAL
from stateroom.run.model import LogRow, Run, Status
from stateroom.stack import Stateroom
from stateroom.wire import json, openai, rows
from stateroom.wire.rows import composed

pytestmark = pytest.mark.anyio

text = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
parts = (
    text
    | st.fixed_dictionaries({"type": st.just("output_text"), "text": text}, optional={"annotations": st.just([]), "mine": text})
    | st.fixed_dictionaries({"type": st.just("refusal"), "refusal": text})
    | st.fixed_dictionaries({"type": st.just("output_text"), "text": st.none()})
    | st.integers()
)
messages = st.fixed_dictionaries(
    {"type": st.just("message"), "role": st.sampled_from(["assistant", "system", "user"])},
    optional={"content": text | st.lists(parts, max_size=3) | st.none(), "status": text, "mood": text},
)
calls = st.fixed_dictionaries(
    {"type": st.just("function_call"), "name": text, "call_id": text},
    optional={"arguments": text | st.none() | st.dictionaries(text, st.integers(), max_size=2), "id": text},
)
others = st.fixed_dictionaries(
    {"type": st.sampled_from(["reasoning", "custom_tool_call", "hologram", "web_search_call", "function_call_output"])},
    optional={"status": st.none() | text, "text": text, "nested": st.dictionaries(text, text, max_size=2)},
)
items = messages | calls | others


@st.composite
def told(draw: st.DrawFn) -> list[AgentEvent]:
    """What an agent might tell: items whole or in pieces, completed or left open, in any order."""
    events: list[AgentEvent] = []
    for _ in range(draw(st.integers(0, 4))):
        if draw(st.booleans()):
            events.append(Output(draw(items)))
            continue
        head = draw(st.sampled_from([None, "message", "function_call", "reasoning", "hologram"]))
        pieces = draw(st.lists(text, max_size=4))
        if head is not None:
            rest = {"role": "assistant"} if head == "message" else {"name": "f", "call_id": "c"}
            events.append(Start({"type": head, **rest}))
        events += [Delta(piece) for piece in pieces]
        if draw(st.booleans()):
            events.append(Done())
    if draw(st.booleans()):
        events.append(Usage({"input_tokens": draw(st.integers(0, 9))}))
    if draw(st.booleans()):
        events.append(End("incomplete", "max_output_tokens"))
    return events


async def played(events: Sequence[AgentEvent], options: dict[str, Any]) -> tuple[Stateroom, Run]:
    """A run whose agent told exactly this. The caller closes the room."""

    async def tell(turn: Turn) -> AsyncIterator[AgentEvent]:
        for event in events:
            yield event

    room = await stack.open("ram://", agents=[CallableAgent("teller", tell)])
    request = TurnRequest(agent="teller", input=(b'{"role":"user","content":"go"}',), options=json.encode(options))
    ticket = await room.turns.take(LOCAL, request)
    return room, (await room.turns.outcome(LOCAL, ticket.run.id)).run


async def stream(room: Stateroom, run: Run, after: int = 0) -> list[dict[str, Any]]:
    found = [event async for event in room.followers.events(LOCAL, run.id, room.followers.at(run, after))]
    cursors, events = [event[0] for event in found if event], [event[1] for event in found if event]
    assert [cursor.seq for cursor in cursors] == [event["sequence_number"] + 1 for event in events]
    assert all(isinstance(cursor, Cursor) for cursor in cursors)
    return events


@given(told(), st.booleans())
@settings(max_examples=60, deadline=None)
async def test_P4_the_stream_is_dense_and_the_same_from_every_cursor(events: list[AgentEvent], streamed: bool) -> None:
    room, run = await played(events, {"stream": streamed})
    async with room:
        whole = await stream(room, run)
        assert [event["sequence_number"] for event in whole] == list(range(run.head))
        for after in range(run.head + 1):
            assert await stream(room, run, after) == whole[after:]


@given(told(), st.booleans())
@settings(max_examples=60, deadline=None)
async def test_every_row_stands_for_as_many_events_as_it_counted(events: list[AgentEvent], streamed: bool) -> None:
    room, run = await played(events, {"stream": streamed})
    async with room:
        renderer = openai.EventRenderer(run)
        renderer.settle(run, await room.turns.outputs(LOCAL, run))
        for row in await room.runs.log(LOCAL, run.id, limit=1000):
            rendered = renderer._of(row) or [{}]
            assert len(rendered) == row.count, row.kind


@given(told(), st.booleans())
@settings(max_examples=60, deadline=None)
async def test_events_add_up_to_the_answer(events: list[AgentEvent], streamed: bool) -> None:
    """Every output begins once, its deltas are its text, it is done once, and the last event shows the same items."""
    room, run = await played(events, {"stream": streamed})
    async with room:
        outputs = await room.turns.outputs(LOCAL, run)
        found = await stream(room, run)
        answer = openai.response_object(run, outputs)
    assert found[-1]["type"] == openai.LAST_EVENT[run.status]
    assert found[-1]["response"] == answer
    done = [event["item"] for event in found if event["type"] == "response.output_item.done"]
    added = [event["item"] for event in found if event["type"] == "response.output_item.added"]
    assert done == answer["output"]
    assert [item["id"] for item in added] == [item["id"] for item in done]
    said: defaultdict[tuple[str, int], str] = defaultdict(str)
    for event in found:
        if event["type"] == "response.output_text.delta":
            said[event["item_id"], event["content_index"]] += event["delta"]
        if event["type"] == "response.output_text.done":
            assert said[event["item_id"], event["content_index"]] == event["text"]


def a_draft(id_: bytes, kind: str, body: bytes) -> Draft:
    return Draft(id=id_, kind=kind, role="", origin="agent", trust=0, body=body)


@given(items, st.binary(min_size=16, max_size=16))
def test_an_item_keeps_every_field_it_came_with(item: dict[str, Any], id_: bytes) -> None:
    body = json.encode(item)
    shown = msgspec.json.decode(openai.render_item(a_draft(id_, item["type"], body)))
    kept = {name: value for name, value in item.items() if name not in ("id", "status", "content")}
    assert {name: shown[name] for name in kept} == kept
    assert shown["id"].endswith(id_.hex())
    assert isinstance(shown["status"], str)
    if item["type"] == "message":
        assert len(shown["content"]) == len(rows.parts_of(item))


def test_unknown_fields_keep_their_spelling() -> None:
    body = b'{"type":"hologram","beams":3.10,"big":123456789012345678901,"e":1e5}'
    rendered = json.fields(openai.render_item(a_draft(bytes(16), "hologram", body)))
    assert (rendered["beams"], rendered["big"], rendered["e"]) == (b"3.10", b"123456789012345678901", b"1e5")


@given(st.sampled_from(["message", "function_call", "hologram"]), st.lists(text, max_size=3))
def test_renderer_and_scribe_compose_the_same_item(kind: str, pieces: list[str]) -> None:
    left = openai._Open(bytes(16), {"type": kind, "mine": 1}, 0)
    left.pieces += pieces
    assert left.composed() == composed(left.head, "".join(pieces))


# ── what real records, resets, deletions and later versions do to a stream ──────────────────────────────────────────


def a_run(status: Status) -> Run:
    return Run(id=b"r" * 16, conversation=NIL, branch=NIL, session=NIL, agent="a", owner="o", subject="s", status=status)


def recorded() -> list[list[dict[str, Any]]]:
    path = Path(stateroom.samples.__file__).with_name("transcripts.jsonl.gz")
    with gzip.open(path) as lines:
        return [msgspec.json.decode(line)["items"] for line in lines]


async def test_counts_hold_for_every_recorded_item() -> None:
    run = a_run("completed")
    seen = 0
    for transcript in recorded():
        for item in transcript:
            row = rows.item_row(bytes(16), item, json.encode(item))
            renderer = openai.EventRenderer(run)
            events = renderer._of(LogRow(first=1, count=row.count, kind=row.kind, body=row.body, at=0, item=row.item))
            assert len(events) == row.count
            seen += 1
    assert seen > 100


async def test_after_a_reset_no_output_index_is_used_again() -> None:
    """The openai client refuses an index that was there before, and an item that never ends."""
    run = a_run("completed")
    head, old, new = {"type": "message", "role": "assistant"}, b"a" * 16, b"b" * 16
    log = [*rows.OPENED, rows.open_row(old, head), rows.delta_row(old, "lost"), *rows.RESET, *rows.STARTED]
    log += [rows.open_row(new, head), rows.delta_row(new, "kept"), rows.close_row(new, head), rows.end_row()]
    renderer, first, events = openai.EventRenderer(run), 1, list[dict[str, Any]]()
    for row in log:
        events += renderer.events(LogRow(first=first, count=row.count, kind=row.kind, body=row.body, at=0, item=row.item))
        first += row.count
    added = [event for event in events if event["type"] == "response.output_item.added"]
    done = [event for event in events if event["type"] == "response.output_item.done"]
    assert [event["output_index"] for event in added] == [event["output_index"] for event in done] == [0, 1]
    assert [event["item"]["status"] for event in done] == ["incomplete", "completed"]
    reset = events[events.index(done[0]) + 1]
    assert (reset["type"], reset["response"]["output"]) == ("response.in_progress", [])


async def test_a_deleted_output_leaves_the_numbers_dense() -> None:
    room, run = await played([Output({"type": "message", "role": "assistant", "content": "gone soon"})], {})
    async with room:
        (output,) = await room.turns.outputs(LOCAL, run)
        await room.conversations.delete_item(LOCAL, run.branch, output.id)
        events = await stream(room, run)
    assert [event["sequence_number"] for event in events] == list(range(run.head))
    assert events[-1]["type"] == "response.completed"
    assert "gone soon" not in str(events)


async def test_P30_a_row_of_a_later_version_keeps_its_numbers() -> None:
    run = a_run("in_progress")
    events = openai.EventRenderer(run).events(LogRow(first=5, count=3, kind="telepathy", body=b"?", at=0))
    assert [event["sequence_number"] for event in events] == [4, 5, 6]


async def test_what_the_first_events_show_does_not_depend_on_when_they_are_read() -> None:
    room, run = await played([Delta("x"), Usage({"input_tokens": 3})], {"stream": True})
    async with room:
        events = await stream(room, run)
    begun = events[0]["response"]
    assert (begun["status"], begun["output"], begun["usage"], begun["completed_at"]) == ("in_progress", [], None, None)


# ── the public schema ───────────────────────────────────────────────────────────────────────────────────────────────


SCHEMAS = {
    "response.created": openresponses_types.ResponseCreatedStreamingEvent,
    "response.in_progress": openresponses_types.ResponseInProgressStreamingEvent,
    "response.output_item.added": openresponses_types.ResponseOutputItemAddedStreamingEvent,
    "response.output_item.done": openresponses_types.ResponseOutputItemDoneStreamingEvent,
    "response.content_part.added": openresponses_types.ResponseContentPartAddedStreamingEvent,
    "response.content_part.done": openresponses_types.ResponseContentPartDoneStreamingEvent,
    "response.output_text.delta": openresponses_types.ResponseOutputTextDeltaStreamingEvent,
    "response.output_text.done": openresponses_types.ResponseOutputTextDoneStreamingEvent,
    "response.function_call_arguments.delta": openresponses_types.ResponseFunctionCallArgumentsDeltaStreamingEvent,
    "response.function_call_arguments.done": openresponses_types.ResponseFunctionCallArgumentsDoneStreamingEvent,
    "response.completed": openresponses_types.ResponseCompletedStreamingEvent,
    "response.incomplete": openresponses_types.ResponseIncompleteStreamingEvent,
    "response.failed": openresponses_types.ResponseFailedStreamingEvent,
}


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("end", [End("completed"), End("incomplete", "max_output_tokens"), End("failed", "broken", "No.")])
async def test_events_are_as_open_responses_has_them(streamed: bool, end: End) -> None:
    call = {"type": "function_call", "name": "f", "call_id": "c"}
    events: list[AgentEvent] = [
        Delta("hel"),
        Delta("lo"),
        Done(),
        Start(call),
        Delta("{}"),
        Done(),
        Usage({"input_tokens": 1}),
        end,
    ]
    room, run = await played(events, {"stream": streamed})
    async with room:
        found = await stream(room, run)
    for event in found:
        SCHEMAS[event["type"]].model_validate(event)
    assert found[-1]["type"] == openai.LAST_EVENT[end.status]


STATUSES = {
    "queued": "queued", "in_progress": "in_progress", "requires_action": "in_progress", "cancelling": "in_progress",
    "completed": "completed", "incomplete": "incomplete", "failed": "failed", "cancelled": "cancelled", "expired": "failed",
}  # fmt: skip


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("error", [b"", b'{"code":"max_output_tokens","message":"Enough."}'])
def test_a_run_in_every_state_is_a_valid_response(status: Status, error: bytes) -> None:
    run = msgspec.structs.replace(a_run(status), error=error, finished_at=1_700_000_000_999, created_at=1_700_000_000_001)
    shown = openai.response_object(run)
    openresponses_types.ResponseResource.model_validate(shown)
    assert (shown["status"], shown["created_at"]) == (STATUSES[status], 1_700_000_000)
    assert (shown["error"] is not None) == (STATUSES[status] == "failed")
    assert (shown["incomplete_details"] is not None) == (STATUSES[status] in ("incomplete", "cancelled"))
    assert shown["completed_at"] == (1_700_000_000 if status == "completed" else None)
