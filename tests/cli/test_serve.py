"""`stateroom serve` as a person meets it: it says how to try it, refuses clearly, and finds everything as it was left."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2 as httpx
import pytest

from stateroom.cli.serve import agents_of
from tests.cli.conftest import Cli


@contextmanager
def served(*argv: str, cwd: Path) -> Iterator[tuple[str, list[str], subprocess.Popen[str]]]:
    """A server in a process of its own: its address, what it said, and itself. It has to end in order."""
    command = [sys.executable, "-m", "stateroom.cli", "serve", "--port", "0", *argv]
    process = subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(6)]
        match = re.search(r"http://\S+", said[0])
        assert match, said
        yield match.group(), said, process
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0, process.stderr.read() if process.stderr else ""
    finally:
        process.kill()
        process.communicate()


def test_it_says_how_to_try_it_and_that_works(tmp_path: Path) -> None:
    with served(cwd=tmp_path) as (url, said, _):
        curls = [line.strip() for line in said if line.strip().startswith("curl")]
        assert len(curls) == 3
        assert all(url in curl for curl in curls)
        tried = subprocess.run(["bash", "-c", curls[0]], capture_output=True, text=True, timeout=20)
        assert '"status":"completed"' in tried.stdout.replace(" ", "")
    assert (tmp_path / "stateroom-data" / "state.db").exists()


def test_P1_a_second_start_finds_everything_as_it_was_left(tmp_path: Path) -> None:
    with served(cwd=tmp_path) as (url, _, _), httpx.Client(base_url=url) as client:
        first = client.post("/v1/responses", json={"input": "I need black running shoes in size 10"}).json()
    with served(cwd=tmp_path) as (url, _, _), httpx.Client(base_url=url) as client:
        assert client.get(f"/v1/responses/{first['id']}").json()["output"] == first["output"]
        body = {"input": "show me cheaper ones", "previous_response_id": first["id"]}
        assert client.post("/v1/responses", json=body).json()["status"] == "completed"


def test_a_function_of_ones_own_answers(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("async def answer(turn):\n    return 'mine: ' + turn.text\n")
    with served("--agent", "mine:answer", cwd=tmp_path) as (url, _, _):
        reply = httpx.post(f"{url}/v1/responses", json={"input": "hi"}).json()
        assert reply["output"][0]["content"][0]["text"] == "mine: hi"


def test_a_taken_port_is_told_before_anything_is_opened(cli: Cli, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        told = cli("serve", "--port", str(taken.getsockname()[1]), "--data", str(tmp_path / "store"))
    assert told.code == 1
    assert "(port_taken)" in told.err
    assert "--port" in told.err.splitlines()[1]
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("name", ["nobody", "no.such.module:answer", "json:no_such_function", "json:__doc__"])
def test_an_agent_that_cannot_be_loaded_is_told(cli: Cli, tmp_path: Path, name: str) -> None:
    told = cli("serve", "--port", "0", "--agent", name, "--data", str(tmp_path / "store"))
    assert told.code == 1
    assert "(agent_" in told.err
    assert not (tmp_path / "store").exists()


def test_a_model_url_needs_a_model(cli: Cli, tmp_path: Path) -> None:
    told = cli("serve", "--port", "0", "--model-url", "http://127.0.0.1:9/v1", "--data", str(tmp_path / "store"))
    assert (told.code, "(model_missing)" in told.err) == (1, True)


def test_agents_answer_in_the_order_of_the_help() -> None:
    from argparse import Namespace

    none = Namespace(agent=[], model_url=None, model=None, model_wire="chat", tape=None, tape_delay_ms=0, tape_chars=0)
    assert [agent.name for agent in agents_of(none)] == ["clerk"]
    model = Namespace(**{**vars(none), "agent": ["clerk"], "model_url": "http://127.0.0.1:9/v1", "model": "llama3"})
    assert [agent.name for agent in agents_of(model)] == ["clerk", "llama3"]
