"""Server-sent events: a run's stream on its way to one reader.

Each event carries its cursor as `id:`. A reader that goes away ends only this answer, never the run; a server that
stops ends the stream between two events, and the reader comes back with its last id. Nothing is held but one page:
the next event is read when the socket has taken the one before.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing, suppress
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from stateroom.connection.model import Cursor
from stateroom.errors import StateroomError
from stateroom.server import problems
from stateroom.server.call import Server
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
LAST_WORD_S = 0.5  # a reader that does not read cannot hold up a server that stops


class EventStream:
    """The answer, as an ASGI application. `after` is the sequence number before the first event."""

    def __init__(self, server: Server, events: Events, *, headers: dict[str, str], after: int) -> None:
        self._server, self._events = server, events
        self._headers = {**HEADERS, **headers}
        self._number = after

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(name.lower().encode(), value.encode()) for name, value in self._headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        ends = (self._write(send), _gone(receive), self._server.stopping.wait())
        await _first(*ends)
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORD_S):
                await send(_body(b"", more=False))

    async def _write(self, send: Send) -> None:
        try:
            async with aclosing(self._events), aclosing(self._chunks()) as chunks:
                async for chunk in chunks:
                    await send(_body(chunk))
        except StateroomError as error:
            await send(_body(self._broken(error.reason, error.message)))
        except OSError:  # the reader is gone
            return
        except Exception as error:  # noqa: BLE001 — the face
            problems.log.error("a stream met a fault", exc_info=error)
            await send(_body(self._broken("internal_error", "The server met a fault.")))

    async def _chunks(self) -> AsyncGenerator[bytes, None]:
        now = asyncio.get_running_loop().time
        spoken = now()
        async for found in self._events:
            if found is not None:
                cursor, event = found
                self._number = event["sequence_number"]
                yield b"id: %s\nevent: %s\ndata: %s\n\n" % (str(cursor).encode(), event["type"].encode(), json.encode(event))
                spoken = now()
            elif now() - spoken >= self._server.heartbeat_s:
                yield HEARTBEAT
                spoken = now()

    def _broken(self, code: str, message: str) -> bytes:
        """The stream cannot go on: an event the OpenAI client knows, without an id, so that no cursor moves."""
        event = {"type": "error", "code": code, "message": message, "param": None, "sequence_number": self._number + 1}
        return b"event: error\ndata: %s\n\n" % json.encode(event)


def _body(chunk: bytes, *, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": chunk, "more_body": more}


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _first(*ends: Coroutine[Any, Any, Any]) -> None:
    """Until one of them ends; the others are stopped."""
    tasks = [asyncio.create_task(end) for end in ends]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
