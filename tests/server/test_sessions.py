"""The desk over HTTP: what changed since a version, patches with preconditions, and the end."""

from __future__ import annotations

import json
import time

import httpx2 as httpx
import pytest

from tests.server.serving import Served, one_by_one


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
        "parent": None, "ttl_s": None, "access": {}, "holder": None, "hold": 0, "removed": [], "slot_versions": {},
        "durability": "durable",
    }  # fmt: skip
    taken = http.post("/v1/sessions", json={"id": id})
    assert (taken.status_code, taken.json()["error"]["code"]) == (409, "already_exists")
    assert taken.headers["x-should-retry"] == "false"


def test_a_session_is_opened_as_ephemeral(http: httpx.Client) -> None:
    made = http.post("/v1/sessions", json={"durability": "ephemeral", "slots": {"size": 42}}).json()
    assert (made["durability"], made["slots"]) == ("ephemeral", {"size": 42})
    assert http.patch(f"/v1/sessions/{made['id']}", json={"slots": {"size": 43}}).json()["version"] == 2
    refused = http.post("/v1/sessions", json={"durability": "eternal"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "durability_invalid")


def test_a_read_since_a_version_shows_what_changed_and_what_went(http: httpx.Client, desk: str) -> None:
    http.patch(f"/v1/sessions/{desk}", json={"slots": {"budget": 80}, "remove": ["size"]})
    whole = http.get(f"/v1/sessions/{desk}")
    assert whole.json()["slots"] == {"budget": 80, "colour": "black"}
    assert (whole.json()["removed"], whole.json()["slot_versions"]) == ([], {"budget": 2, "colour": 1})
    assert (whole.json()["version"], whole.headers["ETag"]) == (2, '"2"')
    delta = http.get(f"/v1/sessions/{desk}", params={"since_version": 1}).json()
    assert (delta["slots"], delta["removed"], delta["slot_versions"]) == ({"budget": 80}, ["size"], {"budget": 2, "size": 2})
    assert http.get(f"/v1/sessions/{desk}", params={"since_version": 2}).json()["slots"] == {}


def test_a_patch_can_be_answered_with_what_changed_only(http: httpx.Client, desk: str) -> None:
    http.patch(f"/v1/sessions/{desk}", json={"slots": {"budget": 80}})
    told = http.patch(f"/v1/sessions/{desk}", params={"since_version": 2}, json={"slots": {"size": 11}})
    assert (told.json()["slots"], told.json()["slot_versions"], told.json()["version"]) == ({"size": 11}, {"size": 3}, 3)
    told = http.patch(f"/v1/sessions/{desk}", params={"since_version": 1}, json={"remove": ["size"]})
    assert (told.json()["slots"], told.json()["removed"], told.headers["ETag"]) == ({"budget": 80}, ["size"], '"4"')
    bad = http.patch(f"/v1/sessions/{desk}", params={"since_version": "x"}, json={"slots": {"size": 12}})
    assert bad.json()["error"]["code"] == "number_invalid"
    assert http.get(f"/v1/sessions/{desk}").json()["version"] == 4, "what is not understood changes nothing"


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


def test_what_a_reader_has_already_is_not_sent_again(http: httpx.Client, desk: str) -> None:
    tag = http.get(f"/v1/sessions/{desk}").headers["ETag"]
    same = http.get(f"/v1/sessions/{desk}", headers={"If-None-Match": tag})
    assert (same.status_code, same.content, same.headers["ETag"]) == (304, b"", tag)
    http.patch(f"/v1/sessions/{desk}", json={"slots": {"size": 11}})
    assert http.get(f"/v1/sessions/{desk}", headers={"If-None-Match": tag}).json()["slots"]["size"] == 11


def test_a_bound_session_is_sent_again_when_its_last_turn_is_another(http: httpx.Client) -> None:
    conversation = http.post("/v1/conversations", json={}).json()["id"]
    http.post("/v1/responses", json={"input": "hi", "conversation": conversation})
    (head,) = http.get("/v1/sessions", params={"conversation": conversation}).json()["data"]
    tag = http.get(f"/v1/sessions/{head['id']}").headers["ETag"]
    assert http.get(f"/v1/sessions/{head['id']}", headers={"If-None-Match": tag}).status_code == 304
    http.post("/v1/responses", json={"input": "hi", "conversation": conversation})
    assert http.get(f"/v1/sessions/{head['id']}", headers={"If-None-Match": tag}).status_code == 200
    patched = http.patch(f"/v1/sessions/{head['id']}", json={"slots": {"a": 1}}, headers={"If-Match": tag})
    assert patched.status_code == 200, "If-Match is about the version"


def test_a_desk_that_was_hinted_at_is_there_when_it_is_asked_for(served: Served, http: httpx.Client, desk: str) -> None:
    def counted() -> dict[str, int]:
        found: dict[str, int] = http.get("/v1/stats").json()["hydration"]
        return found

    served.room.hydrator._desks.clear()  # opening it has brought it there
    before = counted()
    assert http.post(f"/v1/sessions/{desk}/prefetch").status_code == 200
    end = time.monotonic() + 5
    while counted()["desks"] == before["desks"]:
        assert time.monotonic() < end
    http.get(f"/v1/sessions/{desk}")
    after = counted()
    assert after["ahead_hits"] == before["ahead_hits"] + 1
    assert after["misses"] == before["misses"]


def test_standard_patches_edit_the_whole_state(http: httpx.Client, desk: str) -> None:
    def patch(kind: str, body: object, **headers: str) -> httpx.Response:
        return http.patch(
            f"/v1/sessions/{desk}", content=json.dumps(body), headers={"content-type": f"application/{kind}+json", **headers}
        )

    merged = patch("merge-patch", {"size": None, "wish": {"a": 1, "b": None}, "colour": {"name": "black"}})
    assert merged.json()["slots"] == {"colour": {"name": "black"}, "wish": {"a": 1}}
    operations = [{"op": "test", "path": "/wish/a", "value": 1}, {"op": "add", "path": "/wish/b", "value": [1]}]
    edited = patch("json-patch", [*operations, {"op": "move", "from": "/colour/name", "path": "/name"}])
    assert edited.json()["slots"] == {"colour": {}, "name": "black", "wish": {"a": 1, "b": [1]}}
    refused = patch("json-patch", [{"op": "test", "path": "/wish/a", "value": 2}])
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "patch_does_not_apply")
    assert patch("merge-patch", {"a": 1}, **{"If-Match": '"1"'}).status_code == 412
    assert patch("merge-patch", {"name": "black"}).json()["version"] == edited.json()["version"]
    for bad in ({"op": "test"}, [1], [{"op": "add", "path": "", "value": 1}]):
        assert patch("json-patch", bad).status_code == 400


def test_operations_of_every_kind(http: httpx.Client, desk: str) -> None:
    operations = [
        {"slot": "n", "op": "counter.add", "value": 2}, {"slot": "n", "op": "counter.add", "value": 3},
        {"slot": "tags", "op": "set.add", "value": ["b", "a"]}, {"slot": "log", "op": "list.append", "value": [1]},
        {"slot": "cart", "op": "map.put", "value": {"a": 1, "b": 2}}, {"slot": "cart", "op": "map.drop", "value": ["a"]},
        {"slot": "wish", "op": "value.merge", "value": {"a": 1}}, {"slot": "size", "op": "remove"},
        {"slot": "typed", "op": "set", "value": {"goal": "x"}, "schema": "stateroom/task/1"},
    ]  # fmt: skip
    done = http.patch(f"/v1/sessions/{desk}", json={"operations": operations, "expected": {"size": 1}})
    assert done.json()["slots"] == {
        "n": 5, "tags": ["a", "b"], "log": [1], "cart": {"b": 2}, "wish": {"a": 1}, "typed": {"goal": "x"}, "colour": "black",
    }  # fmt: skip
    broken = http.patch(f"/v1/sessions/{desk}", json={"slots": {"typed": {"goal": 1}}})
    assert (broken.status_code, broken.json()["error"]["code"]) == (400, "schema_broken")
    for bad in ({}, {"slot": "n"}, {"slot": "n", "op": "add"}, {"slot": "n", "op": "counter.append"}, 1):
        assert http.patch(f"/v1/sessions/{desk}", json={"operations": [bad]}).status_code == 400


def test_versions_windows_and_single_slots(http: httpx.Client, desk: str) -> None:
    url = f"/v1/sessions/{desk}"
    assert http.post(f"{url}/checkpoints", json={"name": "first"}).json()["version"] == 1
    http.patch(url, json={"slots": {"size": 11, "w": {"seconds": 9}}, "kinds": {"w": "window"}})
    changes = http.get(f"{url}/diff", params={"before": 1}).json()["changes"]
    assert [(one["name"], one["before"] and one["before"]["value"]) for one in changes] == [("size", 10), ("w", None)]
    assert http.get(url, params={"version": 1}).json()["slots"] == {"size": 10, "colour": "black"}
    http.post(f"{url}/slots/w/entries", content=b"\x00\xff", headers={"content-type": "image/png"})
    http.post(f"{url}/slots/w/entries", json={"entries": [{"data": {"a": 1}}]})
    entries = http.get(f"{url}/slots/w/entries").json()["data"]
    assert [(one["media"], one.get("base64"), one.get("data")) for one in entries] == [
        ("image/png", "AP8=", None), ("application/json", None, {"a": 1}),
    ]  # fmt: skip
    slot = http.get(f"{url}/slots/size").json()
    assert (slot["value"], slot["kind"], slot["origin"], slot["version"]) == (11, "value", "user", 2)
    fork = http.post(f"{url}/fork", json={"version": 1}).json()
    assert (fork["parent"], fork["slots"]) == (desk, {"size": 10, "colour": "black"})
    back = http.post(f"{url}/rollback", json={"checkpoint": "first"}).json()
    assert {name: back["slots"][name] for name in ("size", "colour")} == {"size": 10, "colour": "black"}, "a window is of time"
    assert http.post(f"{url}/rollback", json={}).status_code == 400
    fork = http.post(f"{url}/fork", json={"checkpoint": "first"}).json()
    assert http.delete(f"{url}/checkpoints/first").status_code == 200
    assert http.get(f"/v1/sessions/{fork['id']}").json()["slots"] == fork["slots"], "it holds its version itself"
    held = http.delete(f"{url}/checkpoints/.fork%2F{fork['id'].removeprefix('sess_')}")
    assert (held.status_code, held.json()["error"]["code"]) == (409, "checkpoint_held")
    assert http.delete(f"{url}/checkpoints/first").status_code == 404


@pytest.mark.parametrize("media", ["application/x-www-form-urlencoded", "multipart/form-data; boundary=x"])
def test_entries_of_no_media_type_are_refused_and_said_why(http: httpx.Client, desk: str, media: str) -> None:
    """What curl says of itself when nobody told it what it sends."""
    url = f"/v1/sessions/{desk}"
    http.patch(url, json={"slots": {"w": {"seconds": 9}}, "kinds": {"w": "window"}})
    refused = http.post(f"{url}/slots/w/entries", content=b'{"entries": [{"data": 1}]}', headers={"content-type": media})
    assert (refused.status_code, refused.json()["error"]["code"]) == (415, "media_type_unsupported")
    assert "application/json" in refused.json()["error"]["message"]
    assert http.get(f"{url}/slots/w/entries").json()["data"] == []


def test_agents_see_and_change_what_they_may(http: httpx.Client, desk: str) -> None:
    url, coder = f"/v1/sessions/{desk}", {"agent": "coder"}
    told = http.post(f"{url}/access", json={"agent": "coder", "read": ["size"], "write": ["file.*"]})
    assert told.json()["access"] == {"coder": {"read": ["size"], "write": ["file.*"]}}
    assert http.get(url, params=coder).json()["slots"] == {"size": 10}
    assert http.get(url, params={**coder, "version": 1}).json()["slots"] == {"size": 10}
    hidden, absent = (http.get(f"{url}/slots/{name}", params=coder) for name in ("colour", "nothing"))
    assert (hidden.status_code, hidden.text.replace("colour", "nothing")) == (404, absent.text)
    assert http.patch(url, params=coder, json={"slots": {"file.a": 1}}).status_code == 200
    refused = http.patch(url, params=coder, json={"slots": {"size": 11}})
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "slot_forbidden")
    assert http.get(url).json()["slots"] == {"size": 10, "colour": "black", "file.a": 1}


def test_a_desk_is_held_and_handed_over(http: httpx.Client, desk: str) -> None:
    url = f"/v1/sessions/{desk}"
    held = http.post(f"{url}/hold", json={"holder": "planner", "seconds": 60}).json()
    assert (held["holder"], held["hold"]) == ("planner", 1)
    assert http.post(f"{url}/hold", json={"holder": "coder", "seconds": 60}).json()["error"]["code"] == "desk_held"
    handed = http.post(f"{url}/hold", json={"holder": "coder", "seconds": 60, "hold": 1}).json()
    assert (handed["holder"], handed["hold"]) == ("coder", 2)
    stale = http.patch(url, params={"hold": 1}, json={"slots": {"size": 11}})
    assert (stale.status_code, stale.json()["error"]["code"]) == (409, "stale_fence")
    assert http.patch(url, params={"hold": 2}, json={"slots": {"size": 11}}).status_code == 200
