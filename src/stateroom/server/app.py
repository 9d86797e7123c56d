"""The HTTP face: every route under `/v1` and without it, one door for all of them."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from urllib.parse import unquote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from stateroom import ids, limits
from stateroom.server import openapi, problems
from stateroom.server import websocket as sockets
from stateroom.server.auth import Auth, Token
from stateroom.server.call import Endpoint, Server, respond
from stateroom.server.routes import actions, conversations, desks, responses, runs, sessions, system, talk, watch
from stateroom.server.websocket import SocketEndpoint
from stateroom.stack import Stateroom

ENDPOINTS: tuple[Endpoint, ...] = (
    *responses.ENDPOINTS,
    *conversations.ENDPOINTS,
    *sessions.ENDPOINTS,
    *desks.ENDPOINTS,
    *watch.ENDPOINTS,
    *runs.ENDPOINTS,
    *actions.ENDPOINTS,
    *system.ENDPOINTS,
)
SOCKETS: tuple[SocketEndpoint, ...] = (*talk.SOCKETS, *runs.SOCKETS, *watch.SOCKETS)
PREFIXES = ("/v1", "")
SLASH = "\udc2f"  # half a character: what was decoded has none
_ENCODED_SLASH = re.compile(rb"%2[Ff]")


def create_app(
    room: Stateroom,
    *,
    tokens: Sequence[Token] | None = None,
    own_room: bool = False,
    heartbeat_s: float = limits.SSE_HEARTBEAT_S,
) -> Starlette:
    """The application over an open room. `tokens` None: everybody is `local`. `own_room`: close the room at shutdown.

    `app.state.server.stop()` ends open streams; whoever runs the application calls it before it waits for connections to
    close (stateroom.server.run does).
    """
    server = Server(room, Auth(tokens), heartbeat_s=heartbeat_s)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        server.stop()
        if own_room:
            await room.close(grace_s=server.grace_s())

    app = Starlette(
        routes=_routes(server),
        middleware=[Middleware(RequestIds), Middleware(Slashes)],
        exception_handlers={HTTPException: _http_error},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    app.state.server = server
    app.state.openapi = openapi.document(ENDPOINTS)
    return app


def _routes(server: Server) -> list[BaseRoute]:
    """One route per path, so that a wrong method is told all the right ones."""
    by_path: dict[str, dict[str, Endpoint]] = {}
    for endpoint in ENDPOINTS:
        by_path.setdefault(endpoint.path, {})[endpoint.method] = endpoint
    requests = [_route(server, prefix + path, methods) for prefix in PREFIXES for path, methods in by_path.items()]
    return [*requests, *(_socket(server, prefix, endpoint) for prefix in PREFIXES for endpoint in SOCKETS)]


def _route(server: Server, path: str, methods: dict[str, Endpoint]) -> Route:
    async def handle(request: Request) -> ASGIApp:
        _restore(request)
        return await respond(server, methods[request.method], request)

    route = Route(path, handle, methods=list(methods))
    route.methods = set(methods)  # no HEAD: a stream has none
    return route


def _socket(server: Server, prefix: str, endpoint: SocketEndpoint) -> WebSocketRoute:
    async def handle(websocket: WebSocket) -> None:
        _restore(websocket)
        await sockets.respond(server, endpoint, websocket)

    return WebSocketRoute(prefix + endpoint.path, handle)


def _restore(request: HTTPConnection) -> None:
    """What was said with slashes in it, with slashes."""
    request.scope["path_params"] = {name: value.replace(SLASH, "/") for name, value in request.path_params.items()}


async def _http_error(_: Request, error: Exception) -> Response:
    return problems.answer(error)


class Slashes:
    """A `%2F` belongs to a name (of a slot, of a checkpoint), and is no end of it. Servers decode the whole path before
    anybody looks for a route, so until then another character stands for it, one that no path can have."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        parts = _ENCODED_SLASH.split(scope.get("raw_path") or b"")
        if len(parts) > 1:
            names = [unquote(part.decode("latin-1")) for part in parts]
            before = scope["path"].removesuffix("/".join(names))  # where a proxy has mounted us
            scope = {**scope, "path": before + SLASH.join(names)}
        await self._app(scope, receive, send)


class RequestIds:
    """Gives every answer an `x-request-id`; the openai client shows it with its exceptions."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = b"req_" + ids.salt().hex().encode()

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", name)]
            await send(message)

        await self._app(scope, receive, named if scope["type"] == "http" else send)
