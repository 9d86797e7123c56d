"""An Idempotency-Key on every POST: the same key and body give the same object again, another body is refused."""

from __future__ import annotations

from typing import Any

import httpx2 as httpx
import pytest

from stateroom.server.app import ENDPOINTS
from tests.server.serving import paused

ITEM = {"type": "message", "role": "user", "content": "once"}
OTHER = {"type": "message", "role": "user", "content": "other"}
# route: (a body, another one). None: every body is the same to it.
UNKEYED = {"/sessions/{session}/slots/{slot}/document", "/sessions/{session}/prefetch"}  # bytes, and what changes nothing
POSTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "/responses": ({"input": "once"}, {"input": "other"}),
    "/conversations": ({"items": [ITEM]}, {"items": [OTHER]}),
    "/conversations/{conversation}": ({"metadata": {"a": "1"}}, {"metadata": {"a": "2"}}),
    "/conversations/{conversation}/items": ({"items": [ITEM, ITEM]}, {"items": [ITEM]}),
    "/conversations/{conversation}/fork": ({}, {"metadata": {"a": "1"}}),
    "/sessions": ({"slots": {"a": 1}}, {"slots": {"a": 2}}),
    "/sessions/{session}/access": ({"agent": "a", "read": ["*"]}, {"agent": "a"}),
    "/sessions/{session}/hold": ({"holder": "a", "seconds": 9}, {"holder": "b", "seconds": 9}),
    "/sessions/{session}/touch": ({}, {"now": True}),
    "/sessions/{session}/checkpoints": ({"name": "one"}, {"name": "two"}),
    "/sessions/{session}/rollback": ({"version": 1}, {"version": 0}),
    "/sessions/{session}/fork": ({"version": 1}, {}),
    "/sessions/{session}/slots/{slot}/entries": ({"entries": [{"data": 1}]}, {"entries": [{"data": 2}]}),
    "/responses/{response}/cancel": ({}, {"now": True}),
    "/runs/{run}/cancel": ({}, {"now": True}),
    "/runs/{paused}/actions/{action}": ({"answer": 10}, {"answer": 11}),
}


@pytest.fixture
def ids(http: httpx.Client) -> dict[str, str]:
    conversation = http.post("/v1/conversations", json={"items": [ITEM]}).json()["id"]
    response = http.post("/v1/responses", json={"input": "hi", "background": True}).json()["id"]
    while http.get(f"/v1/responses/{response}").json()["status"] == "in_progress":
        pass
    waiting, action = paused(http, "input")
    session = http.post("/v1/sessions", json={"slots": {"w": {"seconds": 9}}, "kinds": {"w": "window"}}).json()["id"]
    return {
        "conversation": conversation, "response": response, "run": "run_" + response[5:],
        "paused": waiting, "action": action["id"], "session": session, "slot": "w",
    }  # fmt: skip


def test_every_post_is_in_the_table() -> None:
    posts = {endpoint.path for endpoint in ENDPOINTS if endpoint.method == "POST"} - UNKEYED
    assert {path.replace("{paused}", "{run}") for path in POSTS} == posts


@pytest.mark.parametrize("path", POSTS)
def test_the_same_post_again_gives_the_same_object(http: httpx.Client, ids: dict[str, str], path: str) -> None:
    url, (body, other) = "/v1" + path.format(**ids), POSTS[path]
    headers = {"Idempotency-Key": f"same {path} {ids['run']}"}
    first = http.post(url, json=body, headers=headers)
    again = http.post(url, json=body, headers=headers)
    unprefixed = http.post(url.removeprefix("/v1"), json=body, headers=headers)
    assert first.status_code == 200
    assert "Idempotency-Replayed" not in first.headers
    assert (again.status_code, again.json(), again.headers["Idempotency-Replayed"]) == (200, first.json(), "true")
    assert unprefixed.json() == first.json()
    refused = http.post(url, json=other, headers=headers)
    assert (refused.status_code, refused.json()["error"]["code"]) == (422, "idempotency_key_reused")


def test_key_order_and_spacing_are_no_other_request(http: httpx.Client) -> None:
    headers = {"Idempotency-Key": "spelling"}
    first = http.post("/v1/conversations", content=b'{"metadata":{"a":"1","b":"2"}}', headers=headers)
    again = http.post("/v1/conversations", content=b'{ "metadata": {"b":"2", "a":"1"} }', headers=headers)
    assert again.json() == first.json()


def test_one_key_may_be_used_for_different_operations(http: httpx.Client, ids: dict[str, str]) -> None:
    headers = {"Idempotency-Key": f"shared {ids['run']}"}
    for path, (body, _) in POSTS.items():
        answer = http.post("/v1" + path.format(**ids), json=body, headers=headers)
        if path != "/runs/{run}/cancel":  # the same operation as a response's cancel, on another path
            assert answer.status_code == 200, path
            assert "Idempotency-Replayed" not in answer.headers


def test_a_refused_request_does_not_use_up_its_key(http: httpx.Client, ids: dict[str, str]) -> None:
    headers = {"Idempotency-Key": f"refused {ids['run']}"}
    url = f"/v1/conversations/{ids['conversation']}/items"
    assert http.post(url, json={"items": [ITEM, {}]}, headers=headers).status_code == 400
    assert http.post(url, json={"items": [ITEM]}, headers=headers).status_code == 200


def test_items_are_appended_once(http: httpx.Client, ids: dict[str, str]) -> None:
    headers, url = {"Idempotency-Key": f"items {ids['run']}"}, f"/v1/conversations/{ids['conversation']}/items"
    http.post(url, json={"items": [ITEM, OTHER]}, headers=headers)
    http.post(url, json={"items": [OTHER]})
    http.post(url, json={"items": [ITEM, OTHER]}, headers=headers)
    assert len(http.get(url).json()["data"]) == 4


def test_a_replayed_change_does_not_undo_a_later_one(http: httpx.Client, ids: dict[str, str]) -> None:
    url, headers = f"/v1/conversations/{ids['conversation']}", {"Idempotency-Key": f"late {ids['run']}"}
    http.post(url, json={"metadata": {"n": "1"}}, headers=headers)
    http.post(url, json={"metadata": {"n": "2"}})
    assert http.post(url, json={"metadata": {"n": "1"}}, headers=headers).json()["metadata"] == {"n": "2"}


def test_a_patch_takes_a_key_too(http: httpx.Client) -> None:
    session = http.post("/v1/sessions", json={}).json()["id"]
    headers = {"Idempotency-Key": f"patch {session}", "If-Match": '"0"'}
    first = http.patch(f"/v1/sessions/{session}", json={"slots": {"a": 1}}, headers=headers)
    again = http.patch(f"/v1/sessions/{session}", json={"slots": {"a": 1}}, headers=headers)
    assert (first.json()["version"], again.json()["version"], again.status_code) == (1, 1, 200)


def test_a_replayed_stream_starts_at_its_beginning(http: httpx.Client) -> None:
    headers = {"Idempotency-Key": "streamed twice"}
    first = http.post("/v1/responses", json={"input": "hi", "stream": True}, headers=headers)
    again = http.post("/v1/responses", json={"input": "hi", "stream": True}, headers=headers)
    plain = http.post("/v1/responses", json={"input": "hi"}, headers=headers)
    assert again.text == first.text
    assert again.headers["Idempotency-Replayed"] == "true"
    assert plain.json()["id"] in first.text
