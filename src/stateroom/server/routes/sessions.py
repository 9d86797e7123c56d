"""Sessions: the desk. Read what changed, patch it with preconditions, end it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace
from starlette.responses import Response

from stateroom import given, ids
from stateroom.errors import Gone, InvalidInput, NotFound
from stateroom.ids import NIL
from stateroom.run.model import RunQuery
from stateroom.server import patching
from stateroom.server.call import Answer, Call, Endpoint, page
from stateroom.session import access
from stateroom.session.model import Durability, OpenSession, Session, Slot
from stateroom.wire import json


async def create(call: Call) -> Answer:
    """Open a desk of its own, under an id of the caller's choice or a new one."""
    id_, metadata = _chosen(call), call.body.metadata() or b"{}"
    changes = patching.changes_of(call.body, empty=True)
    write = OpenSession(
        id=id_, owner=call.scope.principal, subject=call.scope.principal, metadata=metadata, ttl_ms=_ms(call, "ttl_s"),
        max_ms=_ms(call, "max_s"), durability=_durability(call),
    )  # fmt: skip
    session = await call.once(
        "session.open",
        ref=id_,
        act=lambda claim: call.room.sessions.open_as(call.scope, write, changes=changes, claim=claim),
        again=lambda made: call.room.sessions.get(call.scope, made),
    )
    return await answer(call, session)


async def retrieve(call: Call) -> Answer:
    """The desk, what changed on it since a version, or as it was at one."""
    session = await call.room.sessions.get(call.scope, call.path_id("session", "session"))
    if (version := call.query_int("version")) is not None:
        return state(session, version, seen(call, session, await call.room.sessions.slots_at(call.scope, session.id, version)))
    return await answer(call, session, since=call.query_int("since_version") or 0)


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
    """Our own words, or a standard patch of the state: then it is read, edited and written until nobody was quicker. Who names
    the version that it knows is told what changed since, not all of it again."""
    id_, expected, edit = call.path_id("session", "session"), patching.if_match(call), patching.edit(call)
    changes, acting = patching.changes_of(call.body) if edit is None else None, patching.acting(call)
    since = call.query_int("since_version") or 0

    async def act(claim: Any) -> Session:
        sessions = call.room.sessions
        if changes is not None:
            done = await sessions.change(call.scope, id_, changes, expected_version=expected, acting=acting, claim=claim)
            call.made = done.version
        elif edit is not None:
            call.made = await sessions.update(call.scope, id_, edit, expected_version=expected, acting=acting, claim=claim)
        return await sessions.get(call.scope, id_)

    session = await call.once("session.patch", ref=id_, act=act, again=lambda made: call.room.sessions.get(call.scope, made))
    return await answer(call, session, since=since)


async def prefetch(call: Call) -> Answer:
    """The caller will want this desk soon: it is fetched in the background."""
    session = await call.room.sessions.get(call.scope, call.path_id("session", "session"))
    call.room.prefetch.hint(call.scope, session.id)
    return shown(session)


async def touch(call: Call) -> Answer:
    id_ = call.path_id("session", "session")

    async def act(claim: Any) -> Session:
        await call.room.sessions.touch(call.scope, id_, claim=claim)
        return await call.room.sessions.get(call.scope, id_)

    return shown(await call.once("session.touch", ref=id_, act=act, again=lambda made: call.room.sessions.get(call.scope, made)))


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


def _durability(call: Call) -> Durability:
    given = call.body.get("durability", str) or "durable"
    if given not in ("durable", "ephemeral"):
        raise InvalidInput("A session is 'durable' or 'ephemeral'.", code="durability_invalid", param="durability")
    return "ephemeral" if given == "ephemeral" else "durable"


def _ms(call: Call, name: str) -> int:
    seconds = call.body.get(name, int, float) or 0
    return given.ms(seconds, name, code="lifetime_invalid")


async def _bound(call: Call) -> Answer:
    agent = call.query("agent") or call.room.default_agent
    session = await call.room.sessions.bound(call.scope, call.query_id("conversation", "conversation"), agent)
    data = [] if session is None else [shown(session)]
    return page(data, [entry["id"] for entry in data], False)


# ── shown ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def answer(call: Call, session: Session, *, since: int = 0) -> Answer:
    """The desk with the slots that changed after `since`; nothing when the caller has it already. The head was read first:
    it is never newer than the slots."""
    if (then := await _as_made(call, session)) is not None:
        session = as_made(call, session)
    turn = await _last_turn(call, session)
    headers = {**call.headers, "ETag": etag(session, turn)}
    if call.request.headers.get("if-none-match", "").strip() == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    if then is not None:
        slots = then
    elif since:
        slots = await call.room.sessions.slots(call.scope, session.id, since=since)
    else:
        slots = await call.room.hydrator.current(call.scope, session)
    body = json.encode({**shown(session), "last_turn": turn, **desk(seen(call, session, slots))})
    return Response(body, headers=headers, media_type="application/json")


def as_made(call: Call, session: Session) -> Session:
    """What a request is answered with that made a version: that one, also when it comes again and the desk has gone on."""
    return replace(session, version=call.made) if call.made else session


async def _as_made(call: Call, session: Session) -> list[Slot] | None:
    """The slots of the version that this request made, when the desk has gone on since. None: it has not, or that version
    is no longer kept: then it is answered with the desk as it is."""
    if call.made in (0, session.version):
        return None
    try:
        return await call.room.sessions.slots_at(call.scope, session.id, call.made)
    except Gone:
        return None


def seen(call: Call, session: Session, slots: list[Slot]) -> list[Slot]:
    """What the agent sees for which the caller acts."""
    return access.seen(session.access, patching.acting(call).agent, slots)


def etag(session: Session, turn: Mapping[str, Any] | None) -> str:
    """The version; behind it what else an answer shows that changes by itself."""
    if turn is None:
        return f'"{session.version}"'
    return f'"{session.version}.{hashlib.sha256(json.encode(turn)).hexdigest()[:8]}"'


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
        "durability": session.durability,
        "conversation": ids.text("conversation", session.conversation) if session.conversation != NIL else None,
        "agent": session.agent or None,
        "parent": ids.text("session", session.parent) if session.parent != NIL else None,
        "created_at": session.created_at // 1000,
        "ttl_s": session.ttl_ms / 1000 or None,
        "metadata": msgspec.Raw(session.metadata),
        "access": access.shown(session.access),
        "holder": session.holder or None,
        "hold": session.hold,
    }


def desk(slots: Sequence[Slot]) -> Mapping[str, Any]:
    return {
        "slots": {slot.name: msgspec.Raw(slot.body) for slot in slots if slot.body is not None},
        "removed": [slot.name for slot in slots if slot.body is None],
        "slot_versions": {slot.name: slot.version for slot in slots},
    }


def state(session: Session, version: int, slots: Sequence[Slot]) -> dict[str, Any]:
    """The desk as it was."""
    return {"id": ids.text("session", session.id), "object": "session.state", "version": version, **desk(slots)}


ENDPOINTS = (
    Endpoint("POST", "/sessions", create, "Open a session.", body="CreateSession", answer="Session"),
    Endpoint(
        "GET", "/sessions", list_, "List sessions, or find the one bound to a conversation and agent.",
        query=("conversation", "agent", "limit", "after"), answer="List",
    ),
    Endpoint(
        "GET", "/sessions/{session}", retrieve, "Get a session with the slots changed since a version, or as it was at one.",
        query=("since_version", "version", "agent"), answer="Session",
    ),
    Endpoint(
        "PATCH", "/sessions/{session}", patch, "Change slots, all or none.", body="PatchSession", answer="Session", raw=True,
        query=("since_version", "agent", "hold"),
    ),
    Endpoint("DELETE", "/sessions/{session}", end, "End a session.", answer="Deleted"),
    Endpoint("POST", "/sessions/{session}/prefetch", prefetch, "It will be wanted soon.", answer="Session"),
    Endpoint("POST", "/sessions/{session}/touch", touch, "Let its time to live begin anew.", answer="Session"),
)  # fmt: skip
