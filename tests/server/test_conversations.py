"""What conversations can do beyond the OpenAI form: lists, export, forks; and turns that wait for each other."""

from __future__ import annotations

from typing import Any

import httpx2 as httpx
import pytest

from tests.server.serving import Gate, echo, held, one_by_one, serving


def said(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": text}


def texts(http: httpx.Client, conversation: str) -> list[str]:
    data = http.get(f"/v1/conversations/{conversation}/items", params={"order": "asc"}).json()["data"]
    return [item["content"][0]["text"] for item in data]


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_conversations_are_listed_in_pages(order: str, store_url: str) -> None:
    with serving(echo(), url=store_url) as served, served.client() as http:
        made = [one_by_one(http, "/v1/conversations") for _ in range(5)]
        found, after = list[str](), {}
        for more in (True, True, False):
            page = http.get("/v1/conversations", params={"limit": 2, "order": order, **after}).json()
            assert page["has_more"] is more
            found += [entry["id"] for entry in page["data"]]
            after = {"after": page["last_id"]}
        assert found == (made if order == "asc" else made[::-1])


def test_chains_are_no_conversations_in_the_list(store_url: str) -> None:
    with serving(echo(), url=store_url) as served, served.client() as http:
        answer = http.post("/v1/responses", json={"input": "a bare chain"}).json()
        chain = http.get("/v1/runs/run_" + answer["id"][5:]).json()["conversation"]
        assert http.get("/v1/conversations").json()["data"] == []
        assert http.get("/v1/conversations", params={"after": chain}).status_code == 404


def test_a_fork_shares_the_past_and_goes_its_own_way(http: httpx.Client) -> None:
    root = http.post("/v1/conversations", json={"items": [said("one"), said("two"), said("three")]}).json()["id"]
    items = http.get(f"/v1/conversations/{root}/items", params={"order": "asc"}).json()["data"]
    whole = http.post(f"/v1/conversations/{root}/fork", json={"metadata": {"fork": "whole"}}).json()
    part = http.post(f"/v1/conversations/{root}/fork", json={"after": items[1]["id"]}).json()["id"]
    http.post(f"/v1/conversations/{part}/items", json={"items": [said("other")]})
    http.post(f"/v1/conversations/{root}/items", json={"items": [said("four")]})
    assert whole["metadata"] == {"fork": "whole"}
    assert texts(http, whole["id"]) == ["one", "two", "three"]
    assert texts(http, part) == ["one", "two", "other"]
    assert texts(http, root) == ["one", "two", "three", "four"]


def test_an_export_is_a_line_of_a_transcript_with_every_body_as_it_came(http: httpx.Client) -> None:
    bodies = [b'{"type":"message","role":"user","content":"%d","n":1.%d0}' % (n, n) for n in range(250)]
    made = http.post("/v1/conversations", content=b'{"items":[%s]}' % b",".join(bodies)).json()["id"]
    answer = http.get(f"/v1/conversations/{made}/export")
    assert answer.content == b'{"id":"%s","source":"stateroom","items":[%s]}\n' % (made.encode(), b",".join(bodies))
    empty = http.post("/v1/conversations", json={}).json()["id"]
    assert http.get(f"/v1/conversations/{empty}/export").json()["items"] == []


def test_an_export_leaves_out_what_was_deleted(http: httpx.Client) -> None:
    made = http.post("/v1/conversations", json={"items": [said("stays"), said("goes")]}).json()["id"]
    newest = http.get(f"/v1/conversations/{made}/items").json()["first_id"]
    http.delete(f"/v1/conversations/{made}/items/{newest}")
    assert [item["content"] for item in http.get(f"/v1/conversations/{made}/export").json()["items"]] == ["stays"]


def test_turns_of_one_conversation_wait_for_each_other_up_to_a_bound(store_url: str) -> None:
    gate = Gate()
    with serving(held(gate), url=store_url) as served, served.client() as http:
        conversation = http.post("/v1/conversations", json={}).json()["id"]
        body = {"input": "x", "conversation": conversation, "background": True}
        answers = [http.post("/v1/responses", json=body) for _ in range(18)]
        assert [answer.status_code for answer in answers] == [200] * 17 + [429]
        assert [answer.json().get("status") for answer in answers[:2]] == ["in_progress", "queued"]
        full = answers[-1]
        assert (full.json()["error"]["code"], full.json()["error"]["type"]) == ("queue_full", "rate_limit_error")
        assert full.headers["Retry-After"] == "1"
        waiting = http.get("/v1/runs/run_" + answers[1].json()["id"][5:]).json()
        assert (waiting["status"], waiting["pending"][0]["content"][0]["text"]) == ("queued", "x")
        assert len(texts(http, conversation)) == 1  # pending input has no place yet
        busy = http.delete(f"/v1/conversations/{conversation}")
        assert (busy.status_code, busy.json()["error"]["code"]) == (409, "conversation_busy")
        gate.opened.set()


def test_a_response_in_progress_cannot_be_continued_yet(store_url: str) -> None:
    gate = Gate()
    with serving(held(gate), url=store_url) as served, served.client() as http:
        first = http.post("/v1/responses", json={"input": "x", "background": True}).json()["id"]
        answer = http.post("/v1/responses", json={"input": "y", "previous_response_id": first})
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "previous_response_in_progress")
        assert "x-should-retry" not in answer.headers  # it goes away by waiting
        gate.opened.set()
