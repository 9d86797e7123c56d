"""Watch a desk: a stream of its patches by cursor, as server-sent events or over a WebSocket."""

from __future__ import annotations

from starlette.websockets import WebSocket

from stateroom.connection.model import Cursor
from stateroom.server.call import Answer, Call, Endpoint
from stateroom.server.pulse import Watched
from stateroom.server.sse import EventStream
from stateroom.server.websocket import SocketEndpoint, leave, leaving, tell


async def watch(call: Call) -> Answer:
    """Every patch behind a cursor; without one the state first. Ends when the session does."""
    given = call.request.headers.get("last-event-id") or call.query("after")
    session, start = await _checked(call, given)
    stream = Watched(call.scope, session, start or call.room.watchers.at(session, 0))
    events = call.room.watchers.events(call.scope, session, start, bell=stream.bell, agent=call.query("agent") or "")
    return EventStream(call.server, stream, events, headers=call.headers)


async def attend(call: Call, websocket: WebSocket) -> None:
    """The same over a WebSocket: a frame for each event, with its cursor as `id`."""
    session, start = await _checked(call, call.query("after"))
    stream = Watched(call.scope, session, start or call.room.watchers.at(session, 0))
    events = call.room.watchers.events(call.scope, session, start, bell=stream.bell, agent=call.query("agent") or "")
    await websocket.accept()
    with leaving(websocket, stream), call.server.pulse.watching(stream):
        await tell(websocket, stream, events, shape=lambda cursor, event: {"id": str(cursor), **event})
        await leave(websocket, stream)


async def _checked(call: Call, given: str | None) -> tuple[bytes, Cursor | None]:
    session, watchers = call.path_id("session", "session"), call.room.watchers
    await call.room.sessions.get(call.scope, session)
    call.room.prefetch.hint(call.scope, session)
    start = watchers.cursor(session, given)
    await watchers.check(call.scope, session, start)
    return session, start


ENDPOINTS = (
    Endpoint("GET", "/sessions/{session}/watch", watch, "Watch a session's patches.", query=("after", "agent"), answer="Events"),
)
SOCKETS = (SocketEndpoint("/sessions/{session}/watch", attend, "Watch a session's patches.", query=("after", "agent")),)
