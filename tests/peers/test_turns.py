"""Turns: by conversation, by previous response, in branches, with tools; every answer is a valid Open Responses resource."""

from __future__ import annotations

import openresponses_types
import pytest
from openai import AsyncOpenAI, ConflictError, NotFoundError, OpenAI

from tests.server.serving import Gate, Served, held, serving

WEATHER = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}


def valid(answer: object) -> None:
    """Required fields, kinds and nullability, by the public schema."""
    openresponses_types.ResponseResource.model_validate(answer.to_dict())  # type: ignore[attr-defined]


def test_turns_of_a_conversation_see_what_was_said_before(client: OpenAI) -> None:
    conversation = client.conversations.create(items=[{"role": "user", "content": "I like apples."}])
    first = client.responses.create(model="any", input="And pears.", conversation=conversation.id)
    second = client.responses.create(model="any", input="What else?", conversation={"id": conversation.id})
    assert first.output_text == "I like apples.\nAnd pears."
    assert second.output_text == f"I like apples.\nAnd pears.\n{first.output_text}\nWhat else?"
    assert first.conversation
    assert second.conversation
    assert first.conversation.id == second.conversation.id == conversation.id
    items = client.conversations.items.list(conversation.id, order="asc").data
    assert [item.role for item in items if item.type == "message"] == ["user", "user", "assistant", "user", "assistant"]
    assert items[2].id == first.output[0].id


def test_turns_after_a_response_see_its_past(client: OpenAI) -> None:
    first = client.responses.create(input="one")
    second = client.responses.create(input="two", previous_response_id=first.id)
    assert second.output_text == "one\none\ntwo"
    assert (second.previous_response_id, second.conversation) == (first.id, None)


def test_two_answers_to_one_response_are_two_branches_and_both_go_on(client: OpenAI) -> None:
    root = client.responses.create(input="root")
    left = client.responses.create(input="left", previous_response_id=root.id)
    right = client.responses.create(input="right", previous_response_id=root.id)
    left_on = client.responses.create(input="more", previous_response_id=left.id)
    right_on = client.responses.create(input="more", previous_response_id=right.id)
    past = "root\nroot"
    assert left_on.output_text == f"{past}\nleft\n{left.output_text}\nmore"
    assert right_on.output_text == f"{past}\nright\n{right.output_text}\nmore"
    assert "right" not in left_on.output_text
    assert "left" not in right_on.output_text


def test_a_tool_call_goes_out_and_its_answer_comes_back(client: OpenAI) -> None:
    asked = client.responses.create(model="tools", input="How is Paris?", tools=[WEATHER])  # type: ignore[list-item]
    valid(asked)
    call = asked.output[1]
    assert call.type == "function_call"
    assert (call.name, call.arguments, call.status) == ("weather", '{"city":"Paris"}', "completed")
    told = client.responses.create(
        model="tools",
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}],
        previous_response_id=asked.id,
        tools=[WEATHER],  # type: ignore[list-item]
    )
    assert told.output_text == "It is sunny."


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # the client's, about an item it does not know
@pytest.mark.parametrize("model", ["echo", "pieces", "failing", "cut_short", "tools", "odd", "gpt-5"])
def test_every_answer_is_a_valid_resource(client: OpenAI, model: str) -> None:
    answer = client.responses.create(
        model=model, input=[{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
        instructions="Be brief.", temperature=0.5, metadata={"a": "b"}, tools=[WEATHER],  # type: ignore[list-item]
        reasoning={"effort": "low"}, max_output_tokens=100, text={"verbosity": "low"},
    )  # fmt: skip
    again = client.responses.retrieve(answer.id)
    assert again == answer
    if model == "odd":  # the schema knows no hologram; the client does not mind
        assert answer.output[0].to_dict()["nested"] == {"kept": [1, 2.5, None]}
        return
    valid(answer)
    assert (answer.model, answer.instructions, answer.temperature, answer.metadata) == (model, "Be brief.", 0.5, {"a": "b"})


def test_failed_and_incomplete_answers_say_why(client: OpenAI) -> None:
    failed = client.responses.create(model="failing", input="hi")
    assert failed.status == "failed"
    assert failed.error is not None
    assert "the agent broke" in failed.error.message
    cut = client.responses.create(model="cut_short", input="hi")
    assert (cut.status, cut.output_text) == ("incomplete", "half a")
    assert cut.incomplete_details is not None
    assert cut.incomplete_details.reason == "max_output_tokens"


def test_a_failed_turn_is_not_in_the_way_of_the_next(client: OpenAI) -> None:
    conversation = client.conversations.create()
    client.responses.create(model="failing", input="breaks", conversation=conversation.id)
    answer = client.responses.create(model="echo", input="works", conversation=conversation.id)
    assert answer.output_text == "works"


def test_usage_is_counted(client: OpenAI) -> None:
    usage = client.responses.create(model="pieces", input="hi").usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (7, 6, 13)
    assert usage.output_tokens_details.reasoning_tokens == 0


def test_what_was_not_stored_is_answered_once(client: OpenAI) -> None:
    answer = client.responses.create(input="secret", store=False)
    assert answer.output_text == "secret"
    assert answer.store is False
    with client.responses.stream(input="secret", model="any", store=False) as stream:
        assert stream.get_final_response().output_text == "secret"


def test_what_was_not_stored_sees_its_conversation_and_leaves_no_trace(client: OpenAI) -> None:
    conversation = client.conversations.create(items=[{"role": "user", "content": "known"}])
    answer = client.responses.create(input="passing", store=False, conversation=conversation.id)
    assert answer.output_text == "known\npassing"
    assert len(client.conversations.items.list(conversation.id).data) == 1


def test_input_items_are_what_the_turn_was_given(client: OpenAI) -> None:
    given = [{"role": "user", "content": f"item {number}"} for number in range(25)]
    answer = client.responses.create(input=given)  # type: ignore[arg-type]
    texts = [item.content[0].text for item in client.responses.input_items.list(answer.id, order="asc", limit=10)]  # type: ignore[union-attr]
    assert texts == [f"item {number}" for number in range(25)]
    newest = client.responses.input_items.list(answer.id, limit=3)
    assert [item.content[0].text for item in newest.data] == ["item 24", "item 23", "item 22"]  # type: ignore[union-attr]


def test_a_deleted_response_is_gone_and_its_conversation_stays(client: OpenAI) -> None:
    conversation = client.conversations.create()
    answer = client.responses.create(input="hi", conversation=conversation.id)
    client.responses.delete(answer.id)
    with pytest.raises(NotFoundError):
        client.responses.retrieve(answer.id)
    assert len(client.conversations.items.list(conversation.id).data) == 2


def test_models_are_the_agents(client: OpenAI, served: Served) -> None:
    assert next(iter(client.models.list())).id == "echo"  # the default one first
    assert {model.id for model in client.models.list()} == set(served.room.agents)
    assert client.models.retrieve("tools").id == "tools"


def test_what_openai_does_not_know_is_asked_for_with_extra_body(store_url: str) -> None:
    gate = Gate()
    with (
        serving(held(gate), url=store_url) as served,
        OpenAI(base_url=f"{served.url}/v1", api_key="any", max_retries=0) as client,
    ):
        conversation = client.conversations.create()
        client.responses.create(input="first", conversation=conversation.id, background=True)
        with pytest.raises(ConflictError) as refused:
            client.responses.create(input="no", conversation=conversation.id, extra_body={"double_text": "reject"})
        assert refused.value.code == "conversation_busy"
        beside = client.responses.create(
            input="beside",
            conversation=conversation.id,
            background=True,
            extra_body={"double_text": "parallel", "deadline_s": 60},
        )
        assert beside.status == "in_progress"
        gate.opened.set()


@pytest.mark.anyio
async def test_the_asynchronous_client_does_the_same(aclient: AsyncOpenAI) -> None:
    conversation = await aclient.conversations.create(metadata={"topic": "async"})
    await aclient.responses.create(input="first", conversation=conversation.id)
    async with aclient.responses.stream(input="second", model="any", conversation=conversation.id) as stream:
        final = await stream.get_final_response()
    assert final.output_text == "first\nfirst\nsecond"
    texts = [item.content[0].text async for item in aclient.conversations.items.list(conversation.id, order="asc", limit=2)]  # type: ignore[union-attr]
    assert texts == ["first", "first", "second", "first\nfirst\nsecond"]
