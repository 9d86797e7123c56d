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


@pytest.mark.parametrize("media", ["application/json", "application/merge-patch+json", "application/json-patch+json"])
def test_a_patch_under_a_used_key_is_answered_with_the_version_it_made(http: httpx.Client, media: str) -> None:
    url = "/v1/sessions/" + http.post("/v1/sessions", json={"slots": {"a": 0, "b": 0}}).json()["id"]
    bodies = {
        "application/json": b'{"slots": {"a": 1}}',
        "application/merge-patch+json": b'{"a": 1}',
        "application/json-patch+json": b'[{"op": "replace", "path": "/a", "value": 1}]',
    }
    headers = {"Idempotency-Key": f"made {media} {url}", "Content-Type": media}
    first = http.patch(url, content=bodies[media], headers=headers)
    http.patch(url, json={"slots": {"a": 2, "c": 3}, "remove": ["b"]})
    again = http.patch(url, content=bodies[media], headers=headers)
    assert (first.json()["version"], first.json()["slots"]) == (2, {"a": 1, "b": 0})
    assert (again.json(), again.headers["ETag"]) == (first.json(), first.headers["ETag"])
    assert again.headers["Idempotency-Replayed"] == "true"
    other = http.patch(url, content=bodies[media].replace(b"1", b"7"), headers=headers)
    assert (other.status_code, other.json()["error"]["code"]) == (422, "idempotency_key_reused")
    assert http.get(url).json()["slots"] == {"a": 2, "c": 3}


def test_a_patch_that_changes_nothing_has_its_version_too(http: httpx.Client) -> None:
    url = "/v1/sessions/" + http.post("/v1/sessions", json={"slots": {"a": 0}}).json()["id"]
    headers = {"Idempotency-Key": f"nothing {url}", "Content-Type": "application/merge-patch+json"}
    first = http.patch(url, content=b'{"a": 0}', headers=headers)
    http.patch(url, json={"slots": {"a": 1}})
    assert http.patch(url, content=b'{"a": 0}', headers=headers).json() == first.json()
    assert first.json()["version"] == 1


@pytest.mark.parametrize("verb", ["rollback", "access", "slots/w/entries", ""])
def test_whatever_makes_a_version_is_answered_with_it(http: httpx.Client, verb: str) -> None:
    opened = {"slots": {"w": {"seconds": 9}, "a": 0}, "kinds": {"w": "window"}}
    session = http.post("/v1/sessions", json={}).json()["id"] if verb else ""
    url = f"/v1/sessions/{session}"
    if verb:
        http.patch(url, json=opened | {"slots": {"a": 0}})
        http.patch(url, json={"operations": [{"slot": "w", "op": "set", "kind": "window", "value": {"seconds": 9}}]})
    bodies = {"rollback": {"version": 2}, "access": {"agent": "x", "read": ["*"]}, "slots/w/entries": {"data": 1}, "": opened}
    headers = {"Idempotency-Key": f"makes {verb} {url}"}
    asked = f"{url}/{verb}" if verb else "/v1/sessions"
    first = http.post(asked, json=bodies[verb], headers=headers).json()
    http.patch(f"/v1/sessions/{first['id']}", json={"slots": {"a": 1}})
    again = http.post(asked, json=bodies[verb], headers=headers).json()
    assert again["version"] == first["version"]
    assert again.get("slots", {}).get("a") == first.get("slots", {}).get("a")


def test_a_name_that_was_dropped_since_is_not_there(http: httpx.Client) -> None:
    url = "/v1/sessions/" + http.post("/v1/sessions", json={"slots": {"a": 0}}).json()["id"]
    headers = {"Idempotency-Key": f"gone {url}"}
    first = http.post(f"{url}/checkpoints", json={"name": "one"}, headers=headers).json()
    assert http.delete(f"{url}/checkpoints/one").status_code == 200
    again = http.post(f"{url}/checkpoints", json={"name": "one"}, headers=headers)
    assert (first["version"], again.status_code, again.json()["error"]["code"]) == (1, 404, "checkpoint_missing")


def test_a_replayed_stream_starts_at_its_beginning(http: httpx.Client) -> None:
    headers = {"Idempotency-Key": "streamed twice"}
    first = http.post("/v1/responses", json={"input": "hi", "stream": True}, headers=headers)
    again = http.post("/v1/responses", json={"input": "hi", "stream": True}, headers=headers)
    plain = http.post("/v1/responses", json={"input": "hi"}, headers=headers)
    assert again.text == first.text
    assert again.headers["Idempotency-Replayed"] == "true"
    assert plain.json()["id"] in first.text
