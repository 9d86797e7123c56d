"""What lies on a desk beside its state: versions and their names, single slots, windows and documents."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
from starlette.responses import Response

from stateroom import given, ids, limits
from stateroom.batch import ClaimKey
from stateroom.errors import InvalidInput
from stateroom.ids import NIL
from stateroom.server import body as bodies
from stateroom.server import patching
from stateroom.server.call import Answer, Call, Endpoint, page
from stateroom.server.routes.sessions import answer, as_made, seen, shown
from stateroom.session import access, rules, versions
from stateroom.session.changes import Changes
from stateroom.session.model import Change, Checkpoint, Entry, HoldDesk, Session, Slot, SlotPatch

# ── versions ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def diff(call: Call) -> Answer:
    """The slots that differ between two versions; without `after`, from `before` to now."""
    session = await _session(call)
    before, after = call.query_int("before"), call.query_int("after")
    if before is None:
        raise InvalidInput("Say from which version: 'before'.", code="number_invalid", param="before")
    until = session.version if after is None else after
    states = [seen(call, session, await call.room.sessions.slots_at(call.scope, session.id, one)) for one in (before, until)]
    shown_ = [_changed(change) for change in versions.diff(*states)]
    return {"object": "session.diff", "id": ids.text("session", session.id), "before": before, "after": until, "changes": shown_}


async def checkpoints(call: Call) -> Answer:
    """Newest version first."""
    session, limit = await _session(call), call.limit()
    data = [_named(one) for one in await call.room.sessions.checkpoints(call.scope, session.id, limit=limit)]
    return page(data, [one["name"] for one in data], False)


async def checkpoint(call: Call) -> Answer:
    """Name a version; naming the same one by the same name again changes nothing."""
    id_, name, version = call.path_id("session", "session"), call.body.get("name", str), call.body.get("version", int)
    if name is None:
        raise InvalidInput("A checkpoint has a 'name'.", code="checkpoint_name_invalid", param="name")

    async def again(made: bytes) -> Checkpoint:
        known = await call.room.sessions.checkpoints(call.scope, made, limit=limits.READ_ITEMS_MAX)
        for one in known:
            if one.name == name:
                return one
        raise rules.no_checkpoint(name)  # it was dropped since

    sessions = call.room.sessions
    found = await call.once(
        "session.checkpoint",
        ref=id_,
        act=lambda claim: sessions.checkpoint(call.scope, id_, name, version=version, claim=claim),
        again=again,
    )
    return _named(found)


async def drop_checkpoint(call: Call) -> Answer:
    name = call.request.path_params["checkpoint"]
    await call.room.sessions.drop_checkpoint(call.scope, call.path_id("session", "session"), name)
    return {"id": name, "object": "session.checkpoint.deleted", "deleted": True}


async def roll_back(call: Call) -> Answer:
    """A new version equal to a `checkpoint`, or to an old `version`."""
    id_, expected = call.path_id("session", "session"), patching.if_match(call)
    name, version = call.body.get("checkpoint", str), call.body.get("version", int)
    if (name is None) == (version is None):
        raise InvalidInput("Say to which checkpoint or version.", code="rollback_nowhere")
    to: str | int = name if name is not None else version

    async def act(claim: ClaimKey | None) -> Session:
        rollbacks, acting = call.room.rollbacks, patching.acting(call)
        call.made = (await rollbacks.to(call.scope, id_, to, expected_version=expected, acting=acting, claim=claim)).version
        return await call.room.sessions.get(call.scope, id_)

    return await answer(call, await call.once("session.rollback", ref=id_, act=act, again=lambda made: _get(call, made)))


async def fork(call: Call) -> Answer:
    """A desk of its own that begins as this one is, or was at a `version` or `checkpoint`; with its `conversation`."""
    parent, metadata = await _session(call), call.body.metadata() or b"{}"
    version, name = call.body.get("version", int), call.body.get("checkpoint", str)
    to: str | int | None = name if name is not None else version
    both, forks = call.body.get("conversation", bool), call.room.forks
    made = ids.new(ids.home(parent.id), call.room.backend.clock.wall_ms())

    async def act(claim: ClaimKey | None) -> Session:
        if both:
            return (await forks.both(call.scope, parent.id, to=to, metadata=metadata, claim=claim))[0]
        return await forks.session(call.scope, parent.id, to=to, metadata=metadata, claim=claim)

    return await answer(call, await call.once("session.fork", ref=made, act=act, again=lambda known: _get(call, known)))


# ── slots ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def slot(call: Call) -> Answer:
    """One slot with all that is known of it."""
    return slot_shown(await call.room.sessions.slot(call.scope, *await _readable(call)))


async def entries(call: Call) -> Answer:
    """What a window shows as of a time (ms), oldest first; never anything later."""
    limit = call.query_int("limit")
    found = await call.room.sessions.entries(
        call.scope, *await _readable(call), as_of=call.query_int("as_of"),
        limit=limits.READ_ITEMS_MAX if limit is None else limit,
    )  # fmt: skip
    return {"object": "list", "data": [_entry(entry) for entry in found], "has_more": False, "first_id": None, "last_id": None}


async def observe(call: Call) -> Answer:
    """Entries for a window: `{"entries": […]}`, or any other body as one entry of its media type. What clients say that were
    told nothing (curl's default) is no media type that anybody observes: nobody guesses what was meant."""
    if patching.media_type(call) in _FORMS:
        raise InvalidInput(
            "Say what this is: 'Content-Type: application/json' for entries as JSON, or the media type of one entry, such as"
            " image/png or application/octet-stream.",
            code="media_type_unsupported", param="Content-Type",
        )  # fmt: skip
    if patching.media_type(call) in ("application/json", ""):
        body = bodies.decode(call.data)
        given = [patching.entry_of(one) for one in body.get("entries", list) or [body.value]]
    else:
        from_ = {"base64": base64.b64encode(call.data).decode(), "media": patching.media_type(call)}
        given = [patching.entry_of({**from_, "at": call.query_int("at") or 0})]
    patch = SlotPatch(name=_name(call), body=b"null", kind="window", op="append", entries=tuple(given))
    return await _change(call, Changes().apply(patch))


async def document(call: Call) -> Answer:
    """A document as a replica takes it up: a Loro snapshot."""
    found = await call.room.sessions.document(call.scope, *await _readable(call))
    headers = {**call.headers, "ETag": f'"{found.version}"', "Stateroom-Epoch": str(found.epoch)}
    return Response(found.snapshot, headers=headers, media_type="application/octet-stream")


async def sync(call: Call) -> Answer:
    """What a replica changed, as bytes; `epoch` of the document it had."""
    return await _change(call, Changes().sync(_name(call), call.data, epoch=call.query_int("epoch")))


# ── agents on one desk ──────────────────────────────────────────────────────────────────────────────────────────────


async def allow(call: Call) -> Answer:
    """What an agent may read and write; with neither, nothing is said of it any more."""
    id_, agent = call.path_id("session", "session"), call.body.get("agent", str) or ""
    read, write = (call.body.get(name, list) for name in ("read", "write"))
    if not all(isinstance(one, str) for one in (*(read or ()), *(write or ()))):
        raise InvalidInput("'read' and 'write' name slots.", code="access_invalid", param="read")
    grant = None if read is None and write is None else access.Grant(tuple(read or ()), tuple(write or ()))

    access.check_whole(await _get(call, id_), patching.acting(call).agent)

    async def act(claim: ClaimKey | None) -> Session:
        call.made = (await call.room.sessions.grant(call.scope, id_, agent, rules=grant, claim=claim)).version
        return await _get(call, id_)

    return shown(as_made(call, await call.once("session.access", ref=id_, act=act, again=lambda made: _get(call, made))))


async def hold(call: Call) -> Answer:
    """A desk into an agent's hands, from one's to another's, or out of them (`seconds` 0)."""
    id_, seconds = call.path_id("session", "session"), call.body.get("seconds", int, float)
    if seconds is None:
        raise InvalidInput("Say for how many 'seconds'.", code="hold_invalid", param="seconds")
    holder, fence = call.body.get("holder", str) or "", call.body.get("hold", int) or 0
    write = HoldDesk(session=id_, holder=holder, ms=given.ms(seconds, "seconds", code="hold_invalid"), hold=fence)

    async def act(claim: ClaimKey | None) -> Session:
        await call.room.sessions.hold(call.scope, write, claim=claim)
        return await _get(call, id_)

    return shown(await call.once("session.hold", ref=id_, act=act, again=lambda made: _get(call, made)))


async def _change(call: Call, changes: Changes) -> Answer:
    id_ = call.path_id("session", "session")

    async def act(claim: ClaimKey | None) -> Session:
        done = await call.room.sessions.change(call.scope, id_, changes, acting=patching.acting(call), claim=claim)
        call.made = done.version
        return await _get(call, id_)

    return shown(as_made(call, await call.once("session.patch", ref=id_, act=act, again=lambda made: _get(call, made))))


async def _session(call: Call) -> Session:
    return await _get(call, call.path_id("session", "session"))


async def _get(call: Call, id_: bytes) -> Session:
    return await call.room.sessions.get(call.scope, id_)


async def _readable(call: Call) -> tuple[bytes, str]:
    """The session and slot that are asked for; what the caller's agent may not see is not there."""
    session, name = await _session(call), _name(call)
    if not access.may_read(session.access, patching.acting(call).agent, name):
        raise rules.no_slot(name)
    return session.id, name


def _name(call: Call) -> str:
    return str(call.request.path_params["slot"])


# ── shown ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def slot_shown(found: Slot) -> dict[str, Any]:
    return {
        "object": "session.slot",
        "name": found.name,
        "value": None if found.body is None else msgspec.Raw(found.body),
        "version": found.version,
        "kind": found.kind,
        "schema": found.schema or None,
        "origin": found.origin,
        "trust": found.trust,
        "by": found.by,
        "agent": found.agent or None,
        "run": ids.text("run", found.run) if found.run != NIL else None,
        "at": found.at,
        "epoch": found.epoch,
    }


def _changed(change: Change) -> dict[str, Any]:
    before, after = (None if side is None else slot_shown(side) for side in (change.before, change.after))
    return {"name": change.name, "before": before, "after": after}


def _named(found: Checkpoint) -> dict[str, Any]:
    return {
        "object": "session.checkpoint",
        "name": found.name,
        "version": found.version,
        "kind": found.kind,
        "by": found.by,
        "agent": found.agent or None,
        "run": ids.text("run", found.run) if found.run != NIL else None,
        "conversation": ids.text("conversation", found.branch) if found.branch != NIL else None,
        "seq": found.seq,
        "at": found.at,
    }


def _entry(entry: Entry) -> dict[str, Any]:
    head = {"at": entry.at, "version": entry.version, "media": entry.media}
    if entry.media == "application/json":
        return {**head, "data": msgspec.Raw(entry.body)}
    return {**head, "base64": base64.b64encode(entry.body).decode()}


_DESK = "/sessions/{session}"
_FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")
_SLOT, _SHOWS, _BACK = "Get a slot with all that is known of it.", "What a window shows.", "Go back to a version."
ENDPOINTS = (
    Endpoint("GET", f"{_DESK}/diff", diff, "How two versions differ.", query=("before", "after", "agent"), answer="Diff"),
    Endpoint("GET", f"{_DESK}/checkpoints", checkpoints, "List the versions with names.", query=("limit",), answer="List"),
    Endpoint("POST", f"{_DESK}/checkpoints", checkpoint, "Name a version.", body="CreateCheckpoint", answer="Checkpoint"),
    Endpoint("DELETE", f"{_DESK}/checkpoints/{{checkpoint}}", drop_checkpoint, "Let a name go.", answer="Deleted"),
    Endpoint("POST", f"{_DESK}/rollback", roll_back, _BACK, body="RollBack", query=("agent", "hold"), answer="Session"),
    Endpoint("POST", f"{_DESK}/fork", fork, "Begin another desk as this one is, or was.", body="ForkSession", answer="Session"),
    Endpoint("POST", f"{_DESK}/access", allow, "Say what an agent may.", body="SetAccess", answer="Session"),
    Endpoint("POST", f"{_DESK}/hold", hold, "Take a desk in hand, hand it over, let it go.", body="Hold", answer="Session"),
    Endpoint("GET", f"{_DESK}/slots/{{slot}}", slot, _SLOT, query=("agent",), answer="Slot"),
    Endpoint("GET", f"{_DESK}/slots/{{slot}}/entries", entries, _SHOWS, query=("as_of", "limit", "agent"), answer="List"),
    Endpoint(
        "POST", f"{_DESK}/slots/{{slot}}/entries", observe, "Append to a window.", body="Entries", answer="Session",
        query=("at", "agent", "hold"), raw=True,
    ),
    Endpoint("GET", f"{_DESK}/slots/{{slot}}/document", document, "Get a document.", query=("agent",), answer="Bytes"),
    Endpoint(
        "POST", f"{_DESK}/slots/{{slot}}/document", sync, "Send a replica's changes.", body="Bytes", answer="Session",
        query=("epoch", "agent", "hold"), raw=True,
    ),
)  # fmt: skip
