"""Conversations and their items, as OpenAI has them; beyond it: list, export, fork."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
from starlette.responses import StreamingResponse

from stateroom import ids, limits
from stateroom.batch import Draft
from stateroom.conversation.model import Conversation, Item, ItemQuery
from stateroom.errors import InvalidInput, LimitExceeded
from stateroom.flows.fork import fork
from stateroom.ids import NIL
from stateroom.server.call import Answer, Call, Endpoint, page
from stateroom.wire import openai


async def create(call: Call) -> Answer:
    metadata, items = call.body.metadata() or b"{}", call.body.items("items")
    if len(items) > limits.CREATE_ITEMS_MAX:
        raise LimitExceeded(
            f"A conversation begins with {limits.CREATE_ITEMS_MAX} items at most.", code="too_many_items", param="items"
        )
    id_ = call.room.conversations.new_id()
    conversation = await call.once(
        "conversation.create",
        ref=id_,
        act=lambda claim: call.room.conversations.create(call.scope, id=id_, metadata=metadata, items=items, claim=claim),
        again=lambda made: call.room.conversations.get(call.scope, made),
    )
    return shown(conversation)


async def retrieve(call: Call) -> Answer:
    return shown(await call.room.conversations.get(call.scope, call.path_id("conversation", "conversation")))


async def list_(call: Call) -> Answer:
    limit, after = call.limit(), call.query_id("after", "conversation")
    if after != NIL and (await call.room.conversations.get(call.scope, after)).kind != "managed":
        raise ids.missing("conversation", after)  # a chain is there, but not in the list
    found = await call.room.conversations.recent(call.scope, after=after, limit=limit + 1, newest_first=call.newest_first())
    data = [shown(conversation) for conversation in found[:limit]]
    return page(data, [conversation["id"] for conversation in data], len(found) > limit)


async def update(call: Call) -> Answer:
    id_, metadata = await _conversation(call), call.body.metadata() or b"{}"
    if "metadata" not in call.body.value:
        raise InvalidInput("Give the new metadata; null removes it.", code="metadata_missing", param="metadata")
    conversation = await call.once(
        "conversation.update",
        ref=id_,
        act=lambda claim: call.room.conversations.set_metadata(call.scope, id_, metadata, claim=claim),
        again=lambda made: call.room.conversations.get(call.scope, made),
    )
    return shown(conversation)


async def delete(call: Call) -> Answer:
    id_ = await _conversation(call)
    await call.room.conversations.delete(call.scope, id_)
    return {"id": ids.text("conversation", id_), "object": "conversation.deleted", "deleted": True}


async def fork_(call: Call) -> Answer:
    parent, metadata = await _conversation(call), call.body.metadata() or b"{}"
    given = call.body.get("after", str)
    after = NIL if given is None else ids.parse_any("item", given)
    id_ = ids.new(ids.home(parent), call.room.backend.clock.wall_ms())
    conversation = await call.once(
        "conversation.fork",
        ref=id_,
        act=lambda claim: fork(call.room.backend, call.scope, parent, after=after, metadata=metadata, claim=claim),
        again=lambda made: call.room.conversations.get(call.scope, made),
    )
    return shown(conversation)


# ── items ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def create_items(call: Call) -> Answer:
    branch, items = await _conversation(call), call.body.items("items")

    async def again(first: bytes) -> Sequence[Item | Draft]:
        """What the first try appended: dense from its first item on."""
        start = (await call.room.conversations.item(call.scope, branch, first)).seq
        query = ItemQuery(branch=branch, after=start - 1, before=start + len(items), limit=len(items))
        return await call.room.conversations.items(call.scope, query)

    async def append(claim: Any) -> Sequence[Item | Draft]:
        return (await call.room.conversations.append(call.scope, branch, items, claim=claim))[1]

    return items_page(await call.once("items.create", ref=NIL, act=append, again=again), more=False)


async def list_items(call: Call) -> Answer:
    found, more = await call.room.conversations.page(
        call.scope, await _conversation(call), after=_after(call), limit=call.limit(), newest_first=call.newest_first()
    )
    return items_page(found, more=more)


async def retrieve_item(call: Call) -> Answer:
    item = await call.room.conversations.item(call.scope, await _conversation(call), _item(call))
    return openai.render_item(item)


async def delete_item(call: Call) -> Answer:
    await call.room.conversations.delete_item(call.scope, await _conversation(call), _item(call))
    return {"id": call.request.path_params["item"], "object": "conversation.item.deleted", "deleted": True}


async def export(call: Call) -> Answer:
    """One line of JSON, the form of a transcript: every item's body exactly as it was stored, oldest first."""
    id_ = await _conversation(call)
    tail = (await call.room.conversations.branch(call.scope, id_)).tail
    lines = _exported(call, id_, tail, await _stretch(call, id_, 0, tail))
    return StreamingResponse(lines, media_type="application/jsonl")


async def _exported(call: Call, id_: bytes, tail: int, items: list[Item]) -> AsyncIterator[bytes]:
    """Up to the tail that was there at the start, page by page."""
    yield b'{"id":"%s","source":"stateroom","items":[' % ids.text("conversation", id_).encode()
    comma = b""
    while items:
        for item in items:
            yield comma + item.body
            comma = b","
        items = await _stretch(call, id_, items[-1].seq, tail)
    yield b"]}\n"


async def _stretch(call: Call, branch: bytes, after: int, tail: int) -> list[Item]:
    query = ItemQuery(branch=branch, after=after, before=tail + 1, limit=limits.PAGE_ITEMS_MAX)
    return await call.room.conversations.items(call.scope, query) if after < tail else []


# ── shown ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def shown(conversation: Conversation) -> dict[str, Any]:
    return {
        "id": ids.text("conversation", conversation.id),
        "object": "conversation",
        "created_at": conversation.created_at // 1000,
        "metadata": msgspec.Raw(conversation.metadata),
    }


def items_page(items: Sequence[Item | Draft], *, more: bool) -> dict[str, Any]:
    names = [openai.item_id(item.kind, item.id) for item in items]
    return page([msgspec.Raw(openai.render_item(item)) for item in items], names, more)


async def _conversation(call: Call) -> bytes:
    """The id in the path, of a conversation that is there; it is also its main branch's."""
    return (await call.room.conversations.get(call.scope, call.path_id("conversation", "conversation"))).id


def _item(call: Call) -> bytes:
    return ids.parse_any("item", call.request.path_params["item"])


def _after(call: Call) -> bytes:
    given = call.query("after")
    return NIL if given is None else ids.parse_any("item", given)


PAGE = ("limit", "order", "after")
ENDPOINTS = (
    Endpoint("POST", "/conversations", create, "Create a conversation.", body="CreateConversation", answer="Conversation"),
    Endpoint("GET", "/conversations", list_, "List conversations.", query=PAGE, answer="List"),
    Endpoint("GET", "/conversations/{conversation}", retrieve, "Get a conversation.", answer="Conversation"),
    Endpoint(
        "POST", "/conversations/{conversation}", update, "Replace its metadata.", body="Metadata", answer="Conversation"
    ),
    Endpoint("DELETE", "/conversations/{conversation}", delete, "Delete a conversation.", answer="Deleted"),
    Endpoint(
        "POST", "/conversations/{conversation}/fork", fork_, "A new conversation that shares its past up to an item.",
        body="Fork", answer="Conversation",
    ),
    Endpoint(
        "GET", "/conversations/{conversation}/export", export, "All items as they were stored, as a line of a transcript file.",
        answer="Transcript",
    ),
    Endpoint(
        "POST", "/conversations/{conversation}/items", create_items, "Append items.", body="CreateItems", answer="List"
    ),
    Endpoint("GET", "/conversations/{conversation}/items", list_items, "List items.", query=PAGE, answer="List"),
    Endpoint("GET", "/conversations/{conversation}/items/{item}", retrieve_item, "Get an item.", answer="Item"),
    Endpoint("DELETE", "/conversations/{conversation}/items/{item}", delete_item, "Delete an item.", answer="Deleted"),
)  # fmt: skip
