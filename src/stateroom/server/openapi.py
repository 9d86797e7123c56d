"""The OpenAPI document: every path from the one table of endpoints, with schemas for our own objects."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final, get_args

from stateroom import __version__
from stateroom.run.model import DoubleText
from stateroom.run.steps import ActionKind
from stateroom.server.call import Endpoint
from stateroom.session.model import SlotKind

_QUERY = {
    "limit": "integer", "since_version": "integer", "starting_after": "integer", "stream": "boolean", "pending": "boolean",
    "version": "integer", "before": "integer", "as_of": "integer", "at": "integer", "epoch": "integer", "hold": "integer",
}  # fmt: skip
_MEDIA = {"Events": "text/event-stream", "Bytes": "application/octet-stream"}
_PATCHES = {"application/merge-patch+json": "Document", "application/json-patch+json": "JsonPatch"}
_PARAMETER = re.compile(r"{(\w+)}")


def document(endpoints: Iterable[Endpoint]) -> dict[str, Any]:
    """The document, made once. Unknown request fields are kept, so every request schema is open."""
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Stateroom", "version": __version__, "description": "Every path also works without /v1."},
        "servers": [{"url": "/v1"}],
        "security": [{}, {"token": []}],
        "paths": paths,
        "components": {"schemas": schemas(), "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    content = _MEDIA.get(endpoint.answer, "application/json")
    answers = {"200": {"description": "As asked.", "content": {content: {"schema": _ref(endpoint.answer)}}}}
    failure = {"description": "Why not.", "content": {"application/json": {"schema": _ref("Error")}}}
    operation: dict[str, Any] = {
        "operationId": endpoint.method.lower() + re.sub(r"\W+", "_", endpoint.path).rstrip("_"),
        "summary": endpoint.summary,
        "parameters": [*map(_in_path, _PARAMETER.findall(endpoint.path)), *map(_in_query, endpoint.query)],
        "responses": {**answers, "default": failure},
    }
    if endpoint.method == "POST":
        operation["parameters"].append(_header("Idempotency-Key", "The same key and body give the same object again."))
    if endpoint.method == "PATCH" or endpoint.path.endswith("/rollback"):
        operation["parameters"].append(_header("If-Match", "The version the change is meant for, as its ETag shows it."))
    if endpoint.body:
        operation["requestBody"] = {"content": {media: {"schema": _ref(name)} for media, name in _bodies(endpoint).items()}}
    if endpoint.open:
        operation["security"] = []
    return operation


def _bodies(endpoint: Endpoint) -> dict[str, str]:
    """The media types that a route takes, with their schemas."""
    if endpoint.body == "Bytes":
        return {"application/octet-stream": "Bytes"}
    if endpoint.body == "PatchSession":
        return {
            "application/json": endpoint.body,
            "application/merge-patch+json": "Document",
            "application/json-patch+json": "JsonPatch",
        }
    return {"application/json": endpoint.body} | ({"application/octet-stream": "Bytes"} if endpoint.body == "Entries" else {})


def _in_path(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def _in_query(name: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "schema": {"type": _QUERY.get(name, "string")}}


def _header(name: str, why: str) -> dict[str, Any]:
    return {"name": name, "in": "header", "schema": {"type": "string"}, "description": why}


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def _object(required: str = "", **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required.split(), "additionalProperties": True}


_SECONDS: Final = {"type": "number", "minimum": 0}
_TEXT: Final = {"type": "string"}
_NAMES: Final = {"type": "array", "items": {"type": "string"}}
_WHOLE: Final = {"type": "integer"}
_FLAG: Final = {"type": "boolean"}
_MAYBE: Final = {"type": ["string", "null"]}
_TIME: Final = {"type": ["integer", "null"]}
_ANYTHING: Final[dict[str, Any]] = {"type": "object", "additionalProperties": True}
_METADATA: Final = {"type": "object", "additionalProperties": _TEXT, "maxProperties": 16}
_ITEMS: Final = {"type": "array", "items": {"$ref": "#/components/schemas/Item"}}


def schemas() -> dict[str, Any]:
    """Our own objects. Items and responses are OpenAI's: only what every one of them has is told here."""
    return {**_record(), **_desk(), **_work()}


def _record() -> dict[str, Any]:
    """What was said, and the turns that say it."""
    return {
        "Error": _object(
            "error", error=_object("message type code", message=_TEXT, type=_TEXT, code=_TEXT, param=_MAYBE, details=_ANYTHING)
        ),
        "Item": _object(type=_TEXT, id=_TEXT, status=_TEXT, role=_TEXT),
        "List": _object(
            "object data has_more", object={"const": "list"}, data={"type": "array"}, has_more=_FLAG,
            first_id=_MAYBE, last_id=_MAYBE,
        ),
        "Deleted": _object("id object deleted", id=_TEXT, object=_TEXT, deleted={"const": True}),
        "Metadata": _object("metadata", metadata=_METADATA),
        "Conversation": _object(
            "id object created_at metadata", id=_TEXT, object={"const": "conversation"}, created_at=_WHOLE, metadata=_METADATA
        ),
        "CreateConversation": _object(items=_ITEMS, metadata=_METADATA),
        "CreateItems": _object("items", items=_ITEMS),
        "Fork": _object(after={**_TEXT, "description": "The last item to share; without it, all are."}, metadata=_METADATA),
        "Transcript": _object("id source items", id=_TEXT, source=_TEXT, items=_ITEMS),
        "CreateResponse": _object(
            model=_TEXT, input={"anyOf": [_TEXT, _ITEMS]}, conversation={"anyOf": [_TEXT, _object("id", id=_TEXT)]},
            previous_response_id=_TEXT, stream=_FLAG, background=_FLAG, store=_FLAG, instructions=_TEXT, metadata=_METADATA,
            double_text={"enum": list(get_args(DoubleText))}, deadline_s={"type": "number", "exclusiveMinimum": 0},
        ),
        "Response": _object("id object status output", id=_TEXT, object={"const": "response"}, status=_TEXT, output=_ITEMS),
    }  # fmt: skip


def _desk() -> dict[str, Any]:
    """Sessions and what lies on them."""
    return {
        "CreateSession": _object(
            id=_TEXT, slots=_ANYTHING, metadata=_METADATA, ttl_s=_SECONDS, max_s=_SECONDS, kinds=_ANYTHING,
            durability={"enum": ["durable", "ephemeral"]},
            schemas=_ANYTHING,
        ),
        "PatchSession": _object(
            slots=_ANYTHING, remove={"type": "array", "items": _TEXT},
            expected={"type": "object", "additionalProperties": _WHOLE},
            schemas=_ANYTHING, kinds=_ANYTHING,
            operations={"type": "array", "items": _object("slot op", slot=_TEXT, op=_TEXT, value={})},
        ),
        "Session": _object(
            "id object version", id=_TEXT, object={"const": "session"}, version=_WHOLE, status=_TEXT, conversation=_MAYBE,
            agent=_MAYBE, parent=_MAYBE, access=_ANYTHING, holder=_MAYBE,
            hold=_WHOLE, durability={"enum": ["durable", "ephemeral"]}, ttl_s={"type": ["number", "null"]}, created_at=_WHOLE,
            metadata=_METADATA,
            slots=_ANYTHING, removed={"type": "array", "items": _TEXT}, slot_versions=_ANYTHING,
            last_turn={"anyOf": [_object("run response status", id=_MAYBE, run=_TEXT), {"type": "null"}]},
        ),
        "Slot": _object(
            "name version kind", object={"const": "session.slot"}, name=_TEXT, value={}, version=_WHOLE,
            kind={"enum": [*get_args(SlotKind)]}, schema=_MAYBE, origin=_TEXT, trust=_WHOLE, by=_TEXT, agent=_MAYBE, run=_MAYBE,
            at=_WHOLE, epoch=_WHOLE,
        ),
        "Diff": _object("before after changes", before=_WHOLE, after=_WHOLE, changes={"type": "array", "items": _ANYTHING}),
        "CreateCheckpoint": _object("name", name=_TEXT, version=_WHOLE),
        "Checkpoint": _object("name version kind", name=_TEXT, version=_WHOLE, kind=_TEXT, by=_TEXT, at=_WHOLE),
        "SetAccess": _object("agent", agent=_TEXT, read=_NAMES, write=_NAMES),
        "Hold": _object("seconds", holder=_TEXT, seconds=_SECONDS, hold=_WHOLE),
        "RollBack": _object(checkpoint=_TEXT, version=_WHOLE),
        "ForkSession": _object(version=_WHOLE, checkpoint=_TEXT, conversation=_FLAG, metadata=_METADATA),
        "Entries": _object(entries={"type": "array", "items": _object(at=_WHOLE, media=_TEXT, data={}, base64=_TEXT)}),
        "JsonPatch": {"type": "array", "items": _ANYTHING, "description": "RFC 6902, with slots as the first step of a path."},
        "Bytes": {"type": "string", "contentMediaType": "application/octet-stream"},
    }  # fmt: skip


def _work() -> dict[str, Any]:
    """Runs and the rest."""
    return {
        "Run": _object(
            "id object status", id=_TEXT, object={"const": "run"}, response=_TEXT, status=_TEXT, agent=_TEXT, conversation=_MAYBE,
            session=_MAYBE, previous_response=_MAYBE, merged_into=_MAYBE, stored=_FLAG, attempt=_WHOLE, events=_WHOLE,
            created_at=_WHOLE, deadline_at=_TIME, pending_actions={"type": "array", "items": _ref("Action")},
        ),
        "Action": _object(
            "id object run kind status", id=_TEXT, object={"const": "action"}, run=_TEXT, key=_TEXT, name=_TEXT,
            kind={"enum": [*get_args(ActionKind)]}, status=_TEXT, asked=_ANYTHING, digest=_MAYBE, queue=_MAYBE, by=_MAYBE,
            expires_at=_TIME, created_at=_WHOLE,
        ),
        "ResolveAction": _object(
            approved=_FLAG, digest=_TEXT, answer={}, output={}, result={},
            outcome={"enum": ["succeeded", "did_not_happen", "failed"]},
        ),
        "Events": {"type": "string", "description": "Server-sent events; each `id` is a cursor for Last-Event-ID."},
        "Model": _object("id object", id=_TEXT, object={"const": "model"}, created=_WHOLE, owned_by=_TEXT),
        "Status": _object(status=_TEXT),
        "Document": _ANYTHING,
    }  # fmt: skip
