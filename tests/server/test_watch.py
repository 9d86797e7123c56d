"""Watching a desk over HTTP and WebSocket: resumed at every cursor, and told when it is over."""

from __future__ import annotations

import json
import threading
from typing import Any

import httpx2 as httpx
import pytest
from websockets.sync.client import connect

from tests.server.serving import Served


def events(lines: Any, count: int) -> list[tuple[str, dict[str, Any]]]:
    """The first events of a stream: (cursor, event)."""
    found, cursor = list[tuple[str, dict[str, Any]]](), ""
    for line in lines:
        if line.startswith("id: "):
            cursor = line[4:]
        elif line.startswith("data: "):
            found.append((cursor, json.loads(line[6:])))
            if len(found) == count:
                break
    return found


def watched(http: httpx.Client, session: str, count: int, after: str = "") -> list[tuple[str, dict[str, Any]]]:
    headers = {"Last-Event-ID": after} if after else {}
    with http.stream("GET", f"/v1/sessions/{session}/watch", headers=headers, timeout=10) as answer:
        assert (answer.status_code, answer.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        return events(answer.iter_lines(), count)


@pytest.fixture
def desk(http: httpx.Client) -> str:
    session = str(http.post("/v1/sessions", json={"slots": {"a": 1}}).json()["id"])
    for n in range(4):
        http.patch(f"/v1/sessions/{session}", json={"operations": [{"slot": "n", "op": "counter.add", "value": n}]})
    return session


def test_the_state_comes_first_and_then_every_patch(served: Served, http: httpx.Client, desk: str) -> None:
    def write() -> None:
        with served.client() as other:
            for n in range(3):
                other.patch(f"/v1/sessions/{desk}", json={"slots": {"late": n}})

    timer = threading.Timer(0.2, write)
    timer.start()
    (_, state), *rest = watched(http, desk, 4)
    timer.join()
    assert (state["type"], state["version"], state["slots"]) == ("session.state", 5, {"a": 1, "n": 6})
    assert [event["slots"] for _, event in rest] == [{"late": 0}, {"late": 1}, {"late": 2}]


def test_P4_a_watcher_resumes_at_every_cursor(http: httpx.Client, desk: str) -> None:
    (cursor, state), *_ = watched(http, desk, 1)
    start = f"{cursor.partition('.')[0]}.0"
    whole = watched(http, desk, 5, after=start)
    assert [event["version"] for _, event in whole] == [1, 2, 3, 4, 5]
    assert state["version"] == 5
    for n, (at, _) in enumerate(whole[:-1]):
        assert watched(http, desk, 4 - n, after=at) == whole[n + 1 :]


def test_P6_foreign_and_malformed_cursors_are_refused(http: httpx.Client, desk: str) -> None:
    (cursor, _), *_ = watched(http, desk, 1)
    epoch = cursor.partition(".")[0]
    refused = (("nonsense", 400, "cursor_invalid"), ("00000000.1", 410, "cursor_gone"), (f"{epoch}.99", 400, "cursor_ahead"))
    for given, status, code in refused:
        answer = http.get(f"/v1/sessions/{desk}/watch", params={"after": given})
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


def test_the_same_over_a_websocket_until_the_session_ends(served: Served, http: httpx.Client, desk: str) -> None:
    with connect(served.url.replace("http", "ws") + f"/v1/sessions/{desk}/watch") as socket:
        state = json.loads(socket.recv(timeout=5))
        assert (state["type"], state["id"].partition(".")[2]) == ("session.state", "5")
        http.patch(f"/v1/sessions/{desk}", json={"slots": {"a": 2}})
        assert json.loads(socket.recv(timeout=5))["slots"] == {"a": 2}
        http.delete(f"/v1/sessions/{desk}")
        assert json.loads(socket.recv(timeout=5))["type"] == "session.ended"
    assert http.get(f"/v1/sessions/{desk}/watch").status_code == 410
