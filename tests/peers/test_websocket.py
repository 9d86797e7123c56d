"""The official client over one WebSocket (`client.responses.connect()`), unmodified: turns one after another, gone on with by
response or, unstored, on this socket only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from openai import AsyncOpenAI, OpenAI
from openai.resources.responses.responses import ResponsesConnection

from tests.server.serving import Gate, Served, held, serving

pytestmark = [  # the client's own
    pytest.mark.filterwarnings("ignore:Pydantic serializer warnings"),
    pytest.mark.filterwarnings("ignore:connect.. must be used as a context manager:DeprecationWarning"),
]


@pytest.fixture
def socket(client: OpenAI) -> Iterator[ResponsesConnection]:
    with client.responses.connect() as made:
        yield made


@contextmanager
def connected(served: Served) -> Iterator[ResponsesConnection]:
    with OpenAI(base_url=f"{served.url}/v1", api_key="any") as client, client.responses.connect() as made:
        yield made


def events(socket: ResponsesConnection, **asked: Any) -> list[Any]:
    """Take a turn and read until its end."""
    socket.response.create(**asked)
    return rest(socket)


def rest(socket: ResponsesConnection) -> list[Any]:
    found = [socket.recv()]
    while found[-1].type not in ("response.completed", "response.failed", "response.incomplete", "error"):
        found.append(socket.recv())
    return found


def answer(socket: ResponsesConnection, **asked: Any) -> Any:
    last = events(socket, **asked)[-1]
    assert last.type == "response.completed"
    return last.response


def test_the_events_are_those_of_a_stream(client: OpenAI, socket: ResponsesConnection) -> None:
    found = events(socket, model="pieces", input="hi")
    assert [event.sequence_number for event in found] == list(range(len(found)))
    streamed = list(client.responses.retrieve(found[-1].response.id, stream=True))
    assert [event.to_dict() for event in found] == [event.to_dict() for event in streamed]


def test_turns_one_after_another_go_on_by_the_response_before(socket: ResponsesConnection) -> None:
    first = answer(socket, model="echo", input="one")
    second = answer(socket, model="echo", input="two", previous_response_id=first.id)
    assert second.output_text == "one\none\ntwo"
    assert answer(socket, model="echo", input="three").output_text == "three"


@pytest.mark.parametrize("stored", [True, False])
def test_a_tool_call_and_its_answer(socket: ResponsesConnection, stored: bool) -> None:
    asked = answer(socket, model="tools", input="How is Paris?", store=stored)
    output = {"type": "function_call_output", "call_id": asked.output[1].call_id, "output": "sunny"}
    told = answer(socket, model="tools", input=[output], previous_response_id=asked.id, store=stored)
    assert told.output_text == "It is sunny."


def test_an_unstored_chain_lives_on_its_socket_and_nowhere_else(client: OpenAI, socket: ResponsesConnection) -> None:
    first = answer(socket, model="echo", input="one", store=False)
    second = answer(socket, model="echo", input="two", store=False, previous_response_id=first.id)
    third = answer(socket, model="echo", input="three", store=False, previous_response_id=second.id)
    assert third.output_text == f"one\none\ntwo\n{second.output_text}\nthree"
    assert (third.store, third.previous_response_id) == (False, second.id)
    fork = answer(socket, model="echo", input="other", store=False, previous_response_id=first.id)
    assert fork.output_text == "one\none\nother"
    with client.responses.connect() as anew:
        (error,) = events(anew, input="two", store=False, previous_response_id=first.id)
        assert (error.status, error.error.code, error.error.param) == (
            400, "previous_response_not_found", "previous_response_id",
        )  # fmt: skip
    (error,) = events(socket, input="stored now", previous_response_id=third.id)  # its past is not in the record
    assert error.error.code == "previous_response_not_found"


def test_an_unstored_chain_may_begin_at_what_is_stored(client: OpenAI, socket: ResponsesConnection) -> None:
    stored = client.responses.create(model="echo", input="kept")
    first = answer(socket, model="echo", input="one", store=False, previous_response_id=stored.id)
    second = answer(socket, model="echo", input="two", store=False, previous_response_id=first.id)
    assert second.output_text == f"kept\nkept\none\n{first.output_text}\ntwo"
    conversation = client.conversations.create(items=[{"role": "user", "content": "known"}])
    first = answer(socket, model="echo", input="one", store=False, conversation=conversation.id)
    second = answer(socket, model="echo", input="two", store=False, previous_response_id=first.id)
    assert second.output_text == f"known\none\n{first.output_text}\ntwo"
    assert len(client.conversations.items.list(conversation.id).data) == 1


def test_a_failed_turn_takes_the_unstored_one_before_with_it(socket: ResponsesConnection) -> None:
    first = answer(socket, model="echo", input="one", store=False)
    stray = {"type": "function_call_output", "call_id": "call_nobody", "output": "x"}
    failed = events(socket, model="echo", input=[stray], store=False, previous_response_id=first.id)[-1]
    assert failed.type == "response.failed"
    assert failed.response.error.code == "call_unknown"
    (error,) = events(socket, model="echo", input="two", store=False, previous_response_id=first.id)
    assert error.error.code == "previous_response_not_found"
    assert answer(socket, model="echo", input="anew", store=False).output_text == "anew"


def test_a_socket_remembers_the_last_unstored_responses_only(socket: ResponsesConnection) -> None:
    made = [answer(socket, model="echo", input=str(number), store=False) for number in range(10)]
    (error,) = events(socket, input="x", store=False, previous_response_id=made[0].id)
    assert error.error.code == "previous_response_not_found"
    assert answer(socket, model="echo", input="x", store=False, previous_response_id=made[-1].id).output_text == "9\n9\nx"
    large = answer(socket, model="echo", input=["y" * 600_000][0], store=False)
    (error,) = events(socket, input="x", store=False, previous_response_id=large.id)
    assert error.error.code == "previous_response_not_found"


def test_a_turn_can_be_prepared_without_an_answer(socket: ResponsesConnection) -> None:
    prepared = answer(socket, model="echo", input="prepared", store=False, generate=False)
    assert (prepared.status, prepared.output) == ("completed", [])
    gone_on = answer(socket, model="echo", input="go", store=False, previous_response_id=prepared.id)
    assert gone_on.output_text == "prepared\ngo"
    (error,) = events(socket, model="echo", input="x", generate=False)
    assert (error.status, error.error.code) == (400, "warm_up_stored")
    nobody = "resp_" + "1" * 32
    (error,) = events(socket, model="echo", input="x", store=False, generate=False, previous_response_id=nobody)
    assert error.error.code == "previous_response_not_found"


@pytest.mark.parametrize(("asked", "code", "status"), [
    ({}, "input_missing", 400), ({"input": "x", "background": True}, "background_on_socket", 400),
    ({"input": "x", "model": 5}, "wrong_type", 400), ({"input": "x", "stream_id": ""}, "stream_id_invalid", 400),
    ({"input": "x", "conversation": "conv_5"}, "not_found", 404),
])  # fmt: skip
def test_P31_a_refusal_is_a_frame_and_the_socket_goes_on(
    socket: ResponsesConnection, asked: dict[str, Any], code: str, status: int
) -> None:
    (error,) = events(socket, **asked)
    assert (error.type, error.status, error.error.code, error.error.type) == ("error", status, code, "invalid_request_error")
    assert answer(socket, model="echo", input="still here").output_text == "still here"


def test_turns_of_one_lane_wait_for_each_other_and_lanes_go_on_beside_each_other(store_url: str) -> None:
    """What is sent while a turn is active is taken after it, in order (FIFO); another `stream_id` is another lane."""
    gate = Gate()
    with serving(held(gate), url=store_url) as served, connected(served) as socket:
        for text in ("first", "second"):
            socket.response.create(input=text)
        socket.response.create(input="beside", stream_id="two")
        begun = [socket.recv() for _ in range(4)]
        assert {event.stream_id for event in begun} == {None, "two"}  # both have begun: the second turn has not
        assert len({event.response.id for event in begun}) == 2
        gate.opened.set()
        found = [*begun]
        while [event.type for event in found].count("response.completed") < 3:
            found.append(socket.recv())
    plain = [event for event in found if event.stream_id is None]
    ids = [event.response.id for event in plain if event.type in ("response.created", "response.completed")]
    assert ids[0] == ids[1] != ids[2] == ids[3]
    assert [event.sequence_number for event in found if event.stream_id == "two"][:2] == [0, 1]


def test_more_turns_than_a_socket_takes_are_refused(store_url: str) -> None:
    gate = Gate()
    with serving(held(gate), url=store_url) as served, connected(served) as socket:
        for number in range(17):
            socket.response.create(input=str(number))
        found = [socket.recv()]
        while found[-1].type != "error":
            found.append(socket.recv())
        assert (found[-1].status, found[-1].error.code) == (429, "queue_full")
        gate.opened.set()
        while [event.type for event in found].count("response.completed") < 16:
            found.append(socket.recv())


def test_a_turn_goes_on_without_its_socket_and_a_key_finds_it_again(store_url: str) -> None:
    gate = Gate()
    with serving(held(gate), url=store_url) as served:
        body: Any = {"type": "response.create", "input": "hi", "idempotency_key": "turn 1"}
        with connected(served) as socket:
            socket.send(body)
            begun = socket.recv()
        gate.opened.set()
        with connected(served) as socket:
            socket.send(body)
            found = rest(socket)
        assert found[0].response.id == found[-1].response.id == begun.response.id
        assert found[-1].response.output_text == "answer 1 to hi"
        assert gate.asked == 1


def test_steering_is_answered_as_not_supported(socket: ResponsesConnection) -> None:
    first = answer(socket, model="echo", input="one")
    socket.response.steer(input="faster", previous_response_id=first.id)
    failed = socket.recv()
    assert failed.type == "response.steer.failed"
    assert (failed.error.code, failed.steer.previous_response_id) == ("steering_not_supported", first.id)


@pytest.mark.anyio
async def test_the_asynchronous_client_does_the_same(aclient: AsyncOpenAI) -> None:
    async with aclient.responses.connect() as socket:
        await socket.response.create(model="echo", input="one", store=False)
        first = None
        async for event in socket:
            if event.type == "response.completed":
                first = event.response
                break
        assert first is not None
        await socket.response.create(model="echo", input="two", store=False, previous_response_id=first.id)
        async for event in socket:
            if event.type == "response.completed":
                assert event.response.output_text == "one\none\ntwo"
                break
