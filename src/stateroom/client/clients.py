"""The two clients: the same calls over the same exchanges, with and without an event loop."""

from __future__ import annotations

import json as stdlib_json
import threading
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Any, Final

import anyio
import httpx2
from msgspec.structs import replace

from stateroom import ids
from stateroom.client.desks import AsyncDesk, Desk
from stateroom.client.exchange import Exchange, Request
from stateroom.client.model import Event, Reply, reply_of, run_of
from stateroom.clock import SystemClock
from stateroom.errors import InvalidInput

Input = str | Sequence[Mapping[str, Any]]
CONNECT_S_MAX: Final = 5.0
PATIENCE_S: Final = 30.0  # a server that is started anew is back by then
SILENCE_S_MAX: Final = 45.0  # three signs of life that did not come
_ENDED: Final = "it ended too soon"


class _Calls:
    """What both clients ask, as exchanges, and how they connect."""

    def __init__(self, base_url: str, token: str | None, *, patience_s: float, silence_s: float) -> None:
        self._clock, self._patience_s = SystemClock(), patience_s
        headers = {"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {token}"} if token else {})
        self._settings: dict[str, Any] = {
            "base_url": _checked(base_url),
            "headers": headers,
            "timeout": httpx2.Timeout(silence_s, connect=CONNECT_S_MAX, pool=None),
            "limits": httpx2.Limits(max_connections=None, max_keepalive_connections=20),
        }

    def _take(self, body: Mapping[str, Any], key: str | None, *, streamed: bool) -> Exchange:
        """A turn. Its key makes tries after the first one safe; without one from the caller it gets one here."""
        key = key or self._new_key()
        headers = {"Content-Type": "application/json", "Idempotency-Key": key}
        request = Request("POST", "/v1/responses", headers, _encoded({**body, "stream": streamed}))
        return Exchange(request, clock=self._clock, patience_s=self._patience_s)

    def _read(self, run: str, after: str) -> Exchange:
        return Exchange(run=run_of(run), after=after, clock=self._clock, patience_s=self._patience_s)

    def _exchange(self, first: Request | None = None, *, watch: str = "", after: str = "", keyed: bool = False) -> Exchange:
        """Something asked of a session. A key makes tries of a change after the first one safe."""
        if first is not None and keyed:
            first = replace(first, headers={**first.headers, "Idempotency-Key": self._new_key()})
        return Exchange(first, watch=watch, after=after, clock=self._clock, patience_s=self._patience_s)

    def _new_key(self) -> str:
        return ids.text("turn", ids.new(ids.new_home(), self._clock.wall_ms()))

    def _open(self, fields: Mapping[str, Any]) -> Exchange:
        return self._exchange(Request("POST", "/v1/sessions", {"Content-Type": "application/json"}, _encoded(fields)), keyed=True)

    def _ask(self, method: str, run: str, verb: str = "") -> Exchange:
        request = Request(method, f"/v1/runs/{run_of(run)}{verb}")
        return Exchange(request, clock=self._clock, patience_s=self._patience_s)


class AsyncClient(_Calls):
    """A Stateroom server at `base_url`. Use as an async context manager, or `close` it; calls may run side by side.

    `patience_s`: how long a server may be out of reach before a call fails with Unavailable. `silence_s`: how long a
    connection may bring nothing before it is made anew (a server gives a sign of life every 15 s). Every other failure is
    the StateroomError that the server met.
    """

    def __init__(
        self, base_url: str, token: str | None = None, *, patience_s: float = PATIENCE_S, silence_s: float = SILENCE_S_MAX
    ) -> None:
        super().__init__(base_url, token, patience_s=patience_s, silence_s=silence_s)
        self._http = httpx2.AsyncClient(**self._settings)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        """Let go of the connections. Runs go on."""
        await self._http.aclose()

    async def turn(
        self,
        input: Input,
        *,
        conversation: str = "",
        previous: str = "",
        agent: str = "",
        key: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Reply:
        """Take a turn and wait for its end, or until it waits for somebody, as `Room.turn`. Without a place it is taken
        outside of any conversation. With a `key` of yours, asking again later, or elsewhere, gives the same answer."""
        body = turn_body(input, conversation=conversation, previous=previous, agent=agent, options=options)
        return reply_of(await self._answer(self._take(body, key, streamed=False)))

    async def stream(
        self,
        input: Input,
        *,
        conversation: str = "",
        previous: str = "",
        agent: str = "",
        key: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> AsyncGenerator[Event, None]:
        """Like `turn`, and yields each event of the run exactly once, as they come, up to the terminal one."""
        body = turn_body(input, conversation=conversation, previous=previous, agent=agent, options=options)
        async with aclosing(self._events(self._take(body, key, streamed=True))) as events:
            async for event in events:
                yield event

    async def follow(self, run: str, *, after: str = "") -> AsyncGenerator[Event, None]:
        """A run's events behind the cursor `after`, each exactly once, live until its end; `run` is a run's or response's
        id. Gone (410) when the cursor belongs to another stream or the answer was not kept."""
        async with aclosing(self._events(self._read(run, after))) as events:
            async for event in events:
                yield event

    async def run(self, run: str) -> dict[str, Any]:
        """A run as it stands now, as the server shows it: `status`, `usage`, `error`, `conversation` and so on."""
        return await self._answer(self._ask("GET", run))

    async def cancel(self, run: str) -> dict[str, Any]:
        """Ask a run to end; the run after it. One that has ended is returned as it is."""
        return await self._answer(self._ask("POST", run, "/cancel"))

    def session(self, session: str, *, agent: str = "") -> AsyncDesk:
        """A session by its id; nothing is asked yet. With `agent` as that agent sees it, and what it changes is changed by
        it: see `AsyncDesk.allow`."""
        return AsyncDesk(self, session, agent)

    async def open_session(self, **fields: Any) -> AsyncDesk:
        """A session of its own: `slots`, `kinds`, `schemas`, `metadata`, `ttl_s`, `max_s`, `durability`, `id`."""
        return AsyncDesk(self, (await self._answer(self._open(fields)))["id"])

    async def _answer(self, exchange: Exchange) -> dict[str, Any]:
        async with aclosing(self._events(exchange)) as events:
            async for _ in events:
                pass
        assert exchange.answer is not None
        return exchange.answer

    async def _events(self, exchange: Exchange) -> AsyncGenerator[Event, None]:
        while not exchange.over:
            await anyio.sleep(exchange.wait_s)
            try:
                async with aclosing(self._connection(exchange)) as events:
                    async for event in events:
                        yield event
            except httpx2.TransportError as error:
                exchange.cut(_why(error))

    async def _connection(self, exchange: Exchange) -> AsyncGenerator[Event, None]:
        asked = exchange.request()
        async with self._http.stream(asked.method, asked.path, headers=asked.headers, content=asked.content) as reply:
            if not exchange.begins(reply.status_code, reply.headers):
                exchange.answered(reply.status_code, reply.headers, await reply.aread())
                return
            async for piece in reply.aiter_raw():
                for event in exchange.feed(piece):
                    yield event
                if exchange.done:
                    return
        exchange.cut(_ENDED)


class Client(_Calls):
    """`AsyncClient`, waiting. Use as a context manager, or `close` it; several threads may use one."""

    def __init__(
        self, base_url: str, token: str | None = None, *, patience_s: float = PATIENCE_S, silence_s: float = SILENCE_S_MAX
    ) -> None:
        super().__init__(base_url, token, patience_s=patience_s, silence_s=silence_s)
        self._http = httpx2.Client(**self._settings)
        self._closed = threading.Event()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """As `AsyncClient.close`."""
        self._closed.set()
        self._http.close()

    def turn(
        self,
        input: Input,
        *,
        conversation: str = "",
        previous: str = "",
        agent: str = "",
        key: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Reply:
        """As `AsyncClient.turn`."""
        body = turn_body(input, conversation=conversation, previous=previous, agent=agent, options=options)
        return reply_of(self._answer(self._take(body, key, streamed=False)))

    def stream(
        self,
        input: Input,
        *,
        conversation: str = "",
        previous: str = "",
        agent: str = "",
        key: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Generator[Event, None, None]:
        """As `AsyncClient.stream`."""
        body = turn_body(input, conversation=conversation, previous=previous, agent=agent, options=options)
        yield from self._events(self._take(body, key, streamed=True))

    def follow(self, run: str, *, after: str = "") -> Generator[Event, None, None]:
        """As `AsyncClient.follow`."""
        yield from self._events(self._read(run, after))

    def run(self, run: str) -> dict[str, Any]:
        """As `AsyncClient.run`."""
        return self._answer(self._ask("GET", run))

    def cancel(self, run: str) -> dict[str, Any]:
        """As `AsyncClient.cancel`."""
        return self._answer(self._ask("POST", run, "/cancel"))

    def session(self, session: str, *, agent: str = "") -> Desk:
        """As `AsyncClient.session`."""
        return Desk(self, session, agent)

    def open_session(self, **fields: Any) -> Desk:
        """As `AsyncClient.open_session`."""
        return Desk(self, self._answer(self._open(fields))["id"])

    def _answer(self, exchange: Exchange) -> dict[str, Any]:
        for _ in self._events(exchange):
            pass
        assert exchange.answer is not None
        return exchange.answer

    def _events(self, exchange: Exchange) -> Generator[Event, None, None]:
        while not exchange.over:
            self._closed.wait(exchange.wait_s)
            try:
                yield from self._connection(exchange)
            except httpx2.TransportError as error:
                exchange.cut(_why(error))

    def _connection(self, exchange: Exchange) -> Generator[Event, None, None]:
        asked = exchange.request()
        with self._http.stream(asked.method, asked.path, headers=asked.headers, content=asked.content) as reply:
            if not exchange.begins(reply.status_code, reply.headers):
                exchange.answered(reply.status_code, reply.headers, reply.read())
                return
            for piece in reply.iter_raw():
                yield from exchange.feed(piece)
                if exchange.done:
                    return
        exchange.cut(_ENDED)


def turn_body(input: Input, *, conversation: str, previous: str, agent: str, options: Mapping[str, Any] | None) -> dict[str, Any]:
    """A turn as the wire has it. `options` that name the same things give way."""
    place = {"conversation": conversation, "previous_response_id": previous and "resp_" + previous.partition("_")[2]}
    named = {"model": agent, **place}
    return {**(options or {}), **{name: value for name, value in named.items() if value}, "input": input}


def _encoded(body: Mapping[str, Any]) -> bytes:
    try:
        return stdlib_json.dumps(body).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"This cannot be sent as JSON: {error}", code="json_invalid") from error


def _checked(base_url: str) -> str:
    """The server's address, with or without the /v1 that other clients want."""
    address = base_url.rstrip("/").removesuffix("/v1")
    if not address.startswith(("http://", "https://")):
        raise InvalidInput(f"A server's address begins with http:// or https://, not {base_url[:80]!r}.", param="base_url")
    return address


def _why(error: Exception) -> str:
    return f"{type(error).__name__} {error}".strip()
