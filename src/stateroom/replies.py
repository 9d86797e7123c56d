"""What the Python face gives back: plain records with textual ids, and how they are made from what the store keeps."""

from __future__ import annotations

import json as stdlib_json
from collections.abc import Mapping
from typing import Any

import msgspec

from stateroom import ids
from stateroom.conversation.model import Conversation, Item
from stateroom.errors import InvalidInput
from stateroom.run.steps import Action
from stateroom.wire import json


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """Something a run waits for. `kind`: approval, input, tool, handoff, timer or reconcile; `arguments` what it is
    about, `asked` what else was said. `digest` is what an approval is bound to."""

    id: str
    run: str
    kind: str
    name: str
    arguments: Any
    asked: dict[str, Any]
    digest: str


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """A turn and what came of it.

    `text` is what the assistant said, `items` everything the turn put out. `status` is completed, incomplete, failed,
    cancelled or expired (or a running one's present status), `error` why it is not completed. With requires_action,
    `actions` are what it waits for: answer them with `Room.resolve`, then `Room.reply`. `slots` is the desk after
    the turn. `timings` in ms: accept, hydrate, window, model, commit; empty when the answer was read back.
    """

    text: str
    items: list[dict[str, Any]]
    conversation: str
    session: str
    run: str
    response: str
    status: str
    error: dict[str, Any] | None
    slots: dict[str, Any]
    usage: dict[str, Any]
    timings: Mapping[str, float]
    actions: list[Asked] = []


class ConversationHead(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation without its items. `created_at`: ms since 1970."""

    id: str
    metadata: dict[str, Any]
    subject: str
    created_at: int


def encoded(value: Any) -> bytes:
    """A plain value as JSON that every store and language takes. InvalidInput for NaN, lone surrogates, sets and so on."""
    try:
        body = stdlib_json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"This cannot be kept as JSON: {error}", code="json_invalid") from error
    json.decode(body)
    return body


def head_of(found: Conversation) -> ConversationHead:
    return ConversationHead(
        id=ids.text("conversation", found.id), metadata=json.decode_trusted(found.metadata), subject=found.subject,
        created_at=found.created_at,
    )  # fmt: skip


def shown(item: Item) -> dict[str, Any]:
    """An item as a program sees it: as it was given, with our id and its type."""
    body: dict[str, Any] = json.decode_trusted(item.body)
    return {"type": item.kind, **body, "id": ids.text("item", item.id)}


def asked(action: Action) -> Asked:
    body = json.decode_trusted(action.body)
    return Asked(
        id=ids.text("action", action.id), run=ids.text("run", action.run), kind=action.kind, name=action.name,
        arguments=body.pop("arguments", None), asked=body, digest=action.digest.hex(),
    )  # fmt: skip
