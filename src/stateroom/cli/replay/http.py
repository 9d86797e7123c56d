"""A server as a target. Needs the `server` extra (httpx2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import httpx2

from stateroom.cli.replay.targets import Answered, Asked, TryAgain
from stateroom.errors import StateroomError, Unavailable
from stateroom.wire import json
from stateroom.wire.frames import Frames

_TIMEOUT_S = 60.0
_LATER = frozenset({408, 425, 429, 502, 503, 504})  # statuses after which the same request may be sent again


class HttpTarget:
    """A server started with `--tape`. Use as an async context manager."""

    def __init__(self, url: str, *, token: str = "") -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._client = httpx2.AsyncClient(base_url=url.rstrip("/"), headers=headers, timeout=_TIMEOUT_S)

    async def __aenter__(self) -> HttpTarget:
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._client.__aexit__(*error)

    async def begin(self, key: str) -> str:
        made = await self._ask("POST", "/v1/conversations", {}, key)
        return str(made.json()["id"])

    async def append(self, key: str, conversation: str, items: Sequence[Mapping[str, Any]]) -> None:
        await self._ask("POST", f"/v1/conversations/{conversation}/items", {"items": items}, key)

    async def turn(self, asked: Asked) -> Answered:
        body = {**asked.options, "conversation": asked.conversation, "input": asked.input}
        if asked.streamed:
            return await self._streamed(body, asked.key)
        reply = await self._ask("POST", "/v1/responses", body, asked.key)
        return _answered(reply.json(), reply)

    async def record(self, conversation: str) -> list[dict[str, Any]]:
        reply = await self._ask("GET", f"/v1/conversations/{conversation}/export")
        items: list[dict[str, Any]] = json.decode_trusted(reply.content)["items"]
        return items

    async def ready(self) -> bool:
        """Whether the server takes work."""
        try:
            return (await self._client.get("/readyz", timeout=2.0)).is_success
        except httpx2.TransportError:
            return False

    async def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None, key: str = "") -> httpx2.Response:
        content = None if body is None else json.encode(body)
        try:
            reply = await self._client.request(method, path, content=content, headers=_headers(key))
        except httpx2.TransportError as error:
            raise TryAgain(f"{type(error).__name__} {error}".strip()) from error
        _check(reply)
        return reply

    async def _streamed(self, body: Mapping[str, Any], key: str) -> Answered:
        """Read the turn's events to its end; a stream that is cut has no end."""
        content = json.encode({**body, "stream": True})
        last: dict[str, Any] = {}
        try:
            async with self._client.stream("POST", "/v1/responses", content=content, headers=_headers(key)) as reply:
                if not reply.is_success:
                    await reply.aread()
                    _check(reply)
                frames = Frames()
                async for piece in reply.aiter_raw():
                    for frame in frames.feed(piece):
                        last = json.decode_trusted(frame.body)
        except httpx2.TransportError as error:
            raise TryAgain(f"{type(error).__name__} {error}".strip()) from error
        ended = last.get("response")
        if not isinstance(ended, dict) or ended.get("status") in (None, "queued", "in_progress"):
            raise TryAgain("the stream was cut before its end")
        return _answered(ended, reply)


def _headers(key: str) -> dict[str, str]:
    return {"Content-Type": "application/json"} | ({"Idempotency-Key": key} if key else {})


def _check(reply: httpx2.Response) -> None:
    """TryAgain or a StateroomError unless the reply is a success."""
    if reply.is_success:
        return
    try:
        error = reply.json()["error"]
        message, code = str(error["message"]), str(error.get("code") or error.get("type"))
    except (ValueError, KeyError, TypeError):
        message, code = reply.text[:200] or f"status {reply.status_code}", "http_error"
    if reply.status_code in _LATER:
        raise TryAgain(f"{reply.status_code} {code}: {message}")
    if reply.status_code == 507:
        raise Unavailable(message, code=code)
    raise StateroomError(f"The server says {reply.status_code}: {message}", code=code)


def _answered(response: Mapping[str, Any], reply: httpx2.Response) -> Answered:
    error = response.get("error") or {}
    return Answered(
        response=str(response["id"]), status=str(response["status"]), error=str(error.get("code", "")),
        replayed=reply.headers.get("Idempotency-Replayed") == "true", outputs=response.get("output") or [],
    )  # fmt: skip
