"""A model endpoint for tests: a real server on a free loopback port that speaks both wires as the test tells it to."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import anyio
import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route


class Refusal(msgspec.Struct):
    """An HTTP error with its headers."""

    status: int
    headers: dict[str, str] = {}
    body: bytes = b'{"error": {"message": "no", "code": "some_code", "type": "x"}}'


class Stream(msgspec.Struct):
    """Server-sent events: `events` as JSON (bytes as they are), sent in pieces of `piece_bytes`. `cut` breaks the
    connection in the middle of the body; `done` ends it with the mark of the older wire; `pause_s` comes at the end."""

    events: Sequence[Any]
    piece_bytes: int = 1 << 20
    line_end: str = "\n"
    cut: bool = False
    done: bool = False
    pause_s: float = 0.0

    def pieces(self) -> Iterator[bytes]:
        frames = [event if isinstance(event, bytes) else self._frame(event) for event in self.events]
        whole = b"".join(frames) + (b"data: [DONE]\n\n" if self.done else b"")
        return (whole[at : at + self.piece_bytes] for at in range(0, len(whole), self.piece_bytes))

    def _frame(self, event: Mapping[str, Any]) -> bytes:
        lines = [f"event: {event['type']}"] if "type" in event else []
        lines += [f"data: {json.dumps(event, ensure_ascii=False)}", "", ""]
        return self.line_end.join(lines).encode()


class Endpoint:
    """Answers with what is in `script`, in order, and keeps what it was asked."""

    def __init__(self) -> None:
        self.script: list[Refusal | Stream] = []
        self.asked: list[tuple[str, dict[str, Any], dict[str, str]]] = []
        self.url = ""

    async def answer(self, request: Request) -> Response:
        self.asked.append((request.url.path, await request.json(), dict(request.headers)))
        scripted = self.script.pop(0)
        if isinstance(scripted, Refusal):
            return Response(scripted.body, scripted.status, scripted.headers)
        return StreamingResponse(self._body(scripted), media_type="text/event-stream")

    async def _body(self, stream: Stream) -> AsyncIterator[bytes]:
        for piece in stream.pieces():
            yield piece
        await anyio.sleep(stream.pause_s)
        if stream.cut:
            raise ConnectionError("cut on purpose")


@contextmanager
def serving(endpoint: Endpoint) -> Iterator[Endpoint]:
    routes = [Route(path, endpoint.answer, methods=["POST"]) for path in ("/v1/responses", "/v1/chat/completions")]
    server = uvicorn.Server(uvicorn.Config(Starlette(routes=routes), log_level="critical", lifespan="off"))
    listening = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    endpoint.url = f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
    try:
        yield endpoint
    finally:
        server.should_exit = True
        thread.join(10)
        listening.close()
