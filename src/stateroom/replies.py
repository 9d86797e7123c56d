"""What the Python face gives back: plain records with textual ids, and how they are made from what the store keeps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from stateroom import ids
from stateroom.conversation.model import Conversation, Item
from stateroom.ids import NIL
from stateroom.run.steps import Action
from stateroom.session.model import Change, Checkpoint, Slot
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


class SlotHead(msgspec.Struct, frozen=True, kw_only=True):
    """A slot and what is known of it. `by` (principal), `agent` and `run` wrote it; `origin` says where the content comes
    from, `trust` (0..100) how far it may be believed. `schema` names the one it keeps; `epoch`, of a document or window,
    is the version at which it began. `at`: ms since 1970."""

    name: str
    value: Any
    version: int
    kind: str
    schema: str
    origin: str
    trust: int
    by: str
    agent: str
    run: str
    at: int
    epoch: int


class SlotChange(msgspec.Struct, frozen=True):
    """How a slot differs between two versions; None: it was not there."""

    name: str
    before: SlotHead | None
    after: SlotHead | None


class CheckpointHead(msgspec.Struct, frozen=True, kw_only=True):
    """A version with a name. `kind`: named, turn (made at a turn's end), undone (by a rollback) or fork (one stands on it)."""

    name: str
    version: int
    kind: str
    by: str
    agent: str
    run: str
    at: int


class ConversationHead(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation without its items. `created_at`: ms since 1970."""

    id: str
    metadata: dict[str, Any]
    subject: str
    created_at: int


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


def slot_of(slot: Slot) -> SlotHead:
    return SlotHead(
        name=slot.name, value=None if slot.body is None else json.decode_trusted(slot.body), version=slot.version,
        kind=slot.kind, schema=slot.schema, origin=slot.origin, trust=slot.trust, by=slot.by, agent=slot.agent,
        run=run_name(slot.run), at=slot.at, epoch=slot.epoch,
    )  # fmt: skip


def changed(change: Change) -> SlotChange:
    before, after = (None if slot is None else slot_of(slot) for slot in (change.before, change.after))
    return SlotChange(change.name, before, after)


def checkpoint_of(found: Checkpoint) -> CheckpointHead:
    return CheckpointHead(
        name=found.name, version=found.version, kind=found.kind, by=found.by, agent=found.agent, run=run_name(found.run),
        at=found.at,
    )  # fmt: skip


def run_name(run: bytes) -> str:
    """A run's textual id, "" for none."""
    return ids.text("run", run) if run != NIL else ""
