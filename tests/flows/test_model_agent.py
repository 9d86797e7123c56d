"""A model endpoint as an agent, against a real server: both wires, streams cut anywhere, refusals, retries."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateroom.flows.agent import Delta, Done, End, Output, Start, Usage
from stateroom.hosting.completions_wire import Reader, messages
from stateroom.hosting.lanes import Lanes
from stateroom.hosting.model import ModelAgent, Wire
from stateroom.wire.frames import Frames
from tests.flows.endpoint import Endpoint, Refusal, Stream, serving
from tests.flows.turns import assert_well_formed, says, spoken, told, turn_of

pytestmark = pytest.mark.anyio

HEAD = {"type": "message", "role": "assistant"}
TEXT = {"type": "output_text", "text": "Grüße 😀", "annotations": []}
MESSAGE = {"id": "msg_1", **HEAD, "status": "completed", "content": [TEXT]}
CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"at":1}'}
FOUND = {"type": "function_call_output", "call_id": "c1", "output": "a bird"}
USAGE = {"input_tokens": 5, "output_tokens": 2, "total_tokens": 7}


@pytest.fixture(scope="module")
def server() -> Iterator[Endpoint]:
    with serving(Endpoint()) as endpoint:
        yield endpoint


@pytest.fixture
def endpoint(server: Endpoint) -> Endpoint:
    server.script, server.asked = [], []
    return server


def agent_of(endpoint: Endpoint, wire: Wire = "responses", **options: Any) -> ModelAgent:
    return ModelAgent("m", endpoint.url, model="gpt-x", wire=wire, **options)


# ── the Responses wire ──────────────────────────────────────────────────────────────────────────────────────────────


def added(index: int, item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "response.output_item.added", "output_index": index, "item": item}


def done(index: int, item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "response.output_item.done", "output_index": index, "item": item}


def text(index: int, delta: str) -> dict[str, Any]:
    return {"type": "response.output_text.delta", "output_index": index, "content_index": 0, "delta": delta}


def ended(kind: str = "completed", **response: Any) -> dict[str, Any]:
    return {"type": f"response.{kind}", "response": {"id": "resp_1", "usage": USAGE, **response}}


REASONING = {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "gA=="}
ANSWER = [
    {"type": "response.created", "response": {}},
    added(0, {"type": "reasoning", "id": "rs_1"}),
    done(0, REASONING),
    added(1, {**MESSAGE, "content": [], "status": "in_progress"}),
    text(1, "Grüße "),
    b": keep-alive\n\n",
    text(1, "😀"),
    done(1, MESSAGE),
    added(2, {**CALL, "arguments": ""}),
    {"type": "response.function_call_arguments.delta", "output_index": 2, "delta": '{"at":1}'},
    done(2, CALL),
    ended(output=[REASONING, MESSAGE, CALL]),
]
TOLD = [
    Output(REASONING), Start(HEAD), Delta("Grüße "), Delta("😀"), Done(MESSAGE),
    Start({"type": "function_call", "name": "look", "call_id": "c1"}), Delta('{"at":1}'), Done(CALL), Usage(USAGE),
]  # fmt: skip


@pytest.mark.parametrize("piece_bytes", [1, 7, 1 << 20])
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
async def test_a_response_stream_is_told_item_by_item(endpoint: Endpoint, piece_bytes: int, line_end: str) -> None:
    endpoint.script = [Stream(ANSWER, piece_bytes=piece_bytes, line_end=line_end)]
    assert await told(agent_of(endpoint), turn_of(says("hi"))) == TOLD


async def test_the_window_and_the_callers_wishes_go_to_the_endpoint(endpoint: Endpoint) -> None:
    endpoint.script = [Stream(ANSWER)]
    asked = {
        "model": "our-agent", "instructions": "Be brief.", "temperature": 0.5, "top_p": None, "tools": [{"type": "web_search"}],
        "tool_choice": "auto", "store": True, "conversation": "conv_1", "stream": False, "metadata": {"a": "b"},
    }  # fmt: skip
    unsealed = {"type": "reasoning", "id": "rs_0", "summary": []}
    past = [{"id": "item_1", **says("one")}, unsealed, REASONING, MESSAGE, {"type": "item_reference", "id": "msg_9"}]
    await told(agent_of(endpoint, api_key="sk-1"), turn_of(says("two"), past=past, request=asked))
    path, body, headers = endpoint.asked[0]
    assert path == "/v1/responses"
    assert headers["authorization"] == "Bearer sk-1"
    assert body == {
        "model": "gpt-x", "input": [says("one"), REASONING, {k: v for k, v in MESSAGE.items() if k != "id"}, says("two")],
        "instructions": "Be brief.", "temperature": 0.5, "tools": [{"type": "web_search"}], "tool_choice": "auto",
        "stream": True, "store": False,
    }  # fmt: skip


async def test_without_a_key_no_authorization_is_sent(endpoint: Endpoint) -> None:
    endpoint.script = [Stream(ANSWER)]
    await told(agent_of(endpoint), turn_of(says("hi")))
    assert "authorization" not in endpoint.asked[0][2]


async def test_a_nul_from_the_endpoint_costs_no_answer(endpoint: Endpoint) -> None:
    endpoint.script = [Stream([added(0, {**MESSAGE, "content": []}), text(0, "a\0b"), done(0, MESSAGE), ended(output=[MESSAGE])])]
    events = await told(agent_of(endpoint), turn_of(says("hi")))
    assert (spoken(events), [event for event in events if isinstance(event, End)]) == ("a\ufffdb", [])


async def test_items_told_only_at_the_end_are_not_lost(endpoint: Endpoint) -> None:
    endpoint.script = [Stream([added(0, MESSAGE), text(0, "Grüße 😀"), ended(output=[MESSAGE, CALL])])]
    events = await told(agent_of(endpoint), turn_of(says("hi")))
    assert events == [Start(HEAD), Delta("Grüße 😀"), Done(MESSAGE), Output(CALL), Usage(USAGE)]


async def test_an_incomplete_response_ends_incomplete_with_its_reason(endpoint: Endpoint) -> None:
    end = ended("incomplete", incomplete_details={"reason": "content_filter"})
    endpoint.script = [Stream([added(0, MESSAGE), text(0, "Gr"), end])]
    events = await told(agent_of(endpoint), turn_of(says("hi")))
    assert events == [Start(HEAD), Delta("Gr"), Done(), Usage(USAGE), End("incomplete", reason="content_filter")]


@pytest.mark.parametrize(
    ("event", "end"),
    [
        (ended("failed", error={"code": "rate_limit_exceeded", "message": "Slow down."}), ("rate_limit_exceeded", "Slow down.")),
        (ended("failed", error=None), ("model_error", "The model failed and did not say why.")),
        ({"type": "error", "code": "server_error", "message": "Oops."}, ("server_error", "Oops.")),
        ({"type": "error", "error": {"code": 7, "message": "Oops."}}, ("model_error", "Oops.")),
    ],
)
async def test_a_failed_response_fails_with_its_code(endpoint: Endpoint, event: Any, end: tuple[str, str]) -> None:
    endpoint.script = [Stream([added(0, MESSAGE), text(0, "Gr"), event, text(0, "never read")])]
    events = await told(agent_of(endpoint), turn_of(says("hi")))
    assert events == [Start(HEAD), Delta("Gr"), End("failed", reason=end[0], message=end[1])]


# ── the older wire ──────────────────────────────────────────────────────────────────────────────────────────────────


def chunk(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}], "usage": None}


def call_chunk(index: int, arguments: str, **head: Any) -> dict[str, Any]:
    function = {"name": head["name"], "arguments": arguments} if head else {"arguments": arguments}
    return chunk(tool_calls=[{"index": index, **({"id": head["id"]} if head else {}), "function": function}])


COUNTED = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 3}}}
COUNTS = {
    "input_tokens": 5, "input_tokens_details": {"cached_tokens": 3}, "output_tokens": 2,
    "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 7,
}  # fmt: skip


@pytest.mark.parametrize("piece_bytes", [1, 11, 1 << 20])
@pytest.mark.parametrize("mark", [True, False])
async def test_a_completion_stream_is_told_item_by_item(endpoint: Endpoint, piece_bytes: int, mark: bool) -> None:
    script = [
        chunk(role="assistant", content=""), chunk(content="Let me "), chunk(content="see"),
        call_chunk(0, "", id="c1", name="look"), call_chunk(0, '{"at"'), call_chunk(1, "{}", id="c2", name="hear"),
        call_chunk(0, ":1}"), chunk("tool_calls"), COUNTED,
    ]  # fmt: skip
    endpoint.script = [Stream(script, piece_bytes=piece_bytes, done=mark)]
    events = await told(agent_of(endpoint, "chat"), turn_of(says("hi")))
    look = {"type": "function_call", "name": "look", "call_id": "c1", "arguments": ""}
    hear = {**look, "name": "hear", "call_id": "c2"}
    assert events == [
        Start(HEAD), Delta("Let me "), Delta("see"), Done(), Start(look), Delta('{"at"'), Delta(":1}"), Done(),
        Start(hear), Delta("{}"), Done(), Usage(COUNTS),
    ]  # fmt: skip


def test_a_call_is_told_as_it_comes_not_when_the_completion_ends() -> None:
    reader = Reader()
    chunks = [chunk(content="Let me see"), call_chunk(0, "{", id="c1", name="look"), chunk(content="hm")]
    events = [event for one in chunks for event in reader.read(one)]
    assert events[2:] == [Done(), Start({**CALL, "arguments": ""}), Delta("{")]
    assert [event for event in reader.close()] == []  # it was cut


@pytest.mark.parametrize(("finish", "reason"), [("length", "max_output_tokens"), ("content_filter", "content_filter")])
async def test_a_completion_that_was_stopped_is_incomplete(endpoint: Endpoint, finish: str, reason: str) -> None:
    endpoint.script = [Stream([chunk(content="Gr"), chunk(finish)], done=True)]
    events = await told(agent_of(endpoint, "chat"), turn_of(says("hi")))
    assert events == [Start(HEAD), Delta("Gr"), Done(), End("incomplete", reason=reason)]


async def test_an_error_in_the_stream_fails_the_completion(endpoint: Endpoint) -> None:
    for error in ({"code": "overloaded", "message": "Later."}, "Later."):
        endpoint.script = [Stream([chunk(content="Gr"), {"error": error}], done=True)]
        events = await told(agent_of(endpoint, "chat"), turn_of(says("hi")))
        assert (events[-1].status, events[-1].message) == ("failed", "Later.")  # type: ignore[union-attr]


async def test_the_callers_wishes_in_the_words_of_the_older_wire(endpoint: Endpoint) -> None:
    endpoint.script = [Stream([chunk("stop", content="ok")], done=True)]
    schema = {"type": "object"}
    asked = {
        "instructions": "Be brief.", "max_output_tokens": 9, "reasoning": {"effort": "low", "summary": None}, "top_p": 0.1,
        "tools": [{"type": "function", "name": "look", "parameters": schema, "strict": None}, {"type": "web_search"}],
        "tool_choice": {"type": "function", "name": "look"},
        "text": {"format": {"type": "json_schema", "name": "n", "schema": schema, "strict": True}},
    }  # fmt: skip
    await told(agent_of(endpoint, "chat"), turn_of(says("hi"), request=asked))
    path, body, _ = endpoint.asked[0]
    assert path == "/v1/chat/completions"
    assert body == {
        "model": "gpt-x", "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}],
        "top_p": 0.1, "max_completion_tokens": 9, "reasoning_effort": "low",
        "tools": [{"type": "function", "function": {"name": "look", "parameters": schema}}],
        "tool_choice": {"type": "function", "function": {"name": "look"}},
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": True}},
        "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip


def test_P17_messages_have_every_group_of_calls_followed_by_its_outputs() -> None:
    second, found = {**CALL, "call_id": "c2", "arguments": "{bad"}, {**FOUND, "call_id": "c2"}
    late = [says("look twice"), MESSAGE, CALL, second, says("hurry"), FOUND, found]
    calls = [
        {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at":1}'}},
        {"id": "c2", "type": "function", "function": {"name": "look", "arguments": '{"unparsed":"{bad"}'}},
    ]
    assert messages([{"role": "developer", "content": "x"}, *late]) == [
        {"role": "system", "content": "x"},
        {"role": "user", "content": "look twice"},
        {"role": "assistant", "content": "Grüße 😀", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c1", "content": "a bird"},
        {"role": "tool", "tool_call_id": "c2", "content": "a bird"},
        {"role": "user", "content": "hurry"},
    ]


def test_messages_keep_images_files_refusals_and_custom_tools() -> None:
    content = [
        {"type": "input_text", "text": "see"}, {"type": "input_image", "image_url": "data:x", "detail": "low"},
        {"type": "input_file", "file_data": "data:y", "filename": "y"}, {"type": "x_unknown"},
    ]  # fmt: skip
    custom = {"type": "custom_tool_call", "call_id": "c1", "name": "run", "input": "ls"}
    output = {"type": "custom_tool_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "files"}]}
    refusal = {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}
    assert messages([{"role": "user", "content": content}, custom, output, {"type": "x_unknown"}, refusal]) == [
        {"role": "user", "content": [
            {"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "data:x", "detail": "low"}},
            {"type": "file", "file": {"file_data": "data:y", "filename": "y"}},
        ]},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "c1", "type": "custom", "custom": {"name": "run", "input": "ls"}}
        ]},
        {"role": "tool", "tool_call_id": "c1", "content": "files"},
        {"role": "assistant", "content": "No."},
    ]  # fmt: skip


# ── what goes wrong ─────────────────────────────────────────────────────────────────────────────────────────────────

BOTH: list[tuple[Wire, Any, Any]] = [
    ("responses", [added(0, MESSAGE), text(0, "Gr")], ended(output=[])), ("chat", [chunk(content="Gr")], chunk("stop"))
]  # fmt: skip


@pytest.mark.parametrize(("wire", "beginning", "end"), BOTH)
@pytest.mark.parametrize("cut", [True, False])
async def test_P5_a_stream_that_was_cut_is_a_failure(endpoint: Endpoint, wire: Wire, beginning: Any, end: Any, cut: bool) -> None:
    endpoint.script = [Stream(beginning, cut=cut)]
    events = await told(agent_of(endpoint, wire), turn_of(says("hi")))
    assert events[:2] == [Start(HEAD), Delta("Gr")]
    assert isinstance(events[-1], End)
    assert (events[-1].status, events[-1].reason) == ("failed", "model_stream_cut")
    assert len(endpoint.asked) == 1  # an answer that began is never asked for twice

    endpoint.script = [Stream([*beginning, end])]
    assert not any(isinstance(event, End) for event in await told(agent_of(endpoint, wire), turn_of(says("hi"))))


async def test_silence_in_mid_stream_is_a_failure(endpoint: Endpoint) -> None:
    endpoint.script = [Stream([added(0, MESSAGE), text(0, "Gr")], pause_s=1.0)]
    events = await told(agent_of(endpoint, timeout_s=0.1), turn_of(says("hi")))
    assert (events[-1].status, events[-1].reason) == ("failed", "model_stream_cut")  # type: ignore[union-attr]


@pytest.mark.parametrize("wire", ["responses", "chat"])
@pytest.mark.parametrize("event", [b"{", b"[1]", b'{"choices": 7, "type": 7}', b'{"a": "\\ud800"}', b"NaN"])
async def test_P31_what_is_no_event_is_a_failure(endpoint: Endpoint, wire: Wire, event: bytes) -> None:
    endpoint.script = [Stream([b"data: " + event + b"\n\n"])]
    events = await told(agent_of(endpoint, wire), turn_of(says("hi")))
    assert [event.status for event in events if isinstance(event, End)] == ["failed"]


@pytest.mark.parametrize(
    "refusals",
    [
        [Refusal(429, {"retry-after-ms": "1"})], [Refusal(503, {"retry-after": "0"}), Refusal(500, {"retry-after": "0.001"})],
    ],
)  # fmt: skip
async def test_a_request_that_did_not_begin_is_tried_again(endpoint: Endpoint, refusals: list[Refusal | Stream]) -> None:
    endpoint.script = [*refusals, Stream(ANSWER)]
    assert await told(agent_of(endpoint), turn_of(says("hi"))) == TOLD
    assert len({str(body) for _, body, _ in endpoint.asked}) == 1


@pytest.mark.parametrize(
    ("refusal", "tries"),
    [
        (Refusal(429, {"retry-after-ms": "1"}), 3), (Refusal(400), 1), (Refusal(401), 1),
        (Refusal(503, {"x-should-retry": "false"}), 1), (Refusal(429, {"retry-after": "3600"}), 1),
        (Refusal(302, {"location": "/elsewhere"}), 1),
    ],
)  # fmt: skip
async def test_a_refusal_ends_the_turn_with_status_and_message(endpoint: Endpoint, refusal: Refusal, tries: int) -> None:
    endpoint.script = [refusal] * 3
    events = await told(agent_of(endpoint), turn_of(says("hi")))
    message = f"The model endpoint answered {refusal.status}: some_code: no"
    assert events == [End("failed", reason="model_error", message=message)]
    assert len(endpoint.asked) == tries


async def test_a_refusal_without_json_is_quoted_in_short(endpoint: Endpoint) -> None:
    endpoint.script = [Refusal(404, body=b"<html>" + b"x" * 1_000_000)]
    (end,) = await told(agent_of(endpoint), turn_of(says("hi")))
    assert isinstance(end, End)
    assert end.message.startswith("The model endpoint answered 404: <html>")
    assert len(end.message) < 300


async def test_nobody_there_is_a_failure_after_a_few_tries() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    (end,) = await told(ModelAgent("m", f"http://127.0.0.1:{port}/v1", model="x"), turn_of(says("hi")))
    assert isinstance(end, End)
    assert (end.status, end.reason) == ("failed", "model_error")


async def test_a_cancelled_turn_lets_go_of_the_endpoint(endpoint: Endpoint) -> None:
    endpoint.script = [Stream([added(0, MESSAGE), text(0, "Gr")], pause_s=0.3)]
    seen = []
    with anyio.CancelScope() as scope:
        async for event in agent_of(endpoint).work(turn_of(says("hi"))):
            seen.append(event)
            if spoken(seen):
                scope.cancel()
    assert scope.cancelled_caught
    assert spoken(seen) == "Gr"


# ── the parts ───────────────────────────────────────────────────────────────────────────────────────────────────────


@given(cuts=st.lists(st.integers(0, 60), max_size=6))
def test_frames_come_out_the_same_wherever_the_network_cuts(cuts: list[int]) -> None:
    stream = "event: a\r\ndata: ü1\r\n\r\n: ping\n\ndata:2\ndata: 3\n\n\ndata: [".encode()
    edges = [0, *sorted(cuts), len(stream)]
    frames = Frames()
    found = [frame.body for at, to in pairwise(edges) for frame in frames.feed(stream[at:to])]
    assert found == ["ü1".encode(), b"2\n3"]


@given(steps=st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["start", "delta", "done"])), max_size=30))
def test_items_made_side_by_side_are_told_one_after_the_other(steps: list[tuple[int, str]]) -> None:
    lanes, events, expected = Lanes(), [], dict[int, str]()
    finished: set[int] = set()
    for key, step in steps:
        if step == "start":
            lanes.start(key, {"key": key})
            expected.setdefault(key, "")
        elif step == "done":
            lanes.done(key)
            finished |= {key} & expected.keys()
        else:
            lanes.delta(key, "x")
            if key in expected and key not in finished:
                expected[key] += "x"
        events += lanes.tell()
    lanes.done_all()
    events += lanes.tell()
    assert_well_formed(events)
    got = {}
    for event in events:
        if isinstance(event, Start | Output):
            got[event.item["key"]] = current = [event.item["key"], ""]
        elif isinstance(event, Delta):
            current[1] += event.text
    assert [tuple(pair) for pair in got.values()] == list(expected.items())
