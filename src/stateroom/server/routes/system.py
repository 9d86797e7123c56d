"""The server itself: whether it is well, what it offers."""

from __future__ import annotations

from typing import Any

import msgspec

from stateroom.errors import NotFound, Unavailable
from stateroom.server.call import Answer, Call, Endpoint, page


async def health(call: Call) -> Answer:
    """The process answers."""
    return {"status": "ok"}


async def ready(call: Call) -> Answer:
    """Reads and writes would work now."""
    if call.server.stopping.is_set():
        raise Unavailable("The server is going down.", code="shutting_down")
    await call.room.backend.check()
    return {"status": "ready"}


async def stats(call: Call) -> Answer:
    """How this process's cache of desks has done."""
    return {"object": "stats", "hydration": msgspec.to_builtins(call.room.hydrator.counters), "streams": len(call.server.pulse)}


async def openapi(call: Call) -> Answer:
    document: Answer = call.request.app.state.openapi
    return document


async def models(call: Call) -> Answer:
    """The agents, under the name that a request's `model` calls them by; the default one first."""
    names = sorted(call.room.agents, key=lambda name: (name != call.room.default_agent, name))
    return page([_shown(name) for name in names], names, False)


async def model(call: Call) -> Answer:
    name = call.request.path_params["model"]
    if name not in call.room.agents:
        raise NotFound(f"No agent is called '{name[:80]}'.", code="model_not_found", param="model")
    return _shown(name)


def _shown(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "stateroom"}


ENDPOINTS = (
    Endpoint("GET", "/models", models, "List the agents.", answer="List"),
    Endpoint("GET", "/models/{model}", model, "Get an agent.", answer="Model"),
    Endpoint("GET", "/stats", stats, "How this process does.", answer="Status"),
    Endpoint("GET", "/healthz", health, "Whether the process answers.", answer="Status", open=True),
    Endpoint("GET", "/readyz", ready, "Whether reads and writes work.", answer="Status", open=True),
    Endpoint("GET", "/openapi.json", openapi, "This description.", answer="Document", open=True),
)
