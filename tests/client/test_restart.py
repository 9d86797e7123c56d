"""A server is killed under its readers and started anew on the same port: they notice nothing but a pause."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stateroom.cli.replay.chaos import free_port
from stateroom.client import Client, Event
from tests.client.reading import Calls, on_a_loop, waiting

AGENT = """
import asyncio, pathlib
async def words(turn):
    with pathlib.Path("asked").open("a") as asked:
        asked.write("x")
    for number in range(30):
        yield f"word{number} "
        await asyncio.sleep(0.02)
"""


class Process:
    """A server of our own on a fixed port, as often as it takes."""

    def __init__(self, folder: Path) -> None:
        (folder / "mine.py").write_text(AGENT)
        self.folder, self.port = folder, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.child: subprocess.Popen[str] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "stateroom.cli", "serve", "--port", str(self.port), "--agent", "mine:words"]
        self.child = subprocess.Popen(command, cwd=self.folder, stdout=subprocess.PIPE, text=True)
        assert self.child.stdout is not None
        assert "ready" in self.child.stdout.readline()

    def kill(self) -> None:
        if self.child is not None:
            self.child.kill()
            self.child.communicate()


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    started = Process(tmp_path)
    started.start()
    yield started
    started.kill()


@pytest.mark.crash
@pytest.mark.parametrize("calls", [waiting, on_a_loop], ids=["waiting", "on_a_loop"])
def test_P4_P9_a_server_killed_in_the_middle_of_a_stream_and_started_anew(process: Process, calls: Calls) -> None:
    begun = threading.Event()

    def strike() -> None:
        assert begun.wait(20)
        process.kill()
        time.sleep(0.3)  # nobody answers for a while
        process.start()

    striker = threading.Thread(target=strike)
    striker.start()
    (events,) = calls(process.url, [lambda client: watched(client.stream("hi"), begun)])
    striker.join()
    numbers = [event.body["sequence_number"] for event in events]
    assert numbers == list(range(len(numbers)))
    assert events[-1].type == "response.completed"
    assert (process.folder / "asked").read_text() == "xx"  # the first attempt was lost, the second one answered
    assert [event.type for event in events].count("response.in_progress") == 2  # what came before it is void
    response = events[-1].body["response"]
    assert response["output"][0]["content"][0]["text"] == "".join(f"word{number} " for number in range(30))
    with Client(process.url) as client:  # the same, from the start and from the middle, after the end
        assert list(client.follow(response["id"])) == events
        assert list(client.follow(response["id"], after=events[7].cursor)) == events[8:]


def watched(events: Any, begun: threading.Event) -> Any:
    """The same events; says when the text has begun."""
    return _on_a_loop(events, begun) if hasattr(events, "__aiter__") else _waiting(events, begun)


def _waiting(events: Iterator[Event], begun: threading.Event) -> Iterator[Event]:
    for event in events:
        if event.type.endswith("delta"):
            begun.set()
        yield event


async def _on_a_loop(events: Any, begun: threading.Event) -> Any:
    async for event in events:
        if event.type.endswith("delta"):
            begun.set()
        yield event


@pytest.mark.crash
def test_P14_waiting_for_an_answer_through_a_kill_takes_one_turn(process: Process) -> None:
    replies = list[Any]()

    def ask() -> None:
        with Client(process.url) as client:
            replies.append(client.turn("hi"))

    asking = threading.Thread(target=ask)
    asking.start()
    while not (process.folder / "asked").exists():
        time.sleep(0.01)
    process.kill()
    process.start()
    asking.join(30)
    (reply,) = replies
    assert (reply.status, reply.text) == ("completed", "".join(f"word{number} " for number in range(30)))
    with Client(process.url) as client:
        assert client.run(reply.run)["attempt"] == 2
