"""Runs: one execution each, with its status as it really is and its events by cursor."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response
from starlette.websockets import WebSocket

from stateroom import ids
from stateroom.errors import InvalidInput
from stateroom.ids import NIL
from stateroom.run.model import Run, RunQuery
from stateroom.server.call import Answer, Call, Endpoint, page
from stateroom.server.pulse import Watched
from stateroom.server.routes import actions
from stateroom.server.routes.responses import cancelled, check_cursor, check_kept, followed
from stateroom.server.websocket import SocketEndpoint, leave, leaving, tell
from stateroom.wire import openai


async def retrieve(call: Call) -> Answer:
    """The run; while it waits for its turn, with its input as `pending`; while it waits for somebody, with what for."""
    run = await _run(call)
    inbox = await call.room.runs.inbox(call.scope, run.id) if run.status == "queued" else []
    pending = [msgspec.Raw(openai.render_item(draft)) for draft in inbox]
    return {**await _waiting(call, run), "pending": pending}


async def list_(call: Call) -> Answer:
    if not call.newest_first():
        raise InvalidInput("Runs are listed newest first.", code="order_invalid", param="order")
    limit = call.limit()
    query = RunQuery(
        conversation=call.query_id("conversation", "conversation"), after=call.query_id("after", "run"), limit=limit + 1
    )
    found = await call.room.runs.recent(call.scope, query)
    data = [await _waiting(call, run) for run in found[:limit]]
    return page(data, [run["id"] for run in data], len(found) > limit)


async def events(call: Call) -> Answer:
    """Follow a run from a cursor on. At the end of one that is over there is nothing left to say: 204."""
    run = await _run(call)
    given = call.request.headers.get("last-event-id") or call.query("after")
    start = call.room.followers.cursor(run, given)
    check_cursor(run, start.seq, "Last-Event-ID")
    check_kept(call, run)
    if run.ended and start.seq == run.head:
        return Response(status_code=204, headers=call.headers)
    return followed(call, run, start)


async def attend(call: Call, websocket: WebSocket) -> None:
    """The same over a WebSocket: a frame for each event, with its cursor as `id`."""
    run = await _run(call)
    start = call.room.followers.cursor(run, call.query("after"))
    check_cursor(run, start.seq, "after")
    check_kept(call, run)
    stream = Watched(call.scope, run.id, start)
    events = call.room.followers.events(call.scope, run.id, start, poll_s=None, bell=stream.bell)
    await websocket.accept()
    with leaving(websocket, stream), call.server.pulse.watching(stream):
        await tell(websocket, stream, events, shape=lambda cursor, event: {"id": str(cursor), **event})
        await leave(websocket, stream)


async def cancel(call: Call) -> Answer:
    return await _waiting(call, await cancelled(call, await _run(call)))


def shown(run: Run) -> dict[str, Any]:
    return {
        "id": ids.text("run", run.id),
        "object": "run",
        "response": ids.text("response", run.id),
        "status": run.status,
        "agent": run.agent,
        "conversation": ids.text("conversation", run.conversation) if run.conversation != NIL else None,
        "session": ids.text("session", run.session) if run.session != NIL else None,
        "previous_response": ids.text("response", run.previous) if run.previous != NIL else None,
        "merged_into": ids.text("run", run.merged_into) if run.merged_into != NIL else None,
        "stored": run.stored,
        "attempt": run.attempt,
        "events": run.head,
        "error": msgspec.Raw(run.error) if run.error else None,
        "usage": msgspec.Raw(run.usage) if run.usage else None,
        "request": msgspec.Raw(run.options),
        "created_at": run.created_at // 1000,
        "deadline_at": run.deadline_at // 1000 or None,
        "started_at": run.started_at // 1000 or None,
        "finished_at": run.finished_at // 1000 or None,
    }


async def _waiting(call: Call, run: Run) -> dict[str, Any]:
    """The run with what it waits for: whoever is to answer finds it there."""
    return {**shown(run), "pending_actions": await actions.pending(call, run)}


async def _run(call: Call) -> Run:
    return await call.room.runs.get(call.scope, call.path_id("run", "run"))


ENDPOINTS = (
    Endpoint("GET", "/runs", list_, "List runs, newest first.", query=("conversation", "limit", "after"), answer="List"),
    Endpoint("GET", "/runs/{run}", retrieve, "Get a run.", answer="Run"),
    Endpoint("GET", "/runs/{run}/events", events, "Follow a run's events.", query=("after",), answer="Events"),
    Endpoint("POST", "/runs/{run}/cancel", cancel, "Cancel a run, in whatever state it is.", answer="Run"),
)
SOCKETS = (SocketEndpoint("/runs/{run}/events", attend, "Follow a run's events.", query=("after",)),)
