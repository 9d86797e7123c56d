"""What runs did and what they wait for: steps, pending actions, and the answers that let them go on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from stateroom import ids, limits
from stateroom.errors import InvalidInput, LimitExceeded
from stateroom.run.model import Run
from stateroom.run.steps import Action, ActionKind, Step
from stateroom.server.body import Body
from stateroom.server.call import Answer, Call, Endpoint, page
from stateroom.wire import json

_canonical = msgspec.json.Encoder(order="deterministic").encode


async def list_(call: Call) -> Answer:
    """What the run asked so far, oldest first; with `pending=true` only what it waits for, with `false` only the rest."""
    run = await _run(call)
    asked = await call.room.answers.all(call.scope, run.id)
    if call.query("pending") is not None:
        waiting = call.query_flag("pending")
        asked = [action for action in asked if (action.status == "pending") == waiting]
    return _page([shown(action) for action in asked])


async def resolve(call: Call) -> Answer:
    """Answer an action. The same answer again is the same; another one is refused."""
    run, id_ = await _run(call), call.path_id("action", "action")
    resolution, digest = answer_of(await _action(call, run, id_), call.body)

    async def act(claim: Any) -> None:
        await call.room.answers.resolve(call.scope, run.id, id_, resolution=resolution, digest=digest, claim=claim)

    async def again(_: bytes) -> None:
        """It was answered with this key."""

    await call.once("action.resolve", ref=id_, act=act, again=again)
    return shown(await _action(call, run, id_))


async def handoffs(call: Call) -> Answer:
    """What lies in a queue and nobody has decided, oldest first."""
    queue, limit = call.request.path_params["queue"], call.limit()
    found = await call.room.answers.queue(call.scope, queue, limit=limit + 1)
    return _page([shown(action) for action in found[:limit]], more=len(found) > limit)


async def steps(call: Call) -> Answer:
    """The run's steps, in the order they were first recorded."""
    return _page([shown_step(step) for step in await call.room.backend.steps(call.scope, (await _run(call)).id)])


# ── reading an answer ───────────────────────────────────────────────────────────────────────────────────────────────


def answer_of(action: Action, body: Body) -> tuple[bytes, bytes]:
    """The resolution for an action of this kind, spelled in one way, and the digest an approval comes with."""
    if (read := READERS.get(action.kind)) is None:
        raise InvalidInput("A timer ends by itself; nobody answers it.", code="action_not_answerable")
    resolution = _canonical(read(body))
    if len(resolution) > limits.ITEM_BYTES_MAX:
        raise LimitExceeded(f"An answer may have {limits.ITEM_BYTES_MAX} bytes.", code="answer_too_large")
    return resolution, _digest(body) if action.kind == "approval" else b""


def _approval(body: Body) -> Mapping[str, Any]:
    if (approved := body.get("approved", bool)) is None:
        raise _unfit('An approval is answered with {"approved": true or false, "digest": "…"}.', "approved")
    return {"approved": approved}


def _digest(body: Body) -> bytes:
    try:
        return bytes.fromhex(body.get("digest", str) or "")
    except ValueError:
        raise _unfit("'digest' is hexadecimal, as the action shows it.", "digest") from None


def _input(body: Body) -> Mapping[str, Any]:
    if "answer" not in body.value:
        raise _unfit('A question is answered with {"answer": …}.', "answer")
    return {"answer": body.value["answer"]}


def _tool(body: Body) -> Mapping[str, Any]:
    if "output" not in body.value:
        raise _unfit('A call is answered with {"output": …}.', "output")
    return {"output": body.value["output"]}


def _reconcile(body: Body) -> Mapping[str, Any]:
    if (outcome := body.get("outcome", str)) not in ("succeeded", "did_not_happen", "failed"):
        raise _unfit("'outcome' is succeeded, did_not_happen or failed.", "outcome")
    return {"outcome": outcome, "result": body.value.get("result")}


def _handoff(body: Body) -> Mapping[str, Any]:
    return body.value


def _unfit(message: str, param: str) -> InvalidInput:
    return InvalidInput(message, code="answer_unfit", param=param)


READERS: Mapping[ActionKind, Callable[[Body], Mapping[str, Any]]] = {
    "approval": _approval, "input": _input, "tool": _tool, "reconcile": _reconcile, "handoff": _handoff,
}  # fmt: skip


# ── shown ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def shown(action: Action) -> dict[str, Any]:
    """An approval that was spent meanwhile is still what somebody answered: it looks the same."""
    asked = json.decode_trusted(action.body)
    return {
        "id": ids.text("action", action.id),
        "object": "action",
        "run": ids.text("run", action.run),
        "key": action.key,
        "kind": action.kind,
        "name": action.name,
        "status": "resolved" if action.status == "used" else action.status,
        "arguments": asked.pop("arguments", None),
        "asked": asked,
        "digest": action.digest.hex() or None,
        "queue": action.queue or None,
        "resolution": msgspec.Raw(action.resolution) if action.resolution else None,
        "by": action.by or None,
        "policy": action.policy,
        "expires_at": action.until // 1000 or None,
        "created_at": action.at // 1000,
    }


def shown_step(step: Step) -> dict[str, Any]:
    body = msgspec.Raw(step.body) if step.body else None
    return {
        "object": "step",
        "key": step.key,
        "name": step.name,
        "effect": step.effect,
        "status": step.status,
        "digest": step.digest.hex() or None,
        "attempt": step.attempt,
        "result": body if step.status == "done" else None,
        "error": body if step.status == "failed" else None,
        "at": step.at // 1000,
    }


async def pending(call: Call, run: Run) -> list[dict[str, Any]]:
    """What a run waits for. One that waits for nothing is not asked."""
    if run.status != "requires_action":
        return []
    return [shown(action) for action in await call.room.answers.pending(call.scope, run.id)]


def _page(data: list[dict[str, Any]], *, more: bool = False) -> dict[str, Any]:
    return page(data, [entry.get("id", entry["key"]) for entry in data], more)


async def _run(call: Call) -> Run:
    return await call.room.runs.get(call.scope, call.path_id("run", "run"))


async def _action(call: Call, run: Run, id_: bytes) -> Action:
    for action in await call.room.answers.all(call.scope, run.id):
        if action.id == id_:
            return action
    raise ids.missing("action", call.request.path_params["action"])


ENDPOINTS = (
    Endpoint("GET", "/runs/{run}/actions", list_, "List what a run asked.", query=("pending",), answer="List"),
    Endpoint(
        "POST", "/runs/{run}/actions/{action}", resolve, "Answer what a run waits for.", body="ResolveAction", answer="Action"
    ),
    Endpoint("GET", "/runs/{run}/steps", steps, "List what a run did.", answer="List"),
    Endpoint("GET", "/handoffs/{queue}", handoffs, "List what waits in a queue.", query=("limit",), answer="List"),
)
