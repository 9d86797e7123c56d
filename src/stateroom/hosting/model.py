"""A model endpoint as an agent: any OpenAI-compatible URL, streaming. Needs the `server` extra (httpx2)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing
from types import ModuleType
from typing import Any, Final, Literal, Protocol

import anyio
import httpx2
import msgspec

from stateroom.errors import InvalidInput
from stateroom.flows.agent import AgentEvent, End, Turn
from stateroom.hosting import completions_wire, responses_wire
from stateroom.run.model import Style
from stateroom.wire import json
from stateroom.wire.frames import Frames

Wire = Literal["responses", "chat"]
TRIES_MAX: Final = 3
RETRY_S_MAX: Final = 30.0  # an endpoint that wants us to wait longer has failed this turn
CONNECT_S_MAX: Final = 10.0
REFUSAL_BYTES_MAX: Final = 65_536
_WIRES: Mapping[str, ModuleType] = {"responses": responses_wire, "chat": completions_wire}


class Reader(Protocol):
    """What both wires give: events in, agent events out."""

    ended: bool

    def read(self, event: Mapping[str, Any]) -> Iterator[AgentEvent]: ...

    def close(self) -> Iterator[AgentEvent]: ...


class ModelAgent:
    """Asks `base_url` (with its `/v1`, if it has one) for every turn, and passes on what it streams.

    A request that did not begin to answer (no connection, 408, 409, 429, 5xx) is tried again, as `Retry-After` says. An
    answer that began is never asked for twice: whatever cuts it is a failure of the turn, `model_stream_cut`; anything
    else the endpoint does wrong is `model_error`, or the code it tells. `timeout_s`: how long it may be silent.
    """

    style: Style = "responses"

    def __init__(
        self,
        name: str,
        base_url: str,
        *,
        model: str,
        api_key: str | None = None,
        wire: Wire = "responses",
        timeout_s: float = 300.0,
    ) -> None:
        self.name = name
        self._model = model
        self._wire = _WIRES[wire]
        self._url = httpx2.URL(base_url.rstrip("/") + self._wire.PATH)
        self._headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._timeout = httpx2.Timeout(timeout_s, connect=min(timeout_s, CONNECT_S_MAX))
        self._tls = httpx2.create_ssl_context()  # costs more than a request: made once

    async def work(self, turn: Turn) -> AsyncIterator[AgentEvent]:
        body = json.encode(self._wire.request(turn, self._model))
        async with httpx2.AsyncClient(verify=self._tls, timeout=self._timeout) as client:
            reply = await self._ask(client, body)
            if isinstance(reply, End):
                yield reply
                return
            async with aclosing(reply), aclosing(self._listen(reply)) as events:
                async for event in events:
                    yield event

    async def _ask(self, client: httpx2.AsyncClient, body: bytes) -> httpx2.Response | End:
        """A reply that begins to answer, or why there is none."""
        for tries in range(1, TRIES_MAX + 1):
            request = client.build_request("POST", self._url, content=body, headers=self._headers)
            try:
                reply = await client.send(request, stream=True)
                if reply.is_success:
                    return reply
                async with aclosing(reply):
                    failed = await _refusal(reply)
                wait_s = _retry_s(reply, tries)
            except httpx2.RequestError as error:
                failed = End("failed", reason="model_error", message=f"No answer from {self._url}: {error!r}")
                wait_s = None if isinstance(error, httpx2.ReadTimeout) else _backoff_s(tries)
            if wait_s is None or wait_s > RETRY_S_MAX or tries == TRIES_MAX:
                return failed
            await anyio.sleep(wait_s)
        raise AssertionError("the last try returns")

    async def _listen(self, reply: httpx2.Response) -> AsyncGenerator[AgentEvent, None]:
        """The events of an answer that began, and what cut it, if anything did."""
        reader: Reader = self._wire.Reader()
        try:
            async with aclosing(_frames(reply)) as frames:
                async for data in frames:
                    for event in reader.read(json.decode_object(json.without_nul(data))):
                        yield event
                    if reader.ended:
                        return
            for event in reader.close():
                yield event
            if not reader.ended:
                yield _cut("the stream ended before the answer did")
        except httpx2.RequestError as error:
            yield _cut(f"{type(error).__name__} {error}".strip())
        except (InvalidInput, msgspec.ValidationError) as error:
            yield End("failed", reason="model_error", message=f"The model sent what is no event: {error}")


async def _frames(reply: httpx2.Response) -> AsyncGenerator[bytes, None]:
    """The data of every frame, up to the mark with which some endpoints say that no more will come."""
    frames = Frames()
    async for piece in reply.aiter_bytes():
        for frame in frames.feed(piece):
            if frame.body == b"[DONE]":
                return
            yield frame.body


def _cut(why: str) -> End:
    return End("failed", reason="model_stream_cut", message=f"The model's answer was cut: {why}.")


async def _refusal(reply: httpx2.Response) -> End:
    """What the endpoint says about its own error, bounded."""
    body = b""
    async for piece in reply.aiter_bytes():
        body += piece
        if len(body) > REFUSAL_BYTES_MAX:
            break
    try:
        told = responses_wire.failure(json.decode_object(body).get("error"))
        message = told.message if told.reason == "model_error" else f"{told.reason}: {told.message}"
    except InvalidInput:
        message = body[:200].decode(errors="replace")
    return End("failed", reason="model_error", message=f"The model endpoint answered {reply.status_code}: {message}")


def _retry_s(reply: httpx2.Response, tries: int) -> float | None:
    """How long to wait before asking again; None when asking again makes no sense."""
    status, headers = reply.status_code, reply.headers
    if headers.get("x-should-retry") == "false" or not (status in (408, 409, 429) or status >= 500):
        return None
    for name, unit_s in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            return max(0.0, float(headers[name]) * unit_s)
        except (KeyError, ValueError):  # a date: nobody sends one here, and clocks differ
            continue
    return _backoff_s(tries)


def _backoff_s(tries: int) -> float:
    return 0.25 * 2.0**tries
