"""Conversations and items through the official client."""

from __future__ import annotations

import pytest
from openai import NotFoundError, OpenAI


def said(number: int) -> dict[str, object]:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": f"item {number}"}]}


def test_a_conversation_is_made_read_changed_and_deleted(client: OpenAI) -> None:
    made = client.conversations.create(metadata={"topic": "demo"}, items=[{"role": "user", "content": "Hello!"}])
    assert made.id.startswith("conv_")
    assert (made.object, made.metadata) == ("conversation", {"topic": "demo"})
    assert client.conversations.retrieve(made.id) == made
    changed = client.conversations.update(made.id, metadata={"topic": "other"})
    assert (changed.id, changed.created_at, changed.metadata) == (made.id, made.created_at, {"topic": "other"})
    deleted = client.conversations.delete(made.id)
    assert (deleted.id, deleted.object, deleted.deleted) == (made.id, "conversation.deleted", True)
    for use in (client.conversations.retrieve, client.conversations.items.list, client.conversations.delete):
        with pytest.raises(NotFoundError):
            use(made.id)


def test_items_are_made_read_and_deleted(client: OpenAI) -> None:
    conversation = client.conversations.create()
    made = client.conversations.items.create(conversation.id, items=[said(1), said(2)])  # type: ignore[list-item]
    assert (made.first_id, made.last_id, made.has_more) == (made.data[0].id, made.data[1].id, False)
    assert made.data[0].id
    assert made.data[0].id.startswith("msg_")
    read = client.conversations.items.retrieve(made.data[0].id, conversation_id=conversation.id)
    assert read == made.data[0]
    deleted = client.conversations.items.delete(made.data[0].id, conversation_id=conversation.id)
    assert deleted.id == made.data[0].id
    with pytest.raises(NotFoundError):
        client.conversations.items.retrieve(made.data[0].id, conversation_id=conversation.id)
    assert [item.id for item in client.conversations.items.list(conversation.id)] == [made.data[1].id]


@pytest.mark.parametrize(("order", "limit"), [("asc", 20), ("desc", 20), ("asc", 7), ("desc", 100), ("desc", 1)])
def test_pages_show_every_item_once_in_both_orders(client: OpenAI, order: str, limit: int) -> None:
    conversation = client.conversations.create(items=[said(number) for number in range(30)])  # type: ignore[misc]
    client.conversations.items.create(conversation.id, items=[said(number) for number in range(30, 61)])  # type: ignore[misc]
    page = client.conversations.items.list(conversation.id, order=order, limit=limit)  # type: ignore[arg-type]
    assert len(page.data) == min(limit, 61)
    assert page.has_more is (limit < 61)
    texts = [item.content[0].text for item in page]  # type: ignore[union-attr]
    expected = [f"item {number}" for number in range(61)]
    assert texts == (expected if order == "asc" else expected[::-1])


def test_has_more_is_told_exactly(client: OpenAI) -> None:
    conversation = client.conversations.create(items=[said(number) for number in range(20)])  # type: ignore[misc]
    assert client.conversations.items.list(conversation.id).has_more is False
    client.conversations.items.create(conversation.id, items=[said(20)])  # type: ignore[list-item]
    assert client.conversations.items.list(conversation.id).has_more is True


def test_what_a_client_sends_back_is_taken(client: OpenAI) -> None:
    """Output items go into the next input as they came, ids and all."""
    first = client.responses.create(model="tools", input="How is Paris?")
    call = first.output[1]
    assert call.type == "function_call"
    answer = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    again = client.responses.create(
        model="tools",
        input=[{"role": "user", "content": "How is Paris?"}, *[item.to_dict() for item in first.output], answer],  # type: ignore[list-item]
    )
    assert again.output_text == "It is sunny."
