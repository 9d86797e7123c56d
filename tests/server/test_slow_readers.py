"""P7: a reader that does not read costs bounded memory, slows nobody, is told how far it came, and misses nothing."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx2 as httpx
import pytest

from stateroom import limits
from stateroom.flows.agent import AgentEvent, Delta, Done, Start, Turn
from stateroom.hosting.callable import CallableAgent
from tests.server.serving import Gate, Served, pieces, serving, until

PIECE = "x" * 4_000


def loud(gate: Gate) -> CallableAgent:
    """Says a lot, a commit for each piece, until the gate is open."""

    async def answer(turn: Turn) -> AsyncIterator[AgentEvent]:
        while not gate.opened.is_set():
            if gate.asked % 100 == 0:  # an item has its bound
                yield Done()
                yield Start({"type": "message", "role": "assistant"})
            gate.asked += 1
            yield Delta(PIECE + "y" * 200)
            await asyncio.sleep(0.002)
        yield Done()

    return CallableAgent("loud", answer)


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def served(gate: Gate, store_url: str) -> Iterator[Served]:
    with serving(loud(gate), url=store_url) as running:
        yield running
        gate.opened.set()


def begin(served: Served) -> str:
    with served.client() as http:
        return "run_" + str(http.post("/v1/responses", json={"input": "x", "background": True}).json()["id"])[5:]


@contextmanager
def stalled(url: str, run: str) -> Iterator[socket.socket]:
    """A socket that asked for a run's events and does not read them."""
    place = urlsplit(url)
    with socket.socket() as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        made.connect((place.hostname, place.port))
        made.sendall(f"GET /v1/runs/{run}/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        made.settimeout(10)
        yield made


def everything(made: socket.socket) -> str:
    """What the socket still gives, chunks put together, until it is closed."""
    data = b"".join(iter(lambda: made.recv(1 << 16), b""))
    _, _, body = data.partition(b"\r\n\r\n")
    text = b""
    while body:
        size, _, rest = body.partition(b"\r\n")
        text, body = text + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return text.decode()


def numbers(text: str) -> list[int]:
    return [json.loads(data)["sequence_number"] for data in re.findall(r"^id: .*\nevent: .*\ndata: (.*)\n\n", text, re.M)]


def open_streams(served: Served) -> int:
    return len(served.server._face.pulse)


def wait_until(done: Any) -> None:
    for _ in range(1000):
        if done():
            return
        time.sleep(0.01)
    raise AssertionError("waited in vain")


@pytest.mark.parametrize("bound", ["STALL_S", "LAG_EVENTS_MAX"])
def test_P7_a_reader_that_cannot_keep_up_is_told_how_far_it_came_and_goes_on_there(
    served: Served, gate: Gate, bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "STALL_S", 1.0 if bound == "STALL_S" else 5.0)
    monkeypatch.setattr(limits, "LAG_EVENTS_MAX", 50 if bound == "LAG_EVENTS_MAX" else 10**9)
    run = begin(served)
    with stalled(served.url, run) as slow:
        wait_until(lambda: open_streams(served) == 1)
        wait_until(lambda: open_streams(served) == 0)  # the run goes on, its stream to this reader has ended
        first = everything(slow)
    frames = first.split("\n\n")
    assert frames[-1] == ""
    name, data = frames[-2].split("\n")
    told = json.loads(data.removeprefix("data: "))
    seen = numbers(first)
    assert name == "event: lagged"
    assert told["type"] == "lagged"
    assert told["sequence_number"] == seen[-1]
    assert seen == list(range(len(seen)))
    gate.opened.set()
    with served.client() as http:
        until(http, run, "completed")
        rest = http.get(f"/v1/runs/{run}/events", headers={"Last-Event-ID": told["cursor"]}).text
    assert seen + numbers(rest) == list(range(len(seen) + len(numbers(rest))))
    assert "event: response.completed" in rest


def test_P7_a_socket_that_is_never_read_is_let_go_of(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STALL_S", 0.5)
    run = begin(served)
    with stalled(served.url, run):
        wait_until(lambda: open_streams(served) == 1)
        wait_until(lambda: not served.server.server_state.connections)


def test_P7_what_waits_for_a_socket_is_bounded(served: Served, gate: Gate) -> None:
    run = begin(served)
    with stalled(served.url, run):
        wait_until(lambda: open_streams(served) == 1)
        before, largest = gate.asked, 0
        while gate.asked < before + 500:  # 2 MB were said
            sizes = [made.transport.get_write_buffer_size() for made in served.server.server_state.connections]
            largest = max([largest, *sizes])
            time.sleep(0.01)
    assert 0 < largest <= limits.SOCKET_BYTES_MAX // 2 + 2 * len(PIECE)


def test_P7_twenty_stalled_sockets_do_not_slow_the_producer(served: Served, gate: Gate) -> None:
    """The whole measurement is `python -m bench.followers`; here the producer must not come to a halt."""
    run = begin(served)
    wait_until(lambda: gate.asked)

    def rate() -> float:
        began, before = time.monotonic(), gate.asked
        time.sleep(0.7)
        return (gate.asked - before) / (time.monotonic() - began)

    alone = rate()
    sockets = [stalled(served.url, run) for _ in range(20)]
    for made in sockets:
        made.__enter__()
    wait_until(lambda: sum(stream.blocked for stream in served.server._face.pulse._open) == 20)
    beside = rate()
    for made in sockets:
        made.__exit__(None, None, None)
    assert beside > 0.5 * alone


# ── the server goes ─────────────────────────────────────────────────────────────────────────────────────────────────

CHILD = """
import asyncio, sys
from stateroom.hosting.callable import CallableAgent
from stateroom.server.run import serve

async def loud(turn):
    while True:
        yield "x" * 4_000
        await asyncio.sleep(0.002)

async def silent(turn):
    await asyncio.sleep(3600)

agents = [CallableAgent("loud", loud), CallableAgent("silent", silent)]
asyncio.run(serve(sys.argv[1], agents, port=0))
"""


def test_a_stopping_process_is_gone_within_two_seconds_whatever_its_readers_do(store_url: str) -> None:
    """Some read, some are idle, some do not read, one waits for its answer; the readers end between two events."""
    child = subprocess.Popen([sys.executable, "-c", CHILD, store_url], stdout=subprocess.PIPE, text=True)
    texts: dict[str, list[str]] = {"loud": [], "silent": []}
    answers = list[int]()

    def read(run: str, found: list[str]) -> None:
        with httpx.Client(timeout=20) as http, http.stream("GET", f"{url}/v1/runs/{run}/events") as stream:
            found.append("".join(stream.iter_text()))

    def wait() -> None:
        answers.append(httpx.post(f"{url}/v1/responses", json={"input": "x", "model": "silent"}, timeout=20).status_code)

    try:
        assert child.stdout is not None
        url = child.stdout.readline().split()[-1]
        runs = {}
        for name in texts:
            body = {"input": "x", "model": name, "background": True}
            runs[name] = "run_" + httpx.post(f"{url}/v1/responses", json=body, timeout=10).json()["id"][5:]
        readers = [threading.Thread(target=read, args=(runs[name], texts[name])) for name in texts for _ in range(5)]
        readers.append(threading.Thread(target=wait))
        for reader in readers:
            reader.start()
        sockets = [stalled(url, runs["loud"]) for _ in range(10)]
        for made in sockets:
            made.__enter__()
        time.sleep(1)
        child.send_signal(signal.SIGTERM)
        sent = time.monotonic()
        assert child.wait(timeout=5) == 0
        assert time.monotonic() - sent < 2.0
        for reader in readers:
            reader.join(timeout=2)
            assert not reader.is_alive()
    finally:
        child.kill()
        child.communicate()
    for made in sockets:
        made.__exit__(None, None, None)
    assert answers == [503]
    assert len(texts["loud"]) == len(texts["silent"]) == 5
    for text in texts["loud"] + texts["silent"]:
        assert text.endswith("\n\n")
        assert numbers(text) == list(range(len(numbers(text))))
        assert "response.completed" not in text


def test_heartbeats_go_to_the_silent_only(store_url: str) -> None:
    gate = Gate()
    with serving(pieces(gate), heartbeat_s=0.3, url=store_url) as served, served.client() as http:
        run = begin(served)
        lines = list[str]()
        with http.stream("GET", f"/v1/runs/{run}/events") as stream:
            for line in stream.iter_lines():
                lines.append(line)
                if lines.count(": still here") == 3:
                    gate.opened.set()
    assert ": still here" not in lines[:20]  # while something was said
    assert lines[-2].startswith("data: ")
