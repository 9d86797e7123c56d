"""WebSockets: the door they come through, and a run's events as frames on their way to one reader.

As with server-sent events a reader that goes away ends nothing but its socket, one that does not read is told how far
it came and cut, and a server that stops closes with 1012 between two events.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager, suppress
from typing import Any

import msgspec
from starlette.types import Message
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from stateroom.connection.model import Cursor
from stateroom.server import problems
from stateroom.server.body import Body
from stateroom.server.call import Call, Server
from stateroom.server.protocol import CUT, LAST_WORD
from stateroom.server.pulse import LAST_WORD_S, Watched
from stateroom.wire import json

Events = AsyncGenerator[tuple[Cursor, dict[str, Any]] | None, None]
Shape = Callable[[Cursor, dict[str, Any]], dict[str, Any]]
DONE, RESTART, BROKEN, LATER = 1000, 1012, 1011, 1013  # close codes


class SocketEndpoint(msgspec.Struct, frozen=True):
    """One place that takes WebSockets."""

    path: str
    handle: Callable[[Call, WebSocket], Awaitable[None]]
    summary: str
    query: tuple[str, ...] = ()


async def respond(server: Server, endpoint: SocketEndpoint, websocket: WebSocket) -> None:
    """Take a socket through the door and hand it to its place. What is refused before it was accepted is answered like
    any request."""
    try:
        scope = server.auth.scope(websocket)
        await endpoint.handle(Call(server, websocket, scope, body=Body({}, {})), websocket)
    except (WebSocketDisconnect, OSError):  # the reader is gone
        return
    except Exception as error:  # noqa: BLE001 — the face: nothing may pass it without an answer
        if websocket.application_state is WebSocketState.CONNECTING:
            await websocket.send_denial_response(problems.answer(error))
        else:
            await say(websocket, problems.frame(error))
            await websocket.close(BROKEN)


async def say(websocket: WebSocket, frame: dict[str, Any]) -> None:
    await websocket.send(_text(frame))


async def tell(websocket: WebSocket, stream: Watched, events: Events, *, shape: Shape) -> None:
    """Send the events until the run's end. When `stream.why` is set afterwards it had to end before."""
    with suppress(TimeoutError):  # the socket takes nothing
        async with aclosing(events):
            async for found in events:
                if stream.why:
                    return
                if found is None:
                    stream.spoken = asyncio.get_running_loop().time()  # the protocol itself gives signs of life
                    continue
                await stream.put(websocket.send, _text(shape(*found)))
                stream.cursor = found[0]


@contextmanager
def leaving(websocket: WebSocket, stream: Watched) -> Iterator[None]:
    """Ends the stream when its reader goes. What it says meanwhile is not listened to."""

    async def gone() -> None:
        while (await websocket.receive())["type"] != "websocket.disconnect":
            pass
        stream.end("gone")

    listening = asyncio.create_task(gone(), name="socket")
    try:
        yield
    finally:
        listening.cancel()


async def leave(websocket: WebSocket, stream: Watched) -> None:
    """Close the socket as its stream ended, with the cursor to go on from where it has not come to its end."""
    cursor = str(stream.cursor)
    match stream.why:
        case "lagged":
            if (last_word := websocket.scope.get("extensions", {}).get(LAST_WORD)) is not None:
                last_word(json.encode({"type": "lagged", "cursor": cursor}), LATER, cursor)
        case "stopping":
            await _close(websocket, RESTART, cursor)
        case "":
            await _close(websocket, DONE, "")


async def _close(websocket: WebSocket, code: int, reason: str) -> None:
    try:
        async with asyncio.timeout(LAST_WORD_S):
            await websocket.close(code, reason)
    except TimeoutError:
        websocket.scope.get("extensions", {}).get(CUT, lambda: None)()


def _text(frame: dict[str, Any]) -> Message:
    return {"type": "websocket.send", "text": json.encode(frame).decode()}
