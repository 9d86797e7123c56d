"""Streams end for their reader, never for the run; a server that stops lets go of them at once."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator
from typing import Any
from urllib.parse import urlsplit

import httpx2 as httpx
import pytest

from stateroom import stack
from stateroom.connection.model import Cursor
from stateroom.errors import Unavailable
from stateroom.principal import LOCAL
from stateroom.server.auth import Auth
from stateroom.server.call import Server
from stateroom.server.pulse import Watched
from stateroom.server.sse import EventStream
from tests.server.serving import Gate, echo, held, pieces, serving

CHILD = """
import asyncio, sys
from stateroom.hosting.callable import CallableAgent
from stateroom.server.run import serve

async def words(turn):
    for number in range(10_000):
        yield f"word{number} "
        await asyncio.sleep(0.02)

asyncio.run(serve(sys.argv[1], [CallableAgent("words", words)], port=0))
"""


def read(url: str, found: list[str], **how: Any) -> None:
    """Collect a stream's lines until it ends."""
    with httpx.Client(timeout=20) as http, http.stream("GET", url, **how) as answer:
        found.extend(answer.iter_lines())


def ids(lines: list[str]) -> list[str]:
    return [line.removeprefix("id: ") for line in lines if line.startswith("id: ")]


def numbers(lines: list[str]) -> list[int]:
    return [json.loads(line.removeprefix("data: "))["sequence_number"] for line in lines if line.startswith("data: ")]


def test_a_stopping_server_lets_go_of_its_streams_and_a_new_one_takes_them_up(store_url: str) -> None:
    """Within 2 s, between two events; the reader comes back with its cursor, to another process, and misses nothing."""
    gate = Gate()
    lines = list[str]()
    with serving(pieces(gate), url=store_url) as served:
        with served.client() as http:
            run = "run_" + http.post("/v1/responses", json={"input": "hi", "background": True}).json()["id"][5:]
            readers = [
                threading.Thread(target=read, args=(f"{served.url}/v1/runs/{run}/events", found)) for found in (lines, [], [])
            ]
            for reader in readers:
                reader.start()
            while gate.asked == 0 or not lines:
                time.sleep(0.01)
        stopped = time.monotonic()
    assert time.monotonic() - stopped < 2.5  # 2 s to be gone, and what the room needs to close
    for reader in readers:
        reader.join(timeout=1)
        assert not reader.is_alive()
    assert "event: response.completed" not in lines
    gate.opened.set()
    with serving(pieces(gate), url=store_url) as served:
        read(f"{served.url}/v1/runs/{run}/events", lines, headers={"Last-Event-ID": ids(lines)[-1]})
    assert lines.count("event: response.completed") == 1
    assert numbers(lines) == list(range(len(numbers(lines))))


def test_SIGTERM_ends_the_process_within_two_seconds_with_streams_open(store_url: str) -> None:
    child = subprocess.Popen([sys.executable, "-c", CHILD, store_url], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        url = child.stdout.readline().split()[-1]
        made = httpx.post(f"{url}/v1/responses", json={"input": "hi", "background": True}, timeout=10).json()
        lines = list[str]()
        reader = threading.Thread(target=read, args=(f"{url}/v1/responses/{made['id']}?stream=true", lines))
        reader.start()
        while len(lines) < 30:
            time.sleep(0.01)
        child.send_signal(signal.SIGTERM)
        sent = time.monotonic()
        assert child.wait(timeout=5) == 0
        assert time.monotonic() - sent < 2.0
        reader.join(timeout=2)
        assert not reader.is_alive()
        assert numbers(lines) == list(range(len(numbers(lines))))
    finally:
        child.kill()
        child.communicate()


def test_a_waiting_caller_is_told_that_the_server_goes_and_finds_its_answer_later(store_url: str) -> None:
    gate = Gate()
    answers = list[httpx.Response]()
    headers = {"Idempotency-Key": "patience"}
    with serving(held(gate), url=store_url) as served:
        post = threading.Thread(
            target=lambda: answers.append(
                httpx.post(f"{served.url}/v1/responses", json={"input": "hi"}, headers=headers, timeout=20)
            )
        )
        post.start()
        while gate.asked == 0:
            time.sleep(0.01)
    post.join(timeout=5)
    (refused,) = answers
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
    assert refused.headers["Retry-After"] == "1"
    assert "x-should-retry" not in refused.headers
    gate.opened.set()
    with serving(held(gate), url=store_url) as served:
        answer = httpx.post(f"{served.url}/v1/responses", json={"input": "hi"}, headers=headers, timeout=20)
    assert answer.headers["Idempotency-Replayed"] == "true"
    assert answer.json()["status"] == "completed"


def test_readers_that_leave_leave_nothing_behind(store_url: str) -> None:
    gate = Gate()
    with serving(pieces(gate), url=store_url) as served, served.client() as http:
        run = "run_" + http.post("/v1/responses", json={"input": "hi", "background": True}).json()["id"][5:]
        for _ in range(20):
            with http.stream("GET", f"/v1/runs/{run}/events") as stream:
                next(stream.iter_lines())
        tasks = 0
        for _ in range(100):
            tasks = served.ask(count_tasks())
            if tasks < 15:
                break
            time.sleep(0.02)
        assert tasks < 15
        assert http.get(f"/v1/runs/{run}").json()["status"] == "in_progress"
        gate.opened.set()


async def count_tasks() -> int:
    return len(asyncio.all_tasks())


def test_P7_a_reader_that_stalls_holds_up_nobody(store_url: str) -> None:
    """It takes the head of its stream and then reads no more; the run ends and everybody else is served."""
    with serving(echo(), pieces(count=30), url=store_url) as served, served.client() as http:
        place = urlsplit(served.url)
        with socket.create_connection((place.hostname, place.port)) as stalled:
            stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            body = json.dumps({"input": "x", "model": "pieces", "stream": True, "instructions": "y" * 900_000}).encode()
            stalled.sendall(b"POST /v1/responses HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
            assert stalled.recv(10).startswith(b"HTTP/1.1 2")
            for _ in range(300):
                runs = http.get("/v1/runs").json()["data"]
                if runs and runs[0]["status"] == "completed":
                    break
                time.sleep(0.02)
            assert runs[0]["status"] == "completed"
            assert http.post("/v1/responses", json={"input": "still here?"}).json()["status"] == "completed"


# ── what a stream says when it breaks ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("fault", "code"), [(Unavailable("The disk is gone."), "unavailable"), (RuntimeError("secret"), "internal_error")]
)
async def test_a_stream_that_breaks_says_so_with_an_event_and_without_internals(fault: Exception, code: str) -> None:
    async def events() -> AsyncGenerator[tuple[Cursor, dict[str, Any]] | None, None]:
        yield Cursor("12345678", 4), {"type": "response.created", "sequence_number": 3}
        raise fault

    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        await waiting.wait()

    waiting = asyncio.Event()
    async with await stack.open("ram://", agents=[echo()]) as room:
        server, watched = Server(room, Auth(None)), Watched(LOCAL, b"r" * 16, Cursor("12345678", 3))
        await EventStream(server, watched, events(), headers={})({"type": "http"}, receive, send)
    body = b"".join(message.get("body", b"") for message in sent).decode()
    broken = body.split("\n\n")[1]
    assert broken.startswith("event: error\ndata: ")
    told = json.loads(broken.partition("data: ")[2])
    assert (told["type"], told["code"], told["sequence_number"]) == ("error", code, 4)
    assert "secret" not in body
    assert sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}


def test_the_process_is_told_its_name(store_url: str) -> None:
    """A newcomer sees where it is and three lines to try."""
    child = subprocess.Popen([sys.executable, "-c", CHILD, store_url], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        greeting = [child.stdout.readline() for _ in range(6)]
        assert greeting[0].startswith("Stateroom is ready at http://127.0.0.1:")
        assert sum("curl" in line for line in greeting) == 3
    finally:
        child.terminate()
        child.communicate(timeout=5)
