"""The desk over HTTP: what changed since a version, patches with preconditions, and the end."""

from __future__ import annotations

import httpx2 as httpx
import pytest

from tests.server.serving import one_by_one


@pytest.fixture
def desk(http: httpx.Client) -> str:
    """A session at version 1 with two slots."""
    return str(http.post("/v1/sessions", json={"slots": {"size": 10, "colour": "black"}, "metadata": {"a": "b"}}).json()["id"])


def test_a_session_is_opened_under_a_chosen_id(http: httpx.Client) -> None:
    id = "sess_" + "00ff" * 8
    made = http.post("/v1/sessions", json={"id": id, "metadata": {"a": "b"}})
    assert made.json() == {
        "id": id, "object": "session", "version": 0, "status": "active", "conversation": None, "agent": None,
        "created_at": made.json()["created_at"], "metadata": {"a": "b"}, "last_turn": None, "slots": {},
        "parent": None, "ttl_s": None, "removed": [], "slot_versions": {},
    }  # fmt: skip
    taken = http.post("/v1/sessions", json={"id": id})
    assert (taken.status_code, taken.json()["error"]["code"]) == (409, "already_exists")
    assert taken.headers["x-should-retry"] == "false"


def test_a_read_since_a_version_shows_what_changed_and_what_went(http: httpx.Client, desk: str) -> None:
    http.patch(f"/v1/sessions/{desk}", json={"slots": {"budget": 80}, "remove": ["size"]})
    whole = http.get(f"/v1/sessions/{desk}")
    assert whole.json()["slots"] == {"budget": 80, "colour": "black"}
    assert (whole.json()["removed"], whole.json()["slot_versions"]) == ([], {"budget": 2, "colour": 1})
    assert (whole.json()["version"], whole.headers["ETag"]) == (2, '"2"')
    delta = http.get(f"/v1/sessions/{desk}", params={"since_version": 1}).json()
    assert (delta["slots"], delta["removed"], delta["slot_versions"]) == ({"budget": 80}, ["size"], {"budget": 2, "size": 2})
    assert http.get(f"/v1/sessions/{desk}", params={"since_version": 2}).json()["slots"] == {}


def test_a_stale_version_is_412_and_a_stale_slot_409_with_the_actual_ones(http: httpx.Client, desk: str) -> None:
    http.patch(f"/v1/sessions/{desk}", json={"slots": {"size": 11}})
    stale = http.patch(f"/v1/sessions/{desk}", json={"slots": {"colour": "red"}}, headers={"If-Match": '"1"'})
    assert (stale.status_code, stale.json()["error"]["code"]) == (412, "version_conflict")
    assert stale.json()["error"]["details"] == {"version": 2}
    stale = http.patch(
        f"/v1/sessions/{desk}", json={"slots": {"size": 12, "colour": "red"}, "expected": {"size": 1, "colour": 1}}
    )
    assert (stale.status_code, stale.json()["error"]["code"]) == (409, "slot_conflict")
    assert stale.json()["error"]["details"] == {"version": 2, "slots": {"size": 2}, "values": {"size": 11}}
    assert stale.headers["x-should-retry"] == "false"
    assert http.get(f"/v1/sessions/{desk}").json()["slots"] == {"size": 11, "colour": "black"}


def test_right_preconditions_let_a_patch_through(http: httpx.Client, desk: str) -> None:
    patched = http.patch(
        f"/v1/sessions/{desk}", json={"slots": {"size": 11}, "expected": {"size": 1}}, headers={"If-Match": '"1"'}
    )
    assert (patched.status_code, patched.json()["version"], patched.headers["ETag"]) == (200, 2, '"2"')
    assert http.patch(f"/v1/sessions/{desk}", json={"slots": {"size": 12}}, headers={"If-Match": "*"}).status_code == 200
    absent = http.patch(f"/v1/sessions/{desk}", json={"slots": {"new": 1}, "expected": {"new": 0}})
    assert absent.status_code == 200


def test_an_ended_session_is_gone(http: httpx.Client, desk: str) -> None:
    assert http.delete(f"/v1/sessions/{desk}").json() == {"id": desk, "object": "session.deleted", "deleted": True}
    for answer in (http.get(f"/v1/sessions/{desk}"), http.patch(f"/v1/sessions/{desk}", json={"slots": {"a": 1}})):
        assert (answer.status_code, answer.json()["error"]["code"]) == (410, "session_ended")


def test_the_session_of_a_conversation_and_agent_is_found(http: httpx.Client) -> None:
    conversation = http.post("/v1/conversations", json={}).json()["id"]
    assert http.get("/v1/sessions", params={"conversation": conversation}).json()["data"] == []
    http.post("/v1/responses", json={"input": "hi", "conversation": conversation})
    http.post("/v1/responses", json={"input": "hi", "model": "tools", "conversation": conversation})
    (default,) = http.get("/v1/sessions", params={"conversation": conversation}).json()["data"]
    (other,) = http.get("/v1/sessions", params={"conversation": conversation, "agent": "tools"}).json()["data"]
    assert (default["agent"], other["agent"], default["conversation"]) == ("echo", "tools", conversation)
    assert default["id"] != other["id"]


def test_sessions_are_listed_newest_first_in_pages(http: httpx.Client) -> None:
    made = [one_by_one(http, "/v1/sessions") for _ in range(5)]
    first = http.get("/v1/sessions", params={"limit": 2}).json()
    second = http.get("/v1/sessions", params={"limit": 3, "after": first["last_id"]}).json()
    assert [entry["id"] for entry in first["data"] + second["data"]] == made[::-1]
    assert first["has_more"] is True


def test_a_session_shows_its_last_turn(http: httpx.Client) -> None:
    conversation = http.post("/v1/conversations", json={}).json()["id"]

    def turn(text: str, **more: str) -> str:
        return one_by_one(http, "/v1/responses", input=text, conversation=conversation, **more)

    def last(agent: str = "echo") -> dict[str, object]:
        (head,) = http.get("/v1/sessions", params={"conversation": conversation, "agent": agent}).json()["data"]
        found: dict[str, object] = http.get(f"/v1/sessions/{head['id']}").json()["last_turn"]
        return found

    first = turn("hi")
    assert last() == {"id": None, "run": "run_" + first[5:], "response": first, "status": "completed"}
    body, headers = {"input": "keyed", "conversation": conversation}, {"Idempotency-Key": "turn 7"}
    keyed = http.post("/v1/responses", json=body, headers=headers).json()["id"]
    assert (last()["id"], last()["response"]) == ("turn 7", keyed)
    other = turn("hi", model="tools")
    assert (last()["response"], last("tools")["response"]) == (keyed, other)
    failed = turn("hi", model="failing")
    assert (last("failing")["response"], last("failing")["status"]) == (failed, "failed")
