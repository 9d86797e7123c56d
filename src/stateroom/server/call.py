"""One request on its way through: who asks, for what, and how the answer leaves. Shared by every route."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar

import msgspec
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.types import ASGIApp

from stateroom import given, ids, limits
from stateroom.batch import ClaimKey
from stateroom.errors import InvalidInput, KeyReused, Known, Unavailable
from stateroom.principal import Scope
from stateroom.server import body as bodies
from stateroom.server import problems
from stateroom.server.auth import Auth
from stateroom.server.body import Body
from stateroom.server.pulse import Pulse
from stateroom.stack import Stateroom
from stateroom.wire import json

T = TypeVar("T")
DRAIN_S = 0.6  # how long an answer that is being waited for may still take when the server stops
GONE_S = 1.2  # by then a server that stops has nothing to do but to close its store
BACKOFF_S_MAX = 8.0  # how long the openai client waits at most before it tries again
_READ_TIMEOUT = "x-stainless-read-timeout"
_canonical = msgspec.json.Encoder(order="deterministic").encode


class Server:
    """What all requests share. `stopping` is set when the server goes down."""

    def __init__(self, room: Stateroom, auth: Auth, *, heartbeat_s: float = limits.SSE_HEARTBEAT_S) -> None:
        self.room = room
        self.auth = auth
        self.pulse = Pulse(room.backend, heartbeat_s=heartbeat_s)
        self.stopping = asyncio.Event()
        self._stopped_at = 0.0

    def stop(self) -> None:
        """Go down: streams end, waiting ends soon."""
        self._stopped_at = self._stopped_at or asyncio.get_running_loop().time()
        self.stopping.set()
        self.pulse.stop()

    def grace_s(self) -> float:
        """What is left of a server's time to go, for turns that are being worked on; what is not done by then is
        recovered at the next start."""
        now = asyncio.get_running_loop().time()
        return max(0.1, GONE_S - (now - (self._stopped_at or now)))

    async def unless_stopped(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for `work`. When the server stops first it is Unavailable: what was accepted goes on, a retry finds it."""
        task, stop = asyncio.create_task(work), asyncio.create_task(self.stopping.wait())
        try:
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({task}, timeout=DRAIN_S)
            if not task.done():
                raise Unavailable("The server is going down; ask again in a moment.", code="shutting_down")
            return task.result()
        finally:
            task.cancel()
            stop.cancel()


class Call:
    """A request that passed the door. `key` is its Idempotency-Key; `headers` leave with the answer. `data` is a body that its
    route reads itself."""

    def __init__(self, server: Server, request: HTTPConnection, scope: Scope, *, body: Body, data: bytes = b"") -> None:
        self.server = server
        self.room = server.room
        self.request = request
        self.scope = scope
        self.body = body
        self.data = data
        self.key = _key(request)
        self.made = 0  # the version of a session that this request makes, or made when it came first
        self.headers: dict[str, str] = {}

    def path_id(self, name: str, kind: str) -> bytes:
        """An id of the path. NotFound for what cannot be one."""
        return ids.parse(kind, self.request.path_params[name])

    def query(self, name: str) -> str | None:
        return self.request.query_params.get(name) or None

    def query_id(self, name: str, kind: str) -> bytes:
        """An id of the query, NIL when it is not there."""
        given = self.query(name)
        return ids.parse(kind, given) if given is not None else ids.NIL

    def query_int(self, name: str) -> int | None:
        """A whole number of the query that is not negative."""
        given = self.query(name)
        if given is None:
            return None
        if not given.isascii() or not given.isdigit() or len(given) > 15:
            raise InvalidInput(f"'{name}' is a whole number from 0 on.", code="number_invalid", param=name)
        return int(given)

    def query_flag(self, name: str) -> bool:
        given = self.query(name)
        if given not in (None, "true", "false"):
            raise InvalidInput(f"'{name}' is true or false.", code="flag_invalid", param=name)
        return given == "true"

    def limit(self) -> int:
        """The size of a page: 1 to 100, 20 when nothing is said."""
        given = self.query_int("limit")
        if given is None:
            return limits.PAGE_ITEMS_DEFAULT
        if not 1 <= given <= limits.PAGE_ITEMS_MAX:
            raise InvalidInput(f"'limit' lies between 1 and {limits.PAGE_ITEMS_MAX}.", code="limit_invalid", param="limit")
        return given

    def newest_first(self) -> bool:
        """The order of a page: desc when nothing is said."""
        given = self.query("order")
        if given not in (None, "asc", "desc"):
            raise InvalidInput("'order' is asc or desc.", code="order_invalid", param="order")
        return given != "asc"

    def retry_ms(self) -> int:
        """How far back the first try of this request may lie, if its client says that it repeats one (D5): each try
        may have waited for its read timeout, and then for its turn to try again."""
        count, timeout = self.request.headers.get("x-stainless-retry-count", ""), self.request.headers.get(_READ_TIMEOUT, "")
        if not count.isdecimal() or int(count[:3]) == 0:
            return 0
        try:
            waited_s = float(timeout) + BACKOFF_S_MAX
        except ValueError:
            return limits.RETRY_ATTACH_MS_MAX
        back_ms = int(count[:3]) * waited_s * 1000
        return int(back_ms) if 0 < back_ms < limits.RETRY_ATTACH_MS_MAX else limits.RETRY_ATTACH_MS_MAX

    async def once(
        self,
        operation: str,
        *,
        ref: bytes,
        act: Callable[[ClaimKey | None], Awaitable[T]],
        again: Callable[[bytes], Awaitable[T]],
    ) -> T:
        """`act`, at most once per Idempotency-Key; the next time `again` shows what it made then. KeyReused when the
        key came with another request."""
        claim = self._claim(operation, ref)
        try:
            return await act(claim)
        except Known as known:
            if claim is None or known.fingerprint != claim.fingerprint:
                raise KeyReused("This idempotency key was used for another request.", param="Idempotency-Key") from known
            self.replayed()
            self.made = known.version
            return await again(known.ref)

    def replayed(self) -> None:
        self.headers["Idempotency-Replayed"] = "true"

    def _claim(self, operation: str, ref: bytes) -> ClaimKey | None:
        if self.key is None:
            return None
        asked = [self.request.path_params, self.request.headers.get("if-match", ""), self.body.value or self.data]
        return ClaimKey(
            operation=operation,
            key=self.key,
            fingerprint=hashlib.sha256(_canonical(asked)).digest(),
            ref=ref,
            home=ids.key_home(self.scope.tenant, self.scope.principal, self.key),
        )


Answer = Mapping[str, Any] | bytes | ASGIApp  # an object, its JSON, or an answer of its own
Handler = Callable[[Call], Awaitable[Answer]]


class Endpoint(msgspec.Struct, frozen=True):
    """One thing that can be asked. `body` and `answer` name schemas of the OpenAPI document; `open`: without a token;
    `raw`: the route reads the body itself."""

    method: str
    path: str
    handle: Handler
    summary: str
    body: str = ""
    answer: str = ""
    query: tuple[str, ...] = ()
    open: bool = False
    raw: bool = False


async def respond(server: Server, endpoint: Endpoint, request: Request) -> ASGIApp:
    """Take a request through the door, hand it to its route, and turn whatever comes of it into an answer."""
    try:
        scope = Scope("", "") if endpoint.open else server.auth.scope(request)
        takes = request.method in ("POST", "PATCH")
        body = await bodies.read(request) if takes and not endpoint.raw else Body({}, {})
        data = await bodies.read_bytes(request) if takes and endpoint.raw else b""
        call = Call(server, request, scope, body=body, data=data)
        answer = await endpoint.handle(call)
        if not isinstance(answer, Mapping | bytes):
            return answer
        content = answer if isinstance(answer, bytes) else json.encode(answer)
        return Response(content, 200, call.headers, "application/json")
    except Exception as error:  # noqa: BLE001 — the face: nothing may pass it without an answer
        return problems.answer(error)


def page(data: list[Any], names: list[str], more: bool) -> dict[str, Any]:
    """A list as OpenAI shows it. `names` are the ids of `data`."""
    first, last = (names[0], names[-1]) if names else (None, None)
    return {"object": "list", "data": data, "first_id": first, "last_id": last, "has_more": more}


def _key(request: HTTPConnection) -> str | None:
    key = request.headers.get("idempotency-key")
    return None if key is None else checked_key(key)


def checked_key(key: str) -> str:
    return given.key(key, "Idempotency-Key")
