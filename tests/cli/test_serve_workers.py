"""`stateroom serve --workers`: several processes, one port, one store. Whatever dies, every caller gets its answer."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from stateroom.client import AsyncClient, Client
from stateroom.server.workers import RESTART_S_MAX, listen, restart_s
from tests.cli.conftest import Cli

# `who` says which process answers, and waits while a file named like the input is there; `slow` takes its time.
AGENTS = """
import asyncio, os, pathlib

async def who(turn):
    pathlib.Path(f"{turn.text}.asked").touch()
    yield f"{os.getpid()} "
    while pathlib.Path(f"{turn.text}.held").exists():
        await asyncio.sleep(0.01)
    yield "says " + turn.text

async def slow(turn):
    for word in ("heard", turn.text):
        yield word + " "
        await asyncio.sleep(0.05)
"""


class Parent:
    """The parent of the workers, and how to reach one of them."""

    def __init__(self, url: str, process: subprocess.Popen[str], folder: Path) -> None:
        self.url, self.process, self.folder = url, process, folder

    def workers(self) -> set[int]:
        """Which processes answer, as the system knows them."""
        found = subprocess.run(["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True, check=False)
        return {int(pid) for pid in found.stdout.split()}

    @contextmanager
    def on(self, pid: int) -> Iterator[httpx2.Client]:
        """A connection to this worker: made while the others are stopped."""
        others = self.workers() - {pid}
        for other in others:
            os.kill(other, signal.SIGSTOP)
        try:
            with httpx2.Client(base_url=self.url, timeout=10, verify=False) as http:
                http.get("/healthz")
                for other in others:
                    os.kill(other, signal.SIGCONT)
                yield http
        finally:
            for other in others:
                os.kill(other, signal.SIGCONT)


@contextmanager
def served(folder: Path, *argv: str, workers: int = 2) -> Iterator[Parent]:
    (folder / "mine.py").write_text(AGENTS)
    command = [sys.executable, "-m", "stateroom.cli", "serve", "--port", "0", "--workers", str(workers), *argv]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        match = re.search(r"http://\S+", process.stdout.readline())
        assert match
        yield Parent(match.group(), process, folder)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        assert "ready" not in process.stdout.read()  # it was said once
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parent]:
    with served(tmp_path_factory.mktemp("served"), "--agent", "mine:who", "--agent", "mine:slow") as running:
        yield running


@contextmanager
def held(parent: Parent, name: str) -> Iterator[Path]:
    """A turn with this input waits until the block ends; yields what is there once it has begun."""
    hold = parent.folder / f"{name}.held"
    hold.touch()
    try:
        yield parent.folder / f"{name}.asked"
    finally:
        hold.unlink(missing_ok=True)


def seen(path: Path) -> None:
    until = time.monotonic() + 10
    while not path.exists():
        assert time.monotonic() < until, f"{path.name} did not come"
        time.sleep(0.005)


def test_every_worker_answers_anything(parent: Parent) -> None:
    workers = parent.workers()
    assert len(workers) == 2
    previous, said = None, set[int]()
    for pid in [*workers, *workers]:
        with parent.on(pid) as http:
            answer = http.post("/v1/responses", json={"input": "hi", "previous_response_id": previous}).json()
        previous = answer["id"]
        assert answer["status"] == "completed"
        said.add(int(answer["output"][0]["content"][0]["text"].split()[0]))
    assert said == workers


def test_a_burst_of_connections_is_shared(parent: Parent) -> None:
    """They come at once and stay: whoever gets them keeps them."""

    async def ask(http: httpx2.AsyncClient) -> str:
        answer = await http.post("/v1/responses", json={"input": "burst"})
        return str(answer.json()["output"][0]["content"][0]["text"].split()[0])

    async def burst() -> list[str]:
        limits = httpx2.Limits(max_connections=None)
        async with httpx2.AsyncClient(base_url=parent.url, timeout=10, verify=False, limits=limits) as http:
            return await asyncio.gather(*(ask(http) for _ in range(24)))

    asked = asyncio.run(burst())
    assert len(set(asked)) == 2
    assert min(asked.count(pid) for pid in set(asked)) >= 3


def test_P4_a_run_is_followed_live_through_another_worker(parent: Parent) -> None:
    one, other = parent.workers()
    with held(parent, "live") as asked, parent.on(one) as here, parent.on(other) as there:
        made = here.post("/v1/responses", json={"input": "live", "background": True}).json()
        seen(asked)
        kinds = list[str]()
        with there.stream("GET", f"/v1/runs/run_{made['id'][5:]}/events") as stream:
            for line in stream.iter_lines():
                if line.startswith("event: "):
                    kinds.append(line.removeprefix("event: "))
                if kinds[-1:] == ["response.output_text.delta"]:
                    (parent.folder / "live.held").unlink(missing_ok=True)  # what came so far was seen while it goes on
        final = here.get(f"/v1/responses/{made['id']}").json()
    assert kinds[-1] == "response.completed"
    assert final["output"][0]["content"][0]["text"] == f"{one} says live"


def test_P12_a_run_is_cancelled_through_another_worker(parent: Parent) -> None:
    one, other = parent.workers()
    with held(parent, "cancel") as asked, parent.on(one) as here, parent.on(other) as there:
        made = here.post("/v1/responses", json={"input": "cancel", "background": True}).json()
        seen(asked)
        assert there.post(f"/v1/responses/{made['id']}/cancel").json()["status"] == "cancelled"
        assert here.get(f"/v1/responses/{made['id']}").json()["status"] == "cancelled"


def test_P14_a_retry_that_meets_another_worker_attaches(parent: Parent) -> None:
    one, other = parent.workers()
    body, headers = {"input": "again"}, {"Idempotency-Key": "the same"}
    answers = list[httpx2.Response]()
    with held(parent, "again") as asked, parent.on(one) as here, parent.on(other) as there:
        first, second = (
            threading.Thread(target=lambda http=http: answers.append(http.post("/v1/responses", json=body, headers=headers)))
            for http in (here, there)
        )
        first.start()
        seen(asked)
        second.start()
        time.sleep(0.1)
        (parent.folder / "again.held").unlink()
        first.join()
        second.join()
    assert answers[0].json() == answers[1].json()
    assert {answer.headers.get("Idempotency-Replayed") for answer in answers} == {None, "true"}


def test_what_is_not_stored_is_only_where_its_worker_is(parent: Parent) -> None:
    one, other = parent.workers()
    body, headers = {"input": "unstored", "store": False, "stream": True}, {"Idempotency-Key": "unstored"}
    with (
        held(parent, "unstored"), parent.on(one) as here, parent.on(other) as there,
        here.stream("POST", "/v1/responses", json=body, headers=headers) as stream,
    ):  # fmt: skip
        line = next(line for line in stream.iter_lines() if "resp_" in line)
        response = re.search(r"resp_(\w+)", line)
        assert response
        elsewhere = [
            there.get(f"/v1/responses/{response[0]}"),
            there.get(f"/v1/runs/run_{response[1]}/events"),
            there.post("/v1/responses", json=body, headers=headers),
        ]
    assert [(answer.status_code, answer.json()["error"]["code"]) for answer in elsewhere] == [(409, "not_here")] * 3


# ── dying ───────────────────────────────────────────────────────────────────────────────────────────────────────────

CALLERS, TURNS, KILLS = 8, 20, 3


@pytest.mark.crash
def test_P1_P9_P14_workers_killed_under_load_lose_and_double_nothing(tmp_path: Path) -> None:
    """Callers go on with their conversations while one worker after the other is killed; then everything is read back."""

    async def call(client: AsyncClient, number: int, record: dict[str, list[str]]) -> None:
        with httpx2.Client(base_url=running.url, timeout=10, verify=False) as http:
            conversation = http.post("/v1/conversations", json={}, headers={"Idempotency-Key": f"begin {number}"}).json()["id"]
        said = record.setdefault(conversation, [])
        for turn in range(TURNS):
            text = f"turn {number}.{turn}"
            reply = await client.turn(text, conversation=conversation, agent="slow")
            assert (reply.status, reply.text) == ("completed", f"heard {text} ")
            said += [text, reply.text]

    async def strike() -> None:
        for _ in range(KILLS):
            await asyncio.sleep(0.6)
            os.kill(min(running.workers()), signal.SIGKILL)  # the older one: it has work

    async def load() -> dict[str, list[str]]:
        record: dict[str, list[str]] = {}
        async with AsyncClient(running.url) as client, asyncio.TaskGroup() as group:
            group.create_task(strike())
            for number in range(CALLERS):
                group.create_task(call(client, number, record))
        return record

    with served(tmp_path, "--agent", "mine:slow") as running:
        record = asyncio.run(load())
        assert len(record) == CALLERS
        with httpx2.Client(base_url=running.url, timeout=10, verify=False) as http:
            attempts = [run["attempt"] for run in http.get("/v1/runs", params={"limit": 100}).json()["data"]]
            assert max(attempts) > 1  # some were struck in the middle
            for conversation, said in record.items():
                items = http.get(f"/v1/conversations/{conversation}/items", params={"limit": 100, "order": "asc"}).json()["data"]
                assert [item["content"][0]["text"] for item in items] == said
        until = time.monotonic() + 10
        while len(running.workers()) < 2:  # the last one that died is back
            assert time.monotonic() < until
            time.sleep(0.05)


@pytest.mark.crash
def test_P9_a_run_whose_worker_dies_is_taken_up_by_another_at_once(parent: Parent) -> None:
    """Long before its lease ends: the lock of a dead process is free."""
    one, other = parent.workers()
    with held(parent, "taken up") as asked, parent.on(one) as here, Client(parent.url) as client:
        made = here.post("/v1/responses", json={"input": "taken up", "background": True}).json()
        seen(asked)
        asked.unlink()
        os.kill(one, signal.SIGKILL)
        died = time.monotonic()
        seen(asked)
        took = time.monotonic() - died
        (parent.folder / "taken up.held").unlink()
        *_, last = client.follow(made["id"])
    assert took < 3
    assert last.body["response"]["output"][0]["content"][0]["text"].split()[0] != str(one)
    assert client_sees(parent, other)


def client_sees(parent: Parent, survivor: int) -> bool:
    """A new worker stands beside the one that was left."""
    until = time.monotonic() + 10
    while time.monotonic() < until:
        if survivor in (now := parent.workers()) and len(now) == 2:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.crash
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_all_are_gone_when_the_parent_is(tmp_path: Path, how: signal.Signals) -> None:
    """In order, with a stream open; even when the parent had no time to tell them."""
    (tmp_path / "mine.py").write_text(AGENTS)
    (tmp_path / "open.held").touch()
    command = [sys.executable, "-m", "stateroom.cli", "serve", "--port", "0", "--workers", "2", "--agent", "mine:who"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        workers = Parent(url, process, tmp_path).workers()
        with (
            httpx2.Client(base_url=url, timeout=10, verify=False) as http,
            http.stream("POST", "/v1/responses", json={"input": "open", "stream": True}) as stream,
        ):
            lines = stream.iter_lines()
            assert next(lines)
            process.send_signal(how)
            sent = time.monotonic()
            assert process.wait(10) == (0 if how is not signal.SIGKILL else -how)
            assert all("response.completed" not in line for line in lines)  # cut between two events
        while any(alive(pid) for pid in workers):
            assert time.monotonic() - sent < 6
            time.sleep(0.02)
        assert time.monotonic() - sent < 4
    finally:
        process.kill()
        process.communicate()


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z" if Path(f"/proc/{pid}/stat").exists() else True


# ── refusing ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_is_wrong_with_all_workers_is_said_once_and_ends_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "stateroom.cli", "serve", "--port", "0", "--workers", "3", "--agent", "nobody"]
    told = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=20, check=False)
    assert told.returncode == 1
    assert told.stderr.count("(agent_unknown)") == 1
    assert told.stdout == ""


def test_a_store_that_cannot_be_shared_is_refused(cli: Cli) -> None:
    told = cli("serve", "--workers", "2", "--port", "0", "--store", "ram://")
    assert (told.code, "(store_not_shared)" in told.err) == (1, True)


def test_a_taken_port_is_told_before_any_worker_starts(cli: Cli, tmp_path: Path) -> None:
    with listen("127.0.0.1", 0) as taken:
        told = cli("serve", "--workers", "2", "--port", str(taken.getsockname()[1]), "--data", str(tmp_path / "store"))
    assert (told.code, "(port_taken)" in told.err) == (1, True)
    assert not (tmp_path / "store").exists()


def test_others_are_served_only_with_tokens(cli: Cli, tmp_path: Path) -> None:
    told = cli("serve", "--workers", "2", "--port", "0", "--host", "0.0.0.0", "--data", str(tmp_path / "store"))
    assert (told.code, "(tokens_needed)" in told.err) == (1, True)


def test_a_worker_that_dies_again_and_again_is_started_later_and_later() -> None:
    waits = [restart_s(deaths) for deaths in range(1, 100)]
    assert waits[0] == 0
    assert waits == sorted(waits)
    assert 0 < waits[1] < waits[4] < waits[-1] == RESTART_S_MAX
