"""WebSockets: who gets in, what a run's events look like on one, and how it ends."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx2 as httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from stateroom import limits
from stateroom.server.app import PREFIXES, SOCKETS
from stateroom.server.auth import Token
from tests.server.serving import Gate, Served, echo, paused, pieces, serving, until
from tests.server.test_slow_readers import loud, wait_until
from tests.services.places import Place


def at(served: Served, path: str, **how: Any) -> Any:
    return connect(served.url.replace("http", "ws", 1) + path, **how)


def begin(http: httpx.Client, **body: Any) -> str:
    return "run_" + str(http.post("/v1/responses", json={"input": "hi", "background": True, **body}).json()["id"])[5:]


def frames(made: ClientConnection) -> list[dict[str, Any]]:
    """Every frame until the socket is closed."""
    found = []
    try:
        while True:
            found.append(json.loads(made.recv(timeout=10)))
    except ConnectionClosed:
        return found


def closed(made: ClientConnection) -> tuple[int, str]:
    return made.protocol.close_code or 0, made.protocol.close_reason or ""


def cursors(http: httpx.Client, run: str) -> list[str]:
    lines = http.get(f"/v1/runs/{run}/events").text.splitlines()
    return [line.removeprefix("id: ") for line in lines if line.startswith("id: ")]


# ── a run's events ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_P4_frames_are_the_events_with_their_cursors_from_any_cursor_on(served: Served, http: httpx.Client) -> None:
    run = begin(http, model="pieces")
    with at(served, f"/v1/runs/{run}/events") as made:
        whole = frames(made)
        assert closed(made) == (1000, "")
    streamed = http.get(f"/v1/runs/{run}/events").text
    data = [line.removeprefix("data: ") for line in streamed.splitlines() if line.startswith("data: ")]
    assert [frame.pop("id") for frame in whole] == cursors(http, run)
    assert whole == [json.loads(event) for event in data]
    for cut, cursor in enumerate(cursors(http, run), 1):
        with at(served, f"/runs/{run}/events?after={cursor}") as made:
            assert [frame["sequence_number"] for frame in frames(made)] == list(range(cut, len(whole)))


def test_P4_a_socket_that_comes_back_at_every_event_of_a_live_run_misses_nothing(served: Served, http: httpx.Client) -> None:
    run, found, after = begin(http, model="pieces"), list[int](), ""
    while True:
        with at(served, f"/v1/runs/{run}/events?after={after}") as made:
            frame = json.loads(made.recv(timeout=10))
        found.append(frame["sequence_number"])
        after = frame["id"]
        if frame["type"] == "response.completed":
            break
    assert found == list(range(len(found)))


@pytest.mark.parametrize(("cursor", "status", "code"), [
    ("nonsense", 400, "cursor_invalid"), ("{epoch}.9999", 400, "cursor_ahead"), ("12345678.1", 410, "cursor_gone"),
])  # fmt: skip
def test_P6_a_bad_cursor_is_answered_before_the_socket_opens(
    served: Served, http: httpx.Client, cursor: str, status: int, code: str
) -> None:
    run = begin(http)
    until(http, run, "completed")
    given = cursor.format(epoch=cursors(http, run)[0].partition(".")[0])
    with pytest.raises(InvalidStatus) as refused, at(served, f"/v1/runs/{run}/events?after={given}"):
        pass
    assert refused.value.response.status_code == status
    assert json.loads(refused.value.response.body)["error"]["code"] == code


def test_what_the_client_says_on_it_is_not_listened_to(served: Served, http: httpx.Client) -> None:
    run, action = paused(http, "input")
    with at(served, f"/v1/runs/{run}/events") as made:
        made.recv(timeout=10)
        made.send("hello?")
        made.send(b"\xff" * 1000)
        http.post(f"/v1/runs/{run}/actions/{action['id']}", json={"answer": 1})
        assert frames(made)[-1]["type"] == "response.completed"


def test_P7_a_socket_that_does_not_read_is_told_how_far_it_came(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STALL_S", 1.5)
    gate = Gate()
    with serving(loud(gate), url=store_url) as served, served.client() as http:
        run = begin(http)
        small = socket.socket()
        small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        small.connect(("127.0.0.1", int(served.url.rpartition(":")[2])))
        with at(served, f"/v1/runs/{run}/events", max_queue=1, sock=small) as made:
            wait_until(lambda: len(served.server._face.pulse) == 1)
            wait_until(lambda: len(served.server._face.pulse) == 0)
            found = frames(made)
            code, reason = closed(made)
        gate.opened.set()
        until(http, run, "completed")
        assert (code, reason) == (1013, found[-1]["cursor"])
        assert found[-1] == {"type": "lagged", "cursor": found[-2]["id"]}
        with at(served, f"/v1/runs/{run}/events?after={reason}") as made:
            rest = frames(made)
    numbers = [frame["sequence_number"] for frame in (*found[:-1], *rest)]
    assert numbers == list(range(len(numbers)))


def test_a_stopping_server_closes_its_sockets_with_their_cursors(store_url: str) -> None:
    gate = Gate()
    found = dict[str, tuple[list[dict[str, Any]], tuple[int, str]]]()

    def read(name: str, path: str, frame: str = "") -> None:
        with at(served, path) as made:
            if frame:
                made.send(frame)
            found[name] = (frames(made), closed(made))

    with serving(pieces(gate), url=store_url) as served:
        with served.client() as http:
            run = begin(http)
        asks = {
            "following": (f"/v1/runs/{run}/events",), "talking": ("/v1/responses", '{"type":"response.create","input":"hi"}'),
            "idle": ("/v1/responses",),
        }  # fmt: skip
        readers = [threading.Thread(target=read, args=(name, *asked)) for name, asked in asks.items()]
        for reader in readers:
            reader.start()
        while gate.asked < 2 or len(served.server.server_state.connections) < 3:
            time.sleep(0.01)
        began = time.monotonic()
    assert time.monotonic() - began < 2.5
    for reader in readers:
        reader.join(timeout=3)
    seen, (code, cursor) = found["following"]
    assert (code, cursor) == (1012, seen[-1]["id"])
    told, (code, _) = found["talking"]
    assert (code, told[-1]["status"], told[-1]["error"]["code"]) == (1012, 503, "shutting_down")
    assert found["idle"] == ([], (1012, ""))
    gate.opened.set()
    with serving(pieces(gate), url=store_url) as served, at(served, f"/v1/runs/{run}/events?after={cursor}") as made:
        rest = frames(made)
    numbers = [frame["sequence_number"] for frame in (*seen, *rest)]
    assert numbers == list(range(len(numbers)))
    assert rest[-1]["type"] == "response.completed"


# ── the door ────────────────────────────────────────────────────────────────────────────────────────────────────────

TOKENS = [Token("sesame-open", "acme", "alice"), Token("sesame-other", "acme", "bob")]


@pytest.fixture(scope="module")
def guarded(module_place: Place) -> Iterator[Served]:
    with serving(echo(), tokens=TOKENS, url=module_place.url) as running:
        yield running


def refusal(served: Served, path: str, **headers: str) -> tuple[int, str]:
    with pytest.raises(InvalidStatus) as refused, at(served, path, additional_headers=headers):
        pass
    return refused.value.response.status_code, json.loads(refused.value.response.body)["error"]["code"]


NOBODYS = {"run": "run_" + "1" * 32, "session": "sess_" + "1" * 32}
EVERY = [prefix + socket.path.format(**NOBODYS) for prefix in PREFIXES for socket in SOCKETS]


@pytest.mark.parametrize("path", EVERY)
def test_without_a_valid_token_no_socket_opens(guarded: Served, path: str) -> None:
    assert refusal(guarded, path) == (401, "unauthorized")
    assert refusal(guarded, path, Authorization="Bearer wrong") == (401, "unauthorized")


def test_P28_another_ones_run_is_answered_like_none(guarded: Served) -> None:
    with guarded.client("sesame-open") as http:
        run = begin(http)
    theirs = {"Authorization": "Bearer sesame-other"}
    assert refusal(guarded, f"/v1/runs/{run}/events", **theirs) == (404, "not_found")
    assert refusal(guarded, "/v1/runs/run_" + "1" * 32 + "/events", **theirs) == (404, "not_found")
    with at(guarded, "/v1/responses", additional_headers=theirs) as made:
        for response in (f"resp_{run[4:]}", "resp_" + "1" * 32):
            made.send(json.dumps({"type": "response.create", "input": "x", "previous_response_id": response}))
            assert json.loads(made.recv(timeout=10))["error"]["code"] == "previous_response_not_found"


@pytest.mark.parametrize("headers", [{"Origin": "https://evil.example"}, {"Host": "evil.example"}])
def test_web_pages_from_elsewhere_open_no_socket(served: Served, headers: dict[str, str]) -> None:
    given = {
        "Host": "127.0.0.1", "Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "A" * 22 + "==", **headers,
    }  # fmt: skip
    host, _, port = served.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=5) as made:
        head = "".join(f"{name}: {value}\r\n" for name, value in given.items())
        made.sendall(f"GET /v1/responses HTTP/1.1\r\n{head}\r\n".encode())
        assert made.recv(100).startswith(b"HTTP/1.1 403")


HOSTILE = [
    b"", b"null", b"[]", b"{", b"{}", b'{"type":"shout"}', b'{"type":5}', b'{"type":"response.create",', b"[" * 100, b"\xff\xfe",
    b'{"type":"response.create","input":"x","input":"y"}', b'{"type":"response.create","stream_id":5}',
    b'{"type":"response.create","input":{}}', b'{"type":"response.create","input":"x","idempotency_key":""}',
]  # fmt: skip


@pytest.mark.parametrize("data", HOSTILE)
def test_P31_a_frame_that_is_no_request_is_answered_and_harms_nobody(served: Served, data: bytes) -> None:
    with at(served, "/v1/responses") as made:
        made.send(data)
        error = json.loads(made.recv(timeout=10))
        assert (error["type"], error["status"]) == ("error", 400)
        made.send(json.dumps({"type": "response.create", "input": "still here"}))
        assert frames_until_end(made)[-1]["type"] == "response.completed"


def test_P31_a_frame_beyond_the_limit_closes_the_socket(served: Served) -> None:
    with at(served, "/v1/responses", max_size=None) as made:
        try:
            made.send("x" * (limits.BODY_BYTES_MAX + 1))
        except ConnectionClosed:
            pass
        assert frames(made) == []
        assert closed(made)[0] in (1009, 1006)  # what we still send may cut the server's word short


def frames_until_end(made: ClientConnection) -> list[dict[str, Any]]:
    found = [json.loads(made.recv(timeout=10))]
    while found[-1]["type"] != "response.completed":
        found.append(json.loads(made.recv(timeout=10)))
    return found
