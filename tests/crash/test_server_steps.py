"""A real server is killed while a client streams a turn with steps over HTTP and answers what it asks; on the next server he
goes on with his cursor, and has had every event once (P4, P14, P15, P16)."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from stateroom.backends.sqlite.backend import SqliteBackend
from stateroom.cli.replay.chaos import free_port
from stateroom.wire import json
from tests.crash import plays, scale
from tests.crash.actor import done
from tests.crash.invariants import effects_of, violations
from tests.crash.test_steps import FIRST_LIVES
from tests.crash.view import wrong_with_stream
from tests.crash.zygote import Zygote

pytestmark = [pytest.mark.anyio, pytest.mark.crash]


class Client:
    """One turn over HTTP, wherever the server is just now."""

    def __init__(self, http: httpx.AsyncClient, kinds: str) -> None:
        self.http = http
        self._asked = {"model": "actor", "input": f"{kinds} t", "stream": True}
        self.events: list[dict[str, Any]] = []
        self._cursor = ""

    @property
    def run(self) -> str:
        return "run_" + self.events[0]["response"]["id"].removeprefix("resp_")

    async def listen(self) -> bool:
        """Ask, or go on from the last event; whether the stream came to its end."""
        if self._cursor:
            again = {"Last-Event-ID": self._cursor}
            request = self.http.stream("GET", f"/v1/runs/{self.run}/events", headers=again)
        else:
            request = self.http.stream("POST", "/v1/responses", json=self._asked, headers={"Idempotency-Key": "k"})
        cursor = ""
        async with request as answer:
            # 204: the end had come through before the server died.
            assert answer.status_code in ((200, 204) if self._cursor else (200,)), await answer.aread()
            async for line in answer.aiter_lines():
                name, _, value = line.partition(": ")
                if name == "id":
                    cursor = value
                elif name == "data" and value != "[DONE]":
                    self.events.append(json.decode_trusted(value.encode()))
                    self._cursor = cursor
        return self.events[-1]["type"] == "response.completed"

    async def answer(self, world: plays.World) -> None:
        """Whatever the run asks, for as long as somebody listens."""
        while True:
            await asyncio.sleep(0.02)
            if not self.events:
                continue
            for action in (await self.http.get(f"/v1/runs/{self.run}")).json().get("pending_actions") or ():
                answer: dict[str, Any] = {"approved": True, "digest": action["digest"]}
                if action["kind"] == "reconcile":
                    happened = world.happened(action["name"], action["asked"]["effect_key"])
                    answer = {"outcome": "succeeded", "result": "happened"} if happened else {"outcome": "did_not_happen"}
                await self.http.post(f"/v1/runs/{self.run}/actions/{action['id']}", json=answer)


@asynccontextmanager
async def answering(client: Client, world: plays.World) -> AsyncIterator[None]:
    task = asyncio.create_task(client.answer(world))
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError, httpx.TransportError):
            await task


async def ready(http: httpx.AsyncClient) -> None:
    for _ in range(1000):
        with suppress(httpx.TransportError):
            if (await http.get("/readyz")).status_code == 200:
                return
        await asyncio.sleep(0.01)
    raise AssertionError("the server does not start")


@pytest.mark.parametrize(("effect", "failpoint"), FIRST_LIVES[1 :: scale.STRIDE])
async def test_P4_P14_P15_P16_a_client_goes_on_where_the_server_died(
    zygote: Zygote, tmp_path: Path, effect: str, failpoint: str
) -> None:
    port, world = free_port(), plays.world_of(tmp_path)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20) as http:
        client = Client(http, effect)
        server = await zygote.fork(plays.serves, tmp_path, port=port, environ={"STATEROOM_FAILPOINT": f"{failpoint}:kill"})
        try:
            await ready(http)
            async with answering(client, world):
                with suppress(httpx.TransportError):
                    await client.listen()
            assert await server.ended() == -signal.SIGKILL, server.last_words()
            server = await zygote.fork(plays.serves, tmp_path, port=port)
            await ready(http)
            async with answering(client, world):
                assert await client.listen()
            again = (await http.get(f"/v1/responses/{client.events[0]['response']['id']}")).json()
        finally:
            server.signal(signal.SIGTERM)
            status = await server.ended()
    assert status == 0, server.last_words()
    assert wrong_with_stream(client.events) == []
    assert again == client.events[-1]["response"]
    assert again["output"][-1]["content"][0]["text"] == done(effect, "t")
    backend = await SqliteBackend.open(plays.store_of(tmp_path))
    secret = backend.secret
    await backend.close()
    assert violations(plays.store_of(tmp_path)) == []
    assert effects_of(plays.store_of(tmp_path), world, secret=secret).faults == []
