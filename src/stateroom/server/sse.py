"""Server-sent events: a run's stream on its way to one reader.

Each event carries its cursor as `id:`. A reader that goes away ends only this answer, never the run; a server that
stops ends the stream between two events, and the reader comes back with its last id. One that does not read is told how
far it came (`lagged`) and cut. Nothing is held but one page: the next event is read when the socket has taken the one
before.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from stateroom.connection.model import Cursor
from stateroom.errors import StateroomError
from stateroom.server import problems
from stateroom.server.call import Server
from stateroom.server.protocol import CUT, LAST_WORD
from stateroom.server.pulse import LAST_WORD_S, Watched
from stateroom.wire import json

Events = AsyncGenerator[tuple[Cursor, dict[str, Any]] | None, None]
HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",  # proxies must not gather events
}
# A comment is a line of its own. An empty line after it would be an event without data for the openai client, which
# keeps the last id as a reason to tell one.
HEARTBEAT = b": still here\n"


class EventStream:
    """The answer, as an ASGI application. `stream` says whose and how far; `events` go on from there and look up when
    its bell is rung."""

    def __init__(self, server: Server, stream: Watched, events: Events, *, headers: dict[str, str]) -> None:
        self._server, self._stream, self._events = server, stream, events
        self._headers = {**HEADERS, **headers}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(name.lower().encode(), value.encode()) for name, value in self._headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        leaving = asyncio.create_task(_gone(receive))
        leaving.add_done_callback(lambda _: self._stream.end("gone"))
        try:
            with self._server.pulse.watching(self._stream), suppress(TimeoutError):  # the socket takes nothing
                await self._write(send)
        finally:
            leaving.cancel()
        extensions = scope.get("extensions", {})
        if self._stream.why == "lagged":
            self._tell_lagged(extensions.get(LAST_WORD))
        elif self._stream.why != "gone":
            try:
                async with asyncio.timeout(LAST_WORD_S):
                    await send(_body(b"", more=False))
            except TimeoutError:
                extensions.get(CUT, lambda: None)()

    async def _write(self, send: Send) -> None:
        stream = self._stream
        try:
            async with aclosing(self._events) as events:
                async for found in events:
                    if stream.why:
                        return
                    if found is not None:
                        await stream.put(send, _body(frame(*found)))
                        stream.cursor = found[0]  # only now: what the socket did not take was not told
                    elif self._server.pulse.is_quiet(stream):
                        await stream.put(send, _body(HEARTBEAT))
        except StateroomError as error:
            await stream.put(send, _body(self._broken(error.reason, error.message)))
        except TimeoutError:
            raise
        except OSError:  # the reader is gone
            return
        except Exception as error:  # noqa: BLE001 — the face
            problems.log.error("a stream met a fault", exc_info=error)
            await stream.put(send, _body(self._broken("internal_error", "The server met a fault.")))

    def _tell_lagged(self, last_word: Callable[[bytes], None] | None) -> None:
        """Behind what the socket still holds: how far this reader came. Without such a way it is just cut."""
        if last_word is not None:
            told = {"type": "lagged", "cursor": str(self._stream.cursor), "sequence_number": self._stream.cursor.seq - 1}
            last_word(b"event: lagged\ndata: %s\n\n" % json.encode(told))

    def _broken(self, code: str, message: str) -> bytes:
        """The stream cannot go on: an event the OpenAI client knows, without an id, so that no cursor moves."""
        event = {"type": "error", "code": code, "message": message, "param": None, "sequence_number": self._stream.cursor.seq}
        return b"event: error\ndata: %s\n\n" % json.encode(event)


def frame(cursor: Cursor, event: dict[str, Any]) -> bytes:
    return b"id: %s\nevent: %s\ndata: %s\n\n" % (str(cursor).encode(), event["type"].encode(), json.encode(event))


def _body(chunk: bytes, *, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": chunk, "more_body": more}


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
