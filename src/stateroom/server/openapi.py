"""The OpenAPI document: every path from the one table of endpoints, with schemas for our own objects."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, get_args

from stateroom import __version__
from stateroom.run.model import DoubleText
from stateroom.run.steps import ActionKind
from stateroom.server.call import Endpoint

_QUERY = {
    "limit": "integer", "since_version": "integer", "starting_after": "integer", "stream": "boolean", "pending": "boolean",
}  # fmt: skip
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
    content = "text/event-stream" if endpoint.answer == "Events" else "application/json"
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
    if endpoint.method == "PATCH":
        operation["parameters"].append(_header("If-Match", "The version the change is meant for, as its ETag shows it."))
    if endpoint.body:
        operation["requestBody"] = {"content": {"application/json": {"schema": _ref(endpoint.body)}}}
    if endpoint.open:
        operation["security"] = []
    return operation


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


def schemas() -> dict[str, Any]:
    """Our own objects. Items and responses are OpenAI's: only what every one of them has is told here."""
    text, whole, flag = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}
    maybe = {"type": ["string", "null"]}
    anything: dict[str, Any] = {"type": "object", "additionalProperties": True}
    metadata = {"type": "object", "additionalProperties": text, "maxProperties": 16}
    items = {"type": "array", "items": _ref("Item")}
    error = _object("message type code", message=text, type=text, code=text, param=maybe, details=anything)
    return {
        "Error": _object("error", error=error),
        "Item": _object(type=text, id=text, status=text, role=text),
        "List": _object(
            "object data has_more", object={"const": "list"}, data={"type": "array"}, first_id=maybe, last_id=maybe, has_more=flag
        ),
        "Deleted": _object("id object deleted", id=text, object=text, deleted={"const": True}),
        "Metadata": _object("metadata", metadata=metadata),
        "Conversation": _object(
            "id object created_at metadata", id=text, object={"const": "conversation"}, created_at=whole, metadata=metadata
        ),
        "CreateConversation": _object(items=items, metadata=metadata),
        "CreateItems": _object("items", items=items),
        "Fork": _object(after={**text, "description": "The last item to share; without it, all are."}, metadata=metadata),
        "Transcript": _object("id source items", id=text, source=text, items=items),
        "CreateResponse": _object(
            model=text, input={"anyOf": [text, items]}, conversation={"anyOf": [text, _object("id", id=text)]},
            previous_response_id=text, stream=flag, background=flag, store=flag, instructions=text, metadata=metadata,
            double_text={"enum": list(get_args(DoubleText))}, deadline_s={"type": "number", "exclusiveMinimum": 0},
        ),
        "Response": _object("id object status output", id=text, object={"const": "response"}, status=text, output=items),
        "CreateSession": _object(id=text, slots=anything, metadata=metadata),
        "PatchSession": _object(
            slots=anything, remove={"type": "array", "items": text}, expected={"type": "object", "additionalProperties": whole}
        ),
        "Session": _object(
            "id object version", id=text, object={"const": "session"}, version=whole, status=text, conversation=maybe,
            agent=maybe, created_at=whole, metadata=metadata, slots=anything, removed={"type": "array", "items": text},
            slot_versions=anything, last_turn={"anyOf": [_object("run response status", id=maybe, run=text), {"type": "null"}]},
        ),
        "Run": _object(
            "id object status", id=text, object={"const": "run"}, response=text, status=text, agent=text, conversation=maybe,
            session=maybe, previous_response=maybe, merged_into=maybe, stored=flag, attempt=whole, events=whole, created_at=whole,
            deadline_at={"type": ["integer", "null"]}, pending_actions={"type": "array", "items": _ref("Action")},
        ),
        "Action": _object(
            "id object run kind status", id=text, object={"const": "action"}, run=text, key=text, name=text,
            kind={"enum": [*get_args(ActionKind)]}, status=text, asked=anything, digest=maybe, queue=maybe, by=maybe,
            expires_at={"type": ["integer", "null"]}, created_at=whole,
        ),
        "ResolveAction": _object(
            approved=flag, digest=text, answer={}, output={}, result={},
            outcome={"enum": ["succeeded", "did_not_happen", "failed"]},
        ),
        "Events": {"type": "string", "description": "Server-sent events; each `id` is a cursor for Last-Event-ID."},
        "Model": _object("id object", id=text, object={"const": "model"}, created=whole, owned_by=text),
        "Status": _object("status", status=text),
        "Document": anything,
    }  # fmt: skip
