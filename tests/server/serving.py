"""A real server on a free loopback port, in a thread of its own, with agents that tests can hold and watch."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import httpx2 as httpx

from stateroom import stack
from stateroom.flows.agent import Agent, AgentEvent, Delta, Done, End, Output, Start, Turn, Usage, text_of
from stateroom.flows.steps import Doing
from stateroom.hosting.callable import CallableAgent
from stateroom.run.steps import Policy
from stateroom.server.app import create_app
from stateroom.server.auth import Token
from stateroom.server.run import HttpServer
from stateroom.stack import Stateroom

T = TypeVar("T")


class Served:
    """A running server: where it is, its room, and its loop for looking into the store."""

    def __init__(self, url: str, room: Stateroom, server: HttpServer, loop: asyncio.AbstractEventLoop) -> None:
        self.url, self.room, self.server, self.loop = url, room, server, loop

    def ask(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something in the server's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout=10)

    def client(self, token: str = "") -> httpx.Client:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=10, verify=False)  # no TLS here: saves loading it

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.server.stop)


@contextmanager
def serving(
    *agents: Agent, url: str = "ram://", tokens: Sequence[Token] | None = None, heartbeat_s: float = 15.0
) -> Iterator[Served]:
    """Serve from now until the block ends."""
    ready: queue.Queue[Served | BaseException] = queue.Queue()

    async def main() -> None:
        room = await stack.open(url, agents=agents)
        app = create_app(room, tokens=tokens, own_room=True, heartbeat_s=heartbeat_s)
        loop = asyncio.get_running_loop()
        server = HttpServer(app, host="127.0.0.1", port=0, ready=lambda at: ready.put(Served(at, room, server, loop)))
        await server.serve()

    def run() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:
            ready.put(error)
            raise

    thread = threading.Thread(target=run, name="served")
    thread.start()
    served = ready.get(timeout=10)
    if isinstance(served, BaseException):
        raise served
    try:
        yield served
    finally:
        if thread.is_alive():
            served.stop()
        thread.join(timeout=10)
        assert not thread.is_alive(), "the server did not stop"


def one_by_one(http: httpx.Client, path: str, **body: Any) -> str:
    """The id of a new object that is at least a millisecond younger than the one before: lists are ordered by that."""
    time.sleep(0.002)
    made = http.post(path, json=body).json()
    return str(made["id"])


class Gate:
    """Holds an agent until the test opens it; counts how many times the agent was asked."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.asked = 0

    async def passed(self) -> None:
        while not self.opened.is_set():
            await asyncio.sleep(0.005)


def echo() -> CallableAgent:
    """Says everything it was shown."""

    async def answer(turn: Turn) -> str:
        return "\n".join(text_of(item) for item in turn.window)

    return CallableAgent("echo", answer)


def pieces(gate: Gate | None = None, count: int = 12) -> CallableAgent:
    """Says `count` words, the second half only when the gate is open; each word is a commit of its own."""

    async def answer(turn: Turn) -> AsyncIterator[AgentEvent]:
        yield Start({"type": "message", "role": "assistant"})
        for number in range(count):
            if gate is not None and number == count // 2:
                gate.asked += 1
                await gate.passed()
            yield Delta(f"word{number} ")
            await asyncio.sleep(0.04)
        yield Done()
        yield Usage({"input_tokens": 7, "output_tokens": count})

    return CallableAgent("pieces", answer)


def held(gate: Gate) -> CallableAgent:
    """Answers when the gate opens."""

    async def answer(turn: Turn) -> str:
        gate.asked += 1
        await gate.passed()
        return f"answer {gate.asked} to {turn.text}"

    return CallableAgent("held", answer)


def failing() -> CallableAgent:
    async def answer(turn: Turn) -> str:
        raise RuntimeError("the agent broke")

    return CallableAgent("failing", answer)


def cut_short() -> CallableAgent:
    """Ends for lack of tokens."""

    async def answer(turn: Turn) -> AsyncIterator[AgentEvent]:
        yield Delta("half a")
        yield Done()
        yield End("incomplete", "max_output_tokens")

    return CallableAgent("cut_short", answer)


def tools() -> CallableAgent:
    """Asks for the weather once, then tells what it was told."""

    async def answer(turn: Turn) -> AsyncIterator[AgentEvent]:
        told = [item["output"] for item in turn.input if item.get("type") == "function_call_output"]
        if told:
            yield Delta(f"It is {told[0]}.")
            yield Done()
            return
        yield Output({"type": "reasoning", "summary": [{"type": "summary_text", "text": "I have to look."}]})
        yield Start({"type": "function_call", "name": "weather", "call_id": "call_1"})
        yield Delta('{"city":')
        yield Delta('"Paris"}')
        yield Done()

    return CallableAgent("tools", answer)


def odd() -> CallableAgent:
    """Puts out what this version knows nothing of."""

    async def answer(turn: Turn) -> list[dict[str, Any]]:
        return [
            {"type": "hologram", "beams": 3, "nested": {"kept": [1, 2.5, None]}},
            {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "No."}], "mood": "odd"},
            {"type": "message", "role": "assistant", "content": "plain"},
        ]

    return CallableAgent("odd", answer)


def asking(wait_s: float = 0.0, policy: Policy = "deny") -> CallableAgent:
    """Asks somebody, in the way that the turn's text names, and says what it was told. Its step counts in the answer."""
    charged: list[str] = []

    def charge(doing: Doing) -> int:
        charged.append(doing.key)
        return len(charged)

    async def answer(turn: Turn) -> str:
        given: dict[str, Any] = {"wait_s": wait_s, "policy": policy}
        how = turn.text.partition(" ")[0]
        if how == "approval":
            approved = await turn.approval("refund", {"amount": 5}, why="A big one.", **given)
            return f"refunded {await turn.step('charge', charge)}" if approved else "refused"
        if how == "input":
            return f"size {await turn.ask('size', 'Which size?', **given)}"
        if how == "tool":
            return f"it is {await turn.client_tool('weather', {'city': 'Paris'}, **given)}"
        if how == "handoff":
            return f"decided: {await turn.handoff('billing', {'invoice': 7}, **given)}"
        if how == "timer":
            await turn.sleep("nap", 3600)
        return turn.text

    return CallableAgent("asking", answer)


def until(http: httpx.Client, run: str, *statuses: str) -> dict[str, Any]:
    """The run when it has come to one of these."""
    for _ in range(1000):
        found: dict[str, Any] = http.get(f"/v1/runs/{run}").json()
        if found["status"] in statuses:
            return found
        time.sleep(0.01)
    raise AssertionError(f"{run} is {found['status']}, not {' or '.join(statuses)}")


def paused(http: httpx.Client, how: str, **body: Any) -> tuple[str, dict[str, Any]]:
    """A run of the asking agent that waits, and what for."""
    made = http.post("/v1/responses", json={"model": "asking", "input": how, "background": True, **body}).json()["id"]
    run = "run_" + made[5:]
    (action,) = until(http, run, "requires_action")["pending_actions"]
    return run, action
