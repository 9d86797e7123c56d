"""Clients over HTTP who do not give up: each turn has a key, whatever is not answered is asked again, of any worker."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import httpx2 as httpx

from stateroom.wire import json
from tests.crash import plays
from tests.crash.actor import EFFECTS
from tests.crash.plays import Told, tell
from tests.crash.view import wrong_with_stream

LATER = frozenset({408, 425, 429, 500, 502, 503, 504})
TERMINAL = frozenset({"completed", "incomplete", "failed", "cancelled", "expired"})
PATIENCE_S = 120.0
POLL_S_MAX = 1.0
AGAIN_S = 0.05
GONE = "gone"
ENDS = ("response.completed", "response.failed", "response.incomplete")


class Unanswered(AssertionError):
    """A client lost its patience, or was told something that no client should be."""


class Line:
    """The way to the workers: any of them answers anything."""

    def __init__(self, ports: Sequence[int], *, dice: Random, most: int) -> None:
        self._urls, self._dice = [f"http://127.0.0.1:{port}" for port in ports], dice
        self._http = httpx.AsyncClient(timeout=20, limits=httpx.Limits(max_connections=most))
        self.refusals = 0  # answers that said: later
        self.cuts = 0
        self.gone = 0  # cursors that were from before a promotion

    async def __aenter__(self) -> Line:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    def url(self, path: str) -> str:
        return f"{self._dice.choice(self._urls)}/v1{path}"

    async def ask(self, method: str, path: str, body: Any = None, *, key: str = "", also: Sequence[int] = ()) -> httpx.Response:
        """Until somebody answers. `also`: statuses that are an answer too."""
        until = asyncio.get_running_loop().time() + PATIENCE_S
        headers = {"Idempotency-Key": key} if key else {}
        said = ""
        while asyncio.get_running_loop().time() < until:
            try:
                answer = await self._http.request(method, self.url(path), json=body, headers=headers)
            except httpx.TransportError as error:
                said, self.cuts = f"{type(error).__name__}", self.cuts + 1
            else:
                if answer.is_success or answer.status_code in also:
                    return answer
                said = f"{answer.status_code} {answer.text[:300]}"
                if answer.status_code not in LATER or "internal_error" in said:
                    raise Unanswered(f"{method} {path}: {said}")
                self.refusals += 1
            await asyncio.sleep(AGAIN_S)
        raise Unanswered(f"{method} {path} was not answered within {PATIENCE_S:g} s, the last try with: {said}")

    async def events(self, path: str, body: Any, headers: Mapping[str, str], heard: list[dict[str, Any]]) -> str:
        """One connection's worth of a stream, added to what was `heard`; the cursor it came to, "" when there is none."""
        cursor = given = ""
        method = "POST" if body is not None else "GET"
        try:
            async with self._http.stream(method, self.url(path), json=body, headers=dict(headers)) as answer:
                if answer.status_code in LATER:
                    self.refusals += 1
                    return ""
                if answer.status_code == 410 and "cursor_gone" in (await answer.aread()).decode():
                    return self._anew(heard)
                if answer.status_code not in (200, 204):
                    raise Unanswered(f"{method} {path}: {answer.status_code} {(await answer.aread())[:300]!r}")
                async for line in answer.aiter_lines():
                    name, _, value = line.partition(": ")
                    if name == "id":
                        given = value
                    elif name == "data" and value != "[DONE]":
                        event = json.decode_trusted(value.encode())
                        if event["type"] == "error":  # it was broken off, which is said in an event of no number
                            return self._anew(heard) if event["code"] == "cursor_gone" else cursor
                        heard.append(event)
                        cursor = given
        except httpx.TransportError:
            self.cuts += 1
        return cursor

    def _anew(self, heard: list[dict[str, Any]]) -> str:
        """The store is another one since the stream began: it is read from the start."""
        self.gone += 1
        heard.clear()
        return GONE


class Talker:
    """One client: turns in a conversation of its own and in some that all share, until it is told that it is enough."""

    def __init__(self, line: Line, folder: Path, name: str, *, dice: Random, shared: int = 3) -> None:
        self._line, self._folder, self._name, self._dice, self._shared = line, folder, name, dice, shared
        self._world = plays.world_of(folder)
        self.faults: list[str] = []
        self.told = 0
        self.longest_s = 0.0

    async def talk(self, enough: asyncio.Event) -> None:
        number = 0
        while not enough.is_set():
            dice = self._dice
            kinds = "+".join(dice.sample((*EFFECTS, "wait"), dice.randint(1, 2)))
            place = self._name if dice.random() < 0.8 else f"shared{dice.randrange(self._shared)}"
            made = await self._line.ask("POST", "/conversations", {}, key=place)
            began = asyncio.get_running_loop().time()
            await self._turn(f"{kinds} {self._name}.{number}", made.json()["id"])
            self.longest_s = max(self.longest_s, asyncio.get_running_loop().time() - began)
            number += 1

    async def _turn(self, key: str, conversation: str) -> None:
        streamed, dice = self._dice.random() < 0.5, self._dice
        body = {"model": "actor", "input": key, "conversation": conversation, "background": True}
        if streamed:
            run, heard = await self._streamed({**body, "stream": True}, key)
        else:
            made = (await self._line.ask("POST", "/responses", body, key=key)).json()
            run, heard = run_of(made), []
            if dice.random() < 0.1:
                await asyncio.sleep(dice.uniform(0, 0.1))
                await self._line.ask("POST", f"/runs/{run}/cancel", {})
        shown = await self._answered(run)
        response = (await self._line.ask("GET", f"/responses/{shown['response']}")).json()
        if heard:
            self.faults += [f"{key!r}: {fault}" for fault in wrong_with_stream(heard)]
            self.faults += [] if heard[-1].get("response") == response else [f"{key!r} is not what its stream ended with"]
        if dice.random() < 0.2:
            again = (await self._line.ask("POST", "/responses", body, key=key)).json()
            self.faults += [] if again == response else [f"doubled: {key!r} was answered {response}, then {again}"]
        tell(self._folder, Told(key, run, shown["status"], text_of(response["output"])))
        self.told += 1

    async def _streamed(self, body: dict[str, Any], key: str) -> tuple[str, list[dict[str, Any]]]:
        """The whole stream of a turn, over as many connections as it takes, while what it asks is answered."""
        heard: list[dict[str, Any]] = []

        async def answer() -> None:
            while not heard:
                await asyncio.sleep(0.01)
            await self._answered(run_of(heard[0]["response"]))

        async with asyncio.TaskGroup() as group:
            group.create_task(answer())
            await self._listen(body, key, heard)
        return run_of(heard[0]["response"]), heard

    async def _listen(self, body: dict[str, Any], key: str, heard: list[dict[str, Any]]) -> None:
        cursor, until = "", asyncio.get_running_loop().time() + PATIENCE_S
        while not heard or heard[-1]["type"] not in ENDS:
            if asyncio.get_running_loop().time() > until:
                raise Unanswered(f"the stream of {key!r} did not end; it came to {heard[-1:]}")
            if cursor:
                path, headers = f"/runs/{run_of(heard[0]['response'])}/events", {"Last-Event-ID": cursor}
                came = await self._line.events(path, None, headers, heard)
            else:
                came = await self._line.events("/responses", body, {"Idempotency-Key": key}, heard)
            cursor = "" if came == GONE else came or cursor
            await asyncio.sleep(0 if came else AGAIN_S)

    async def _answered(self, run: str) -> dict[str, Any]:
        """The run at its end; until then, whatever it asks gets its answer."""
        until, shown, pause_s = asyncio.get_running_loop().time() + PATIENCE_S, dict[str, Any](), 0.05
        while asyncio.get_running_loop().time() < until:
            shown = (await self._line.ask("GET", f"/runs/{run}")).json()
            if shown["status"] in TERMINAL:
                return shown
            for action in shown["pending_actions"] or ():
                answer: dict[str, Any] = {"approved": True, "digest": action["digest"]}
                if action["kind"] == "reconcile":
                    happened = self._world.happened(action["name"], action["asked"]["effect_key"])
                    answer = {"outcome": "succeeded", "result": "happened"} if happened else {"outcome": "did_not_happen"}
                await self._line.ask("POST", f"/runs/{run}/actions/{action['id']}", answer, also=(404, 409, 410))
            pause_s = min(1.5 * pause_s, POLL_S_MAX)
            await asyncio.sleep(pause_s)
        raise Unanswered(f"{run} did not end within {PATIENCE_S:g} s: {shown}")


def run_of(response: Mapping[str, Any]) -> str:
    return "run_" + str(response["id"]).removeprefix("resp_")


def text_of(output: Sequence[Mapping[str, Any]]) -> str:
    """As `actor.text_of`, from what a client gets."""
    said = " ".join(item["content"][0]["text"].strip() for item in output if item["type"] == "message")
    return said.partition("] ")[2]
