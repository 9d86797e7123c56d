"""An agent with one step of each class, who says what he did, and what is needed to take a turn with him to its end.

What he is told is "KINDS TAG", e.g. "once+pure t1": the steps he is to do, in order, and a word of the caller's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

from stateroom import ids
from stateroom.batch import ClaimKey
from stateroom.clock import Clock
from stateroom.errors import Conflict, Gone, Known, NotFound
from stateroom.flows.agent import AgentEvent, Delta, Output, Turn, Usage
from stateroom.flows.steps import Doing
from stateroom.flows.turn import Answer, Ticket, TurnRequest
from stateroom.ids import NIL
from stateroom.principal import LOCAL
from stateroom.run.model import DoubleText, Style
from stateroom.run.steps import Action
from stateroom.stack import Stateroom
from stateroom.wire import json
from tests.crash.where import Place, open_backend
from tests.crash.world import World

EFFECTS = ("pure", "idempotent", "transactional", "once", "verified", "approved")
USAGE = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}
NAME = "actor"


class Actor:
    """`pause_s`: how long he takes before and after each step, so that deltas get into the log by themselves."""

    name = NAME
    style: Style = "responses"

    def __init__(self, world: World, *, pause_s: float = 0.0) -> None:
        self._world, self._pause_s = world, pause_s

    async def work(self, turn: Turn) -> AsyncIterator[AgentEvent]:
        kinds, _, tag = turn.text.partition(" ")
        yield Delta(f"[{turn.attempt}] ")
        yield Delta(begun(tag))
        await asyncio.sleep(self._pause_s)
        for kind in kinds.split("+"):
            call = {"type": "function_call", "call_id": f"call {kind} {tag}", "name": kind, "arguments": "{}"}
            if kind != "approved":
                yield Output(call)
            result = await self._do(turn, kind, tag)
            if kind == "approved":  # asked while he speaks: what he was saying is left open when the run begins to wait
                yield Output(call)
            yield Output({"type": "function_call_output", "call_id": f"call {kind} {tag}", "output": result})
            yield Delta(f"{kind} ")
            await asyncio.sleep(self._pause_s)
        merged = [item["content"].partition(" ")[2] for item in turn.news]
        yield Delta(f"{' '.join([tag, *merged])} did it.")
        yield Usage(USAGE)

    async def _do(self, turn: Turn, kind: str, tag: str) -> str:
        async def verify(doing: Doing) -> tuple[bool, str]:
            return self._world.happened(kind, doing.key), "happened"

        async def act(doing: Doing) -> str:
            self._world.act(kind, doing.key)
            return "happened"

        match kind:
            case "pure" | "idempotent":
                return str(await turn.step(kind, act, effect=kind))
            case "transactional":
                return str(await turn.step(kind, lambda doing: doing.set(slot_of(tag), 1), effect="transactional"))
            case "once":
                return str(await turn.step(kind, act))
            case "verified":
                return str(await turn.step(kind, act, verify=verify))
            case "approved":
                if not await turn.approval(kind, {"tag": tag}):
                    return "denied"
                return str(await turn.step(kind, act, verify=verify, arguments={"tag": tag}))
            case "wait":
                await asyncio.sleep(0.1)
        return "nothing"


def begun(tag: str) -> str:
    return f"{tag} begins."


def done(kinds: str, tag: str) -> str:
    """What follows `begun`, as `text_of` joins it."""
    return " ".join([*kinds.split("+"), f"{tag} did it."])


def slot_of(tag: str) -> str:
    """Where a transactional step of this turn leaves its mark."""
    return f"moved {tag}"


async def opened(
    store: Place, world: World, *, pause_s: float = 0.0, clock: Clock | None = None, synchronous: str = "full"
) -> Stateroom:
    """The store with him in it, recovering what a crash left."""
    backend = await open_backend(store, clock=clock, synchronous=synchronous)
    room = Stateroom(backend, {NAME: Actor(world, pause_s=pause_s)}, owner=backend.owner, default_agent=NAME)
    await room.start()
    return room


async def begin(room: Stateroom, key: str) -> bytes:
    """The conversation of this key, made if need be."""
    new = room.conversations.new_id()
    claim = ClaimKey(
        operation="conversation", key=key, fingerprint=b"", ref=new, home=ids.key_home(LOCAL.tenant, LOCAL.principal, key)
    )
    try:
        return (await room.conversations.create(LOCAL, claim=claim, id=new)).id
    except Known as known:
        return known.ref


async def take(
    room: Stateroom, text: str, *, conversation: bytes, key: str, policy: DoubleText = "enqueue", stream: bool = True
) -> Ticket:
    body = json.encode({"type": "message", "role": "user", "content": text})
    options = json.encode({"stream": stream})
    request = TurnRequest(agent=NAME, input=(body,), options=options, conversation=conversation, key=key, policy=policy)
    return await room.turns.take(LOCAL, request)


async def ended(room: Stateroom, world: World, run: bytes) -> Answer:
    """The end of a run. Until then whatever it asks is answered: approved, or reconciled by what the world says; and
    somebody looks after everything more often than a room does by itself."""
    for turn in count(1):
        if turn % 10 == 0:
            await room.recovery.sweep()
        row = await room.backend.run(LOCAL, run)
        while row.merged_into != NIL:  # that one answers
            row = await room.backend.run(LOCAL, row.merged_into)
        if row.ended:
            return await room.turns.outcome(LOCAL, run)
        if row.status == "requires_action":
            for action in await room.answers.pending(LOCAL, row.id):
                await answer(room, world, action)
        await asyncio.sleep(0.005)
    raise AssertionError("never")


async def answer(room: Stateroom, world: World, action: Action) -> None:
    resolution: dict[str, Any] = {"approved": True}
    if action.kind == "reconcile":
        asked = json.decode_trusted(action.body)
        happened = world.happened(asked["name"], asked["effect_key"])
        resolution = {"outcome": "succeeded", "result": "happened"} if happened else {"outcome": "did_not_happen"}
    try:
        await room.answers.resolve(LOCAL, action.run, action.id, resolution=json.encode(resolution), digest=action.digest)
    except (Conflict, Gone, NotFound):  # somebody else was quicker, or the run is over
        pass


def text_of(answered: Answer) -> str:
    """What was said, in one line, without the attempt it was said in."""
    messages = (json.decode_trusted(item.body) for item in answered.outputs if item.kind == "message")
    said = " ".join(message["content"][0]["text"].strip() for message in messages)
    return said.partition("] ")[2]
