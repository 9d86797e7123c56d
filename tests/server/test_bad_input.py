"""P31: whatever comes in at whatever entrance is answered with a 4xx and a stable code, writes nothing, and harms nobody."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx2 as httpx
import pytest

from stateroom import limits
from tests.server.serving import Served, paused
from tests.services.places import Place
from tests.wire.test_json import HOSTILE

# Every route that reads a body.
ENTRANCES = {
    "create conversation": ("POST", "/v1/conversations"),
    "update conversation": ("POST", "/v1/conversations/{conversation}"),
    "append items": ("POST", "/v1/conversations/{conversation}/items"),
    "fork": ("POST", "/v1/conversations/{conversation}/fork"),
    "take a turn": ("POST", "/v1/responses"),
    "cancel response": ("POST", "/v1/responses/{response}/cancel"),
    "cancel run": ("POST", "/v1/runs/{run}/cancel"),
    "open session": ("POST", "/v1/sessions"),
    "patch session": ("PATCH", "/v1/sessions/{session}"),
    "answer an action": ("POST", "/v1/runs/{waiting}/actions/{action}"),
    "without prefix": ("POST", "/responses"),
}
BODIES = {
    **HOSTILE,
    "array": (b"[1,2]", "not_an_object"),
    "string": (b'"hello"', "not_an_object"),
    "null": (b"null", "not_an_object"),
    "number": (b"1", "not_an_object"),
    "white space": (b"  ", "json_invalid"),
    "a form": (b"input=hello&stream=true", "json_invalid"),
}
ITEM = {"type": "message", "role": "user", "content": "hi"}
LONG = {"type": "message", "role": "user", "content": "x" * limits.ITEM_BYTES_MAX}
WRONG: list[tuple[str, Any, str]] = [
    ("take a turn", {}, "input_missing"),
    ("take a turn", {"input": None}, "input_missing"),
    ("take a turn", {"input": 5}, "wrong_type"),
    ("take a turn", {"input": {"role": "user"}}, "wrong_type"),
    ("take a turn", {"input": ["hi"]}, "not_an_object"),
    ("take a turn", {"input": [None]}, "not_an_object"),
    ("take a turn", {"input": [{}]}, "item_type_missing"),
    ("take a turn", {"input": [{"type": 5}]}, "item_type_missing"),
    ("take a turn", {"input": [{"type": "message"}]}, "item_role_missing"),
    ("take a turn", {"input": [{"role": 5, "content": "x"}]}, "wrong_type"),
    ("take a turn", {"input": [{"role": "user", "content": 5}]}, "wrong_type"),
    ("take a turn", {"input": [LONG]}, "item_too_large"),
    ("take a turn", {"input": [ITEM] * 513}, "too_many_items"),
    ("take a turn", {"input": "x", "instructions": "y" * limits.ITEM_BYTES_MAX}, "options_too_large"),
    *[("take a turn", {"input": "x", name: value}, "wrong_type") for name, value in {
        "stream": "yes", "background": 1, "store": "false", "model": 5, "instructions": ["be", "brief"], "metadata": [],
        "conversation": 5, "previous_response_id": {}, "temperature": "hot", "top_p": True, "max_output_tokens": 1.5,
        "tools": {}, "tool_choice": 5, "text": "plain", "reasoning": "hard", "parallel_tool_calls": "no",
        "double_text": 1, "deadline_s": "soon",
    }.items()],
    ("take a turn", {"input": "x", "double_text": "shout"}, "double_text_unknown"),
    *[("take a turn", {"input": "x", "deadline_s": value}, "deadline_invalid") for value in (0, -1, 0.0001, 2_592_001, 1e300)],
    ("take a turn", {"input": "x", "deadline_s": 5, "store": False}, "deadline_invalid"),
    ("take a turn", {"input": "x", "conversation": {}}, "wrong_type"),
    ("take a turn", {"input": "x", "conversation": {"id": 5}}, "wrong_type"),
    ("take a turn", {"input": "x", "conversation": "conv_5"}, "not_found"),
    ("take a turn", {"input": "x", "conversation": "conv_" + "0" * 32}, "not_found"),
    ("take a turn", {"input": "x", "metadata": {"a": 1}}, "wrong_type"),
    ("take a turn", {"input": "x", "metadata": {str(n): "" for n in range(17)}}, "metadata_too_large"),
    ("create conversation", {"metadata": {"k" * 65: "v"}}, "metadata_too_large"),
    ("create conversation", {"metadata": {"k": "v" * 513}}, "metadata_too_large"),
    ("create conversation", {"metadata": "tag"}, "wrong_type"),
    ("create conversation", {"items": {}}, "wrong_type"),
    ("create conversation", {"items": [ITEM, 5]}, "not_an_object"),
    ("create conversation", {"items": [ITEM, {}]}, "item_type_missing"),
    ("create conversation", {"items": [ITEM] * 513}, "too_many_items"),
    ("update conversation", {}, "metadata_missing"),
    ("update conversation", {"metadata": {"k": None}}, "wrong_type"),
    ("append items", {}, "items_missing"),
    ("append items", {"items": []}, "items_missing"),
    ("append items", {"items": "x"}, "wrong_type"),
    ("append items", {"items": [ITEM, {"type": "message"}]}, "item_role_missing"),
    ("append items", {"items": [ITEM, LONG]}, "item_too_large"),
    ("append items", {"items": [ITEM] * 513}, "too_many_items"),
    ("fork", {"after": 5}, "wrong_type"),
    ("fork", {"after": "msg_5"}, "not_found"),
    ("fork", {"after": "msg_" + "0" * 32}, "not_found"),
    ("open session", {"id": "my session"}, "session_id_invalid"),
    ("open session", {"id": "sess_" + "0" * 32}, "session_id_invalid"),
    ("open session", {"slots": []}, "wrong_type"),
    ("open session", {"slots": {"": 1}}, "slot_name_invalid"),
    ("open session", {"slots": {"n": 2**53 + 1}}, "integer_too_large"),
    ("open session", {"slots": {"n": "x" * limits.SLOT_BYTES_MAX}}, "slot_too_large"),
    ("patch session", {}, "patch_empty"),
    ("patch session", {"slots": {}}, "patch_empty"),
    ("patch session", {"remove": [5]}, "wrong_type"),
    ("patch session", {"slots": {"a": 1}, "remove": ["a"]}, "slot_named_twice"),
    ("patch session", {"slots": {"a": 1}, "expected": {"a": "1"}}, "wrong_type"),
    ("patch session", {"slots": {"a": 1}, "expected": {"a": -1}}, "wrong_type"),
    ("patch session", {"slots": {"a": 1}, "expected": {"b": 1}}, "expected_without_change"),
    ("patch session", {"slots": {".hidden": 1}}, "slot_name_invalid"),
    ("patch session", {"slots": {str(n): n for n in range(257)}}, "patch_too_large"),
    *[("patch session", {"operations": [{"slot": "n", "op": op, "value": value} for value in values]}, "operand_invalid")
      for op, *values in (
          ("counter.add", 1, "x"), ("counter.add", 1, True), ("set.add", 5, [1]), ("map.put", {"a": 1}, [1]),
          ("list.append", [1], None),
      )],
    *[("patch session", {"operations": [{"slot": "w", "op": "window.append", "entries": value}]}, "entry_invalid")
      for value in (5, True, "x", {"a": 1})],
    *[("open session", {name: value}, "lifetime_invalid") for name in ("ttl_s", "max_s") for value in (1e308, -1e308, 10**400)],
    ("answer an action", {}, "answer_unfit"),
    ("answer an action", {"answer": "x" * limits.ITEM_BYTES_MAX}, "answer_too_large"),
]  # fmt: skip
QUERIES: list[tuple[str, str]] = [
    ("/v1/conversations/{conversation}/items?limit=0", "limit_invalid"),
    ("/v1/conversations/{conversation}/items?limit=101", "limit_invalid"),
    ("/v1/conversations/{conversation}/items?limit=-1", "number_invalid"),
    ("/v1/conversations/{conversation}/items?limit=1e1", "number_invalid"),
    ("/v1/conversations/{conversation}/items?limit=%D9%A1", "number_invalid"),  # a digit of another script
    ("/v1/conversations/{conversation}/items?limit=" + "9" * 5000, "number_invalid"),
    ("/v1/conversations/{conversation}/items?order=up", "order_invalid"),
    ("/v1/conversations/{conversation}/items?after=msg_5", "not_found"),
    ("/v1/conversations/{conversation}/items?after=%FF%00", "not_found"),
    ("/v1/conversations?limit=x", "number_invalid"),
    ("/v1/conversations?after=conv_5", "not_found"),
    ("/v1/responses/{response}?stream=yes", "flag_invalid"),
    ("/v1/responses/{response}?stream=true&starting_after=-1", "number_invalid"),
    ("/v1/responses/{response}/input_items?after=msg_5", "not_found"),
    ("/v1/runs?conversation=nope", "not_found"),
    ("/v1/runs?order=asc", "order_invalid"),
    ("/v1/runs/{waiting}/actions?pending=1", "flag_invalid"),
    ("/v1/runs/run_5/steps", "not_found"),
    ("/v1/handoffs/billing?limit=0", "limit_invalid"),
    ("/v1/sessions?conversation=nope", "not_found"),
    ("/v1/sessions/{session}?since_version=x", "number_invalid"),
    ("/v1/nothing", "path_unknown"),
    ("/v2/responses", "path_unknown"),
    ("/v1/conversations/", "path_unknown"),
]


@pytest.fixture(scope="module")
def ids(served: Served) -> dict[str, str]:
    """One object of each kind."""
    with served.client() as http:
        conversation = http.post("/v1/conversations", json={"items": [ITEM]}).json()["id"]
        response = http.post("/v1/responses", json={"input": "hi", "background": True}).json()["id"]
        session = http.post("/v1/sessions", json={"slots": {"size": 1}}).json()["id"]
        waiting, action = paused(http, "input")
    return {
        "conversation": conversation, "response": response, "run": "run_" + response[5:], "session": session,
        "waiting": waiting, "action": action["id"],
    }  # fmt: skip


@pytest.fixture
def unchanged(served: Served, ids: dict[str, str], module_place: Place) -> Iterator[None]:
    """Nothing is half-written, and the server answers afterwards."""
    with served.client() as http:
        while http.get(f"/v1/responses/{ids['response']}").json()["status"] == "in_progress":
            pass
        before = module_place.rows()
        yield
        assert module_place.rows() == before
        assert http.get("/healthz").json() == {"status": "ok"}


def assert_refused(answer: httpx.Response, code: str, status: int | None = None) -> None:
    assert 400 <= answer.status_code < 500
    assert status in (None, answer.status_code)
    assert set(answer.json()) == {"error"}
    error = answer.json()["error"]
    assert error["code"] == code
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    assert "param" in error
    assert answer.headers["x-request-id"].startswith("req_")


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("entrance", ENTRANCES)
def test_P31_hostile_bodies_are_refused_at_every_entrance(
    http: httpx.Client, ids: dict[str, str], entrance: str, body: str
) -> None:
    method, path = ENTRANCES[entrance]
    content, code = BODIES[body]
    assert_refused(http.request(method, path.format(**ids), content=content), code, 400)


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(("entrance", "body", "code"), WRONG, ids=[f"{w[0]}-{w[2]}-{n}" for n, w in enumerate(WRONG)])
def test_P31_wrong_values_are_refused_by_name(
    http: httpx.Client, ids: dict[str, str], entrance: str, body: Any, code: str
) -> None:
    method, path = ENTRANCES[entrance]
    assert_refused(http.request(method, path.format(**ids), json=body), code)


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(("url", "code"), QUERIES)
def test_P31_wrong_queries_are_refused_by_name(http: httpx.Client, ids: dict[str, str], url: str, code: str) -> None:
    assert_refused(http.get(url.format(**ids)), code)


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("key", ["", "k" * 256, "tab\there", "caf\u00e9"])
@pytest.mark.parametrize("entrance", ENTRANCES)
def test_P31_a_key_is_1_to_255_printable_ascii_characters(
    http: httpx.Client, ids: dict[str, str], entrance: str, key: str
) -> None:
    method, path = ENTRANCES[entrance]
    headers = {"Idempotency-Key": key.encode("latin-1")}
    assert_refused(http.request(method, path.format(**ids), json={}, headers=headers), "idempotency_key_invalid", 400)


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("etag", ["5", '"x"', 'W/"5"', '"5", "6"', '"-1"'])
def test_P31_if_match_takes_one_version(http: httpx.Client, ids: dict[str, str], etag: str) -> None:
    answer = http.patch(f"/v1/sessions/{ids['session']}", json={"slots": {"a": 1}}, headers={"If-Match": etag})
    assert_refused(answer, "if_match_invalid", 400)


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("entrance", ENTRANCES)
def test_P31_an_oversized_body_is_refused_while_it_is_read(
    http: httpx.Client, ids: dict[str, str], entrance: str, chunked: bool
) -> None:
    method, path = ENTRANCES[entrance]
    body = b'{"input":"' + b"x" * limits.BODY_BYTES_MAX + b'"}'
    content = (body[at : at + 65536] for at in range(0, len(body), 65536)) if chunked else body
    try:
        answer = http.request(method, path.format(**ids), content=content)
    except httpx.WriteError:
        return  # the server closed while we were still sending: it did not take the body either
    assert_refused(answer, "body_too_large", 413)


@pytest.mark.usefixtures("unchanged")
def test_a_wrong_method_is_told_the_right_ones(http: httpx.Client) -> None:
    answer = http.put("/v1/conversations", json={})
    assert_refused(answer, "method_not_allowed", 405)
    assert set(answer.headers["allow"].split(", ")) == {"GET", "POST"}


def raw(served: Served, data: bytes) -> bytes:
    """What the server says to these very bytes, until it or we close."""
    place = urlsplit(served.url)
    with socket.create_connection((place.hostname, place.port), timeout=5) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        said = b""
        while piece := connection.recv(65536):
            said += piece
        return said


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    "data",
    [
        b'POST /v1/responses HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n{"input":"cut"',
        b'POST /v1/responses HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\n\r\n{"input":"more than five"}',
        b"POST /v1/responses HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -5\r\n\r\n{}",
        b"POST /v1/responses HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"\x00\xff\x00\xff\r\n\r\n",
        b"GET /v1/runs\xff\xfe HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET /v1/runs/%ff%00 HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
    ],
    ids=["cut", "length too small", "negative length", "bad chunk", "no HTTP", "bad path bytes", "bad path escapes"],
)
def test_P31_what_is_no_sound_http_does_no_harm(served: Served, data: bytes) -> None:
    said = raw(served, data)
    assert said == b"" or said.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4"))


@pytest.mark.parametrize(
    "head",
    [b"GET /v1/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Long: ", b"GET /v1/runs?after="],
    ids=["header", "url"],
)
def test_P31_an_endless_head_is_cut_off(served: Served, head: bytes) -> None:
    place = urlsplit(served.url)
    sent = 0
    with socket.create_connection((place.hostname, place.port), timeout=5) as connection:
        connection.sendall(head)
        with pytest.raises(OSError):
            while sent < 64 << 20:
                connection.sendall(b"x" * 65536)
                sent += 65536
    assert sent < 16 << 20  # what the sockets' buffers swallow


def test_requests_on_one_connection_each_have_their_own_head(http: httpx.Client) -> None:
    for _ in range(40):
        answer = http.get("/healthz", headers={"X-Long": "x" * 4000})
        assert answer.status_code == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "image/png", ""])
def test_the_content_type_does_not_matter(http: httpx.Client, kind: str) -> None:
    answer = http.post("/v1/responses", content=b'{"input":"hi"}', headers={"Content-Type": kind})
    assert answer.json()["output"][0]["content"][0]["text"] == "hi"


def test_D15_unknown_fields_and_number_spellings_are_kept(http: httpx.Client) -> None:
    item = b'{"type":"hologram", "beams": 1.50,"big":123456789012345678901,"x":{"y":[1e2]}}'
    made = http.post("/v1/conversations", content=b'{"items":[%s]}' % item).json()["id"]
    export = http.get(f"/v1/conversations/{made}/export").content
    assert export == b'{"id":"%s","source":"stateroom","items":[%s]}\n' % (made.encode(), item)
    listed = http.get(f"/v1/conversations/{made}/items").content
    assert b'"beams":1.50,"big":123456789012345678901,"x":{"y":[1e2]}' in listed
    answer = http.post("/v1/responses", content=b'{"input":"hi","hologram":{"beams":1.50},"temperature":0.10}').json()
    run = http.get("/v1/runs/run_" + answer["id"][5:]).content
    assert b'"request":{"hologram":{"beams":1.50},"temperature":0.10}' in run


def test_a_large_body_within_the_limit_is_taken(http: httpx.Client) -> None:
    items = [{"type": "message", "role": "user", "content": "x" * 500_000}] * 15
    made = http.post("/v1/conversations", json={"items": items})
    assert made.status_code == 200
