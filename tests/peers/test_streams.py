"""Streams: as they come, cut and taken up again at every number, cancelled, started over."""

from __future__ import annotations

import threading
import time

import pytest
from openai import AsyncOpenAI, BadRequestError, OpenAI
from openai.types.responses import Response, ResponseStreamEvent

from tests.server.serving import Gate, Served, held, pieces, serving


def numbers(events: list[ResponseStreamEvent]) -> list[int]:
    return [event.sequence_number for event in events]


def background(client: OpenAI, model: str = "pieces") -> Response:
    answer = client.responses.create(model=model, input="hi", background=True)
    assert answer.status in ("queued", "in_progress")
    return answer


def test_events_come_in_order_and_end_with_the_answer(client: OpenAI) -> None:
    events = list(client.responses.create(model="pieces", input="hi", stream=True))
    assert numbers(events) == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"
    ]  # fmt: skip
    assert kinds[-4:] == [
        "response.output_text.done", "response.content_part.done", "response.output_item.done", "response.completed"
    ]  # fmt: skip
    assert kinds.count("response.output_text.delta") > 1
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response == client.responses.retrieve(last.response.id)


def test_the_stream_helper_has_the_whole_answer(client: OpenAI) -> None:
    with client.responses.stream(model="pieces", input="hi") as stream:
        said = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert said == final.output_text == "".join(f"word{number} " for number in range(6))


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # the client's, about an item it does not know
def test_the_stream_helper_takes_tool_calls_and_unknown_items(client: OpenAI) -> None:
    with client.responses.stream(model="tools", input="hi") as stream:
        assert [item.type for item in stream.get_final_response().output] == ["reasoning", "function_call"]
    with client.responses.stream(model="odd", input="hi") as stream:
        assert [item.type for item in stream.get_final_response().output] == ["hologram", "message", "message"]


@pytest.mark.parametrize("model", ["failing", "cut_short"])
def test_a_bad_end_is_an_end(client: OpenAI, model: str) -> None:
    with client.responses.stream(model=model, input="hi") as stream:
        last = list(stream)[-1]
    assert last.type == {"failing": "response.failed", "cut_short": "response.incomplete"}[model]


def test_P4_a_live_stream_cut_at_every_number_goes_on_without_a_gap(client: OpenAI) -> None:
    """One event at a time while the run goes on: each connection is cut after its first event."""
    answer = background(client)
    found: list[ResponseStreamEvent] = []
    while not found or found[-1].type != "response.completed":
        after = {"starting_after": found[-1].sequence_number} if found else {}
        with client.responses.retrieve(answer.id, stream=True, **after) as stream:  # type: ignore[call-overload]
            found.append(next(iter(stream)))
    assert numbers(found) == list(range(len(found)))
    assert found == list(client.responses.retrieve(answer.id, stream=True))


def test_P4_a_finished_stream_is_the_same_from_every_number(client: OpenAI) -> None:
    answer = background(client)
    whole = list(client.responses.retrieve(answer.id, stream=True))
    for cut in range(len(whole)):
        rest = list(client.responses.retrieve(answer.id, stream=True, starting_after=cut))
        assert rest == whole[cut + 1 :]


def test_the_stream_helper_takes_up_a_response_anywhere(client: OpenAI) -> None:
    answer = background(client)
    whole = list(client.responses.retrieve(answer.id, stream=True))
    for cut in (0, 5, len(whole) - 2):
        with client.responses.stream(response_id=answer.id, starting_after=cut) as stream:
            assert numbers(list(stream)) == list(range(cut + 1, len(whole)))  # type: ignore[arg-type]
            assert stream.get_final_response().output_text.startswith("word0")


def test_a_waiting_turns_stream_begins_queued(store_url: str) -> None:
    gate = Gate()
    with (
        serving(held(gate), url=store_url) as served,
        OpenAI(base_url=f"{served.url}/v1", api_key="any", max_retries=0) as client,
    ):
        conversation = client.conversations.create()
        client.responses.create(input="first", conversation=conversation.id, background=True)
        with client.responses.stream(model="any", input="second", conversation=conversation.id) as stream:
            first = next(iter(stream))
            gate.opened.set()
            kinds = [event.type for event in stream]
            assert first.type == "response.created"
            assert first.response.status == "queued"
            assert kinds[0] == "response.in_progress"
            assert stream.get_final_response().output_text == "answer 2 to second"


def test_an_answer_that_was_not_streamed_can_be_followed_afterwards(client: OpenAI) -> None:
    answer = client.responses.create(model="pieces", input="hi")
    events = list(client.responses.retrieve(answer.id, stream=True))
    assert numbers(events) == list(range(len(events)))
    assert events[-1].type == "response.completed"
    assert events[-1].response == answer


def test_a_client_that_leaves_does_not_stop_the_run(client: OpenAI) -> None:
    with client.responses.create(model="pieces", input="hi", stream=True) as stream:
        first = next(iter(stream))
    assert first.type == "response.created"
    assert ended(client, first.response.id).status == "completed"


def ended(client: OpenAI, id: str) -> Response:
    for _ in range(200):
        answer = client.responses.retrieve(id)
        if answer.status not in ("queued", "in_progress"):
            return answer
        time.sleep(0.02)
    raise AssertionError("the run did not end")


# ── cancel ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_P12_cancel_ends_a_running_answer_and_may_be_asked_again(store_url: str) -> None:
    gate = Gate()
    with (
        serving(pieces(gate), url=store_url) as served,
        OpenAI(base_url=f"{served.url}/v1", api_key="any", max_retries=0) as client,
    ):
        answer = background(client)
        events: list[ResponseStreamEvent] = []
        reader = threading.Thread(target=lambda: events.extend(client.responses.retrieve(answer.id, stream=True)))
        reader.start()
        while gate.asked == 0:
            time.sleep(0.01)
        assert [client.responses.cancel(answer.id).status for _ in range(3)] == ["cancelled"] * 3
        reader.join(timeout=5)
        assert client.responses.retrieve(answer.id).status == "cancelled"
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.status == "cancelled"
    assert numbers(events) == list(range(len(events)))


def test_cancel_ends_a_waiting_answer_at_once(store_url: str) -> None:
    gate = Gate()
    with (
        serving(held(gate), url=store_url) as served,
        OpenAI(base_url=f"{served.url}/v1", api_key="any", max_retries=0) as client,
    ):
        conversation = client.conversations.create()
        first = client.responses.create(input="first", conversation=conversation.id, background=True)
        second = client.responses.create(input="second", conversation=conversation.id, background=True)
        assert (first.status, second.status) == ("in_progress", "queued")
        assert client.responses.cancel(second.id).status == "cancelled"
        gate.opened.set()
        assert ended(client, first.id).output_text == "answer 1 to first"
        assert gate.asked == 1
        assert client.responses.retrieve(second.id).status == "cancelled"


def test_a_foreground_answer_cannot_be_cancelled_here(client: OpenAI) -> None:
    answer = client.responses.create(input="hi")
    with pytest.raises(BadRequestError) as refused:
        client.responses.cancel(answer.id)
    assert refused.value.code == "not_background"


def test_cancelling_what_has_ended_returns_it_as_it_is(client: OpenAI) -> None:
    done = ended(client, background(client).id)
    assert client.responses.cancel(done.id) == done


# ── the client's decoder has an opinion on heartbeats ───────────────────────────────────────────────────────────────


def test_heartbeats_do_not_disturb_the_client(store_url: str) -> None:
    """The client would take an empty line after a comment for an event without data."""
    gate = Gate()
    with (
        serving(pieces(gate), heartbeat_s=0.01, url=store_url) as served,
        OpenAI(base_url=f"{served.url}/v1", api_key="any", max_retries=0) as client,
    ):
        threading.Timer(1.3, gate.opened.set).start()
        with client.responses.with_streaming_response.create(model="pieces", input="hi", stream=True) as raw:
            assert ": still here" in list(raw.iter_lines())
        gate.opened.clear()
        threading.Timer(1.3, gate.opened.set).start()
        events = list(client.responses.create(model="pieces", input="hi", stream=True))
    assert events[-1].type == "response.completed"


@pytest.mark.anyio
async def test_the_asynchronous_client_resumes_too(aclient: AsyncOpenAI, served: Served) -> None:
    answer = await aclient.responses.create(model="pieces", input="hi", background=True)
    whole = [event async for event in await aclient.responses.retrieve(answer.id, stream=True)]
    rest = [event async for event in await aclient.responses.retrieve(answer.id, stream=True, starting_after=3)]
    assert rest == whole[4:]
