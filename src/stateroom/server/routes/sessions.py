"""Sessions: the desk. Read what changed, patch it with preconditions, end it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from starlette.responses import Response

from stateroom import ids
from stateroom.errors import InvalidInput, NotFound
from stateroom.ids import NIL
from stateroom.run.model import RunQuery
from stateroom.server.call import Answer, Call, Endpoint, page
from stateroom.session.model import Session, Slot, SlotPatch
from stateroom.session.service import patches_of
from stateroom.wire import json

_ETAG = re.compile(r'"(\d{1,15})"')


async def create(call: Call) -> Answer:
    """Open a desk of its own, under an id of the caller's choice or a new one."""
    id_, metadata = _chosen(call), call.body.metadata() or b"{}"
    slots = call.body.get("slots", dict) or {}
    session = await call.once(
        "session.open",
        ref=id_,
        act=lambda claim: call.room.sessions.open(call.scope, id=id_, metadata=metadata, slots=slots, claim=claim),
        again=lambda made: call.room.sessions.get(call.scope, made),
    )
    return await _answer(call, session)


async def retrieve(call: Call) -> Answer:
    session = await call.room.sessions.get(call.scope, call.path_id("session", "session"))
    return await _answer(call, session, since=call.query_int("since_version") or 0)


async def list_(call: Call) -> Answer:
    """The caller's sessions, newest first; with `conversation`, the one its turns (with `agent`) work on."""
    if call.query("conversation") is not None:
        return await _bound(call)
    if not call.newest_first():
        raise InvalidInput("Sessions are listed newest first.", code="order_invalid", param="order")
    limit = call.limit()
    found = await call.room.sessions.recent(call.scope, after=call.query_id("after", "session"), limit=limit + 1)
    data = [shown(session) for session in found[:limit]]
    return page(data, [session["id"] for session in data], len(found) > limit)


async def patch(call: Call) -> Answer:
    id_ = call.path_id("session", "session")
    changes, expected = _changes(call), _if_match(call)

    async def act(claim: Any) -> Session:
        await call.room.sessions.patch(call.scope, id_, changes, expected_version=expected, claim=claim)
        return await call.room.sessions.get(call.scope, id_)

    session = await call.once("session.patch", ref=id_, act=act, again=lambda made: call.room.sessions.get(call.scope, made))
    return await _answer(call, session)


async def end(call: Call) -> Answer:
    id_ = call.path_id("session", "session")
    await call.room.sessions.end(call.scope, id_)
    return {"id": ids.text("session", id_), "object": "session.deleted", "deleted": True}


# ── reading the request ─────────────────────────────────────────────────────────────────────────────────────────────


def _chosen(call: Call) -> bytes:
    given = call.body.get("id", str)
    if given is None:
        return call.room.sessions.new_id()
    try:
        return ids.parse("session", given)
    except NotFound:
        raise InvalidInput("A session id is 'sess_' and 32 hexadecimal digits.", code="session_id_invalid", param="id") from None


def _changes(call: Call) -> list[SlotPatch]:
    slots, remove = call.body.get("slots", dict) or {}, call.body.get("remove", list) or []
    expected = call.body.get("expected", dict) or {}
    if not all(isinstance(name, str) for name in remove):
        raise InvalidInput("'remove' names slots.", code="wrong_type", param="remove")
    if not all(type(version) is int and version >= 0 for version in expected.values()):
        raise InvalidInput("'expected' gives a version for each slot it names.", code="wrong_type", param="expected")
    if not slots and not remove:
        raise InvalidInput("Give 'slots' to change or to 'remove'.", code="patch_empty")
    if stray := sorted(set(expected) - set(slots) - set(remove)):
        raise InvalidInput(f"'{stray[0][:80]}' is expected and not changed.", code="expected_without_change", param="expected")
    return patches_of(slots, removed=remove, expected=expected)


def _if_match(call: Call) -> int | None:
    given = call.request.headers.get("if-match")
    if given is None or given.strip() == "*":
        return None
    if (found := _ETAG.fullmatch(given.strip())) is None:
        raise InvalidInput("'If-Match' takes one version as its ETag shows it.", code="if_match_invalid", param="If-Match")
    return int(found[1])


async def _bound(call: Call) -> Answer:
    agent = call.query("agent") or call.room.default_agent
    session = await call.room.sessions.bound(call.scope, call.query_id("conversation", "conversation"), agent)
    data = [] if session is None else [shown(session)]
    return page(data, [entry["id"] for entry in data], False)


# ── shown ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _answer(call: Call, session: Session, *, since: int = 0) -> Answer:
    """The desk with the slots that changed after `since`. The head was read first: it is never newer than the slots."""
    slots = await call.room.sessions.slots(call.scope, session.id, since=since)
    body = json.encode({**shown(session), "last_turn": await _last_turn(call, session), **desk(slots)})
    return Response(body, headers={**call.headers, "ETag": f'"{session.version}"'}, media_type="application/json")


async def _last_turn(call: Call, session: Session) -> dict[str, Any] | None:
    """The newest run on this desk; its id is the key its caller gave. A desk of its own has no turns."""
    if session.conversation == NIL:
        return None
    query = RunQuery(conversation=session.conversation, session=session.id, limit=1)
    for run in await call.room.runs.recent(call.scope, query):
        return {
            "id": run.key or None, "run": ids.text("run", run.id), "response": ids.text("response", run.id), "status": run.status,
        }  # fmt: skip
    return None


def shown(session: Session) -> dict[str, Any]:
    return {
        "id": ids.text("session", session.id),
        "object": "session",
        "version": session.version,
        "status": session.status,
        "conversation": ids.text("conversation", session.conversation) if session.conversation != NIL else None,
        "agent": session.agent or None,
        "created_at": session.created_at // 1000,
        "metadata": msgspec.Raw(session.metadata),
    }


def desk(slots: Sequence[Slot]) -> Mapping[str, Any]:
    return {
        "slots": {slot.name: msgspec.Raw(slot.body) for slot in slots if slot.body is not None},
        "removed": [slot.name for slot in slots if slot.body is None],
        "slot_versions": {slot.name: slot.version for slot in slots},
    }


ENDPOINTS = (
    Endpoint("POST", "/sessions", create, "Open a session.", body="CreateSession", answer="Session"),
    Endpoint(
        "GET", "/sessions", list_, "List sessions, or find the one bound to a conversation and agent.",
        query=("conversation", "agent", "limit", "after"), answer="List",
    ),
    Endpoint(
        "GET", "/sessions/{session}", retrieve, "Get a session with the slots changed since a version.",
        query=("since_version",), answer="Session",
    ),
    Endpoint("PATCH", "/sessions/{session}", patch, "Change slots, all or none.", body="PatchSession", answer="Session"),
    Endpoint("DELETE", "/sessions/{session}", end, "End a session.", answer="Deleted"),
)  # fmt: skip
