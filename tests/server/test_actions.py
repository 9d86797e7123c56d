"""What a run waits for over HTTP: shown, answered once, bound to what was asked, in time or not at all (P16)."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import httpx2 as httpx
import pytest

from stateroom.flows import recover
from tests.server.serving import asking, paused, serving, until

# kind: a good answer, another one, what the agent says to the first, and what is no answer to it
ANSWERS: dict[str, tuple[dict[str, Any], dict[str, Any], str, list[dict[str, Any]]]] = {
    "approval": (
        {"approved": True}, {"approved": False}, "refunded",
        [{}, {"approved": "yes"}, {"approved": 1}, {"approved": None}, {"approved": True, "digest": 5}],
    ),
    "input": ({"answer": {"eu": [42, 1.5]}}, {"answer": 43}, "size {'eu': [42, 1.5]}", [{}, {"output": 5}]),
    "tool": ({"output": "sunny"}, {"output": None}, "it is sunny", [{}, {"answer": "sunny"}]),
    "handoff": ({"credit": 7}, {}, "decided: {'credit': 7}", []),
}  # fmt: skip


def post(http: httpx.Client, run: str, action: dict[str, Any], answer: dict[str, Any], **how: Any) -> httpx.Response:
    """An answer, with the digest that the action shows where it needs one."""
    body = {"digest": action["digest"], **answer} if action["kind"] == "approval" else answer
    return http.post(f"/v1/runs/{run}/actions/{action['id']}", json=body, **how)


def refused(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def said(http: httpx.Client, run: str) -> str:
    until(http, run, "completed")
    text: str = http.get(f"/v1/responses/resp_{run[4:]}").json()["output"][0]["content"][0]["text"]
    return text


@pytest.mark.parametrize("kind", ANSWERS)
def test_a_question_is_shown_answered_once_and_the_run_goes_on(http: httpx.Client, kind: str) -> None:
    good, other, text, _ = ANSWERS[kind]
    run, action = paused(http, kind)
    assert (action["kind"], action["status"], action["run"], action["resolution"]) == (kind, "pending", run, None)
    assert http.get(f"/v1/responses/resp_{run[4:]}").json()["status"] == "in_progress"
    first = post(http, run, action, good)
    assert first.status_code == 200
    told = {name: value for name, value in good.items() if name != "digest"}
    assert (first.json()["status"], first.json()["resolution"], first.json()["by"]) == ("resolved", told, "local")
    assert said(http, run).startswith(text)
    again = post(http, run, action, good)
    assert (again.status_code, again.json()) == (200, first.json())
    assert refused(post(http, run, action, other)) == (409, "action_resolved")


@pytest.mark.parametrize(("kind", "body"), [(kind, body) for kind, (*_, wrong) in ANSWERS.items() for body in wrong])
def test_P31_what_does_not_fit_the_question_changes_nothing(http: httpx.Client, kind: str, body: dict[str, Any]) -> None:
    run, action = paused(http, kind)
    status, code = refused(post(http, run, action, body, headers={"Idempotency-Key": f"fit {run}"}))
    assert status == 400
    assert code in ("answer_unfit", "wrong_type")
    assert http.get(f"/v1/runs/{run}").json()["pending_actions"] == [action]
    assert post(http, run, action, ANSWERS[kind][0], headers={"Idempotency-Key": f"fit {run}"}).status_code == 200


def test_P16_an_approval_counts_for_what_was_shown(http: httpx.Client) -> None:
    run, action = paused(http, "approval")
    assert (action["name"], action["arguments"], action["asked"]) == ("refund", {"amount": 5}, {"why": "A big one."})
    for digest in ("", "00", "ff" * 32, action["digest"][:-2]):
        assert refused(post(http, run, action, {"approved": True, "digest": digest})) == (409, "digest_mismatch")
    assert refused(post(http, run, action, {"approved": True, "digest": "no hex"})) == (400, "answer_unfit")
    key = {"Idempotency-Key": f"digest {run}"}
    assert refused(post(http, run, action, {"approved": True, "digest": "00"}, headers=key)) == (409, "digest_mismatch")
    assert post(http, run, action, {"approved": False}, headers=key).status_code == 200  # a refusal leaves the key free
    assert said(http, run) == "refused"


def test_P16_two_who_answer_differently_at_once_have_one_winner(http: httpx.Client, served: Any) -> None:
    run, action = paused(http, "input")
    answers = list[httpx.Response]()

    def answer(number: int) -> None:
        with served.client() as own:
            answers.append(post(own, run, action, {"answer": number}))

    racing = [threading.Thread(target=answer, args=(number,)) for number in range(8)]
    for thread in racing:
        thread.start()
    for thread in racing:
        thread.join()
    won = [answer.json()["resolution"]["answer"] for answer in answers if answer.status_code == 200]
    assert len(won) == 1
    assert sorted(answer.status_code for answer in answers) == [200] + [409] * 7
    assert said(http, run) == f"size {won[0]}"


def test_what_nobody_answers_in_time_is_gone(store_url: str) -> None:
    with serving(asking(wait_s=0.05), url=store_url) as served, served.client() as http:
        run, action = paused(http, "input")
        assert action["expires_at"]
        assert said(http, run) == "size None"
        assert refused(post(http, run, action, {"answer": 10})) == (410, "action_expired")
        (shown,) = http.get(f"/v1/runs/{run}/actions").json()["data"]
        assert shown["status"] == "expired"


def test_what_an_ended_run_asked_is_closed(http: httpx.Client) -> None:
    run, action = paused(http, "input")
    http.post(f"/v1/runs/{run}/cancel")
    assert refused(post(http, run, action, {"answer": 10})) == (410, "action_expired")
    assert http.get(f"/v1/runs/{run}/actions").json()["data"][0]["status"] == "closed"


def test_a_timer_is_nobodys_to_answer(http: httpx.Client) -> None:
    run, action = paused(http, "timer")
    assert refused(post(http, run, action, {})) == (400, "action_not_answerable")


def test_actions_are_listed_by_whether_somebody_waits(http: httpx.Client) -> None:
    run, action = paused(http, "input")
    url = f"/v1/runs/{run}/actions"
    for query, expected in (({}, [action]), ({"pending": "true"}, [action]), ({"pending": "false"}, [])):
        assert http.get(url, params=query).json()["data"] == expected
    post(http, run, action, {"answer": 1})
    assert http.get(url, params={"pending": "true"}).json()["data"] == []
    (answered,) = http.get(url, params={"pending": "false"}).json()["data"]
    assert (answered["id"], answered["status"]) == (action["id"], "resolved")
    assert refused(http.get(url, params={"pending": "perhaps"})) == (400, "flag_invalid")


def test_an_action_is_found_under_its_own_run_only(http: httpx.Client) -> None:
    (run, action), (other, _) = paused(http, "input"), paused(http, "input")
    for path in (f"{other}/actions/{action['id']}", f"{run}/actions/act_{'1' * 32}", f"{run}/actions/nonsense"):
        assert refused(http.post(f"/v1/runs/{path}", json={"answer": 1})) == (404, "not_found")


def test_a_queue_shows_what_was_handed_to_it_until_it_is_decided(http: httpx.Client) -> None:
    before = [entry["id"] for entry in http.get("/v1/handoffs/billing").json()["data"]]
    (run, first), (_, second) = paused(http, "handoff"), paused(http, "handoff")
    page = http.get("/v1/handoffs/billing").json()
    assert [entry["id"] for entry in page["data"]][len(before) :] == [first["id"], second["id"]]
    assert (page["data"][-1]["queue"], page["data"][-1]["asked"]) == ("billing", {"invoice": 7})
    assert http.get("/v1/handoffs/billing", params={"limit": 1}).json()["has_more"] is True
    post(http, run, first, {"credit": 7})
    assert [entry["id"] for entry in http.get("/v1/handoffs/billing").json()["data"]][len(before) :] == [second["id"]]
    assert http.get("/v1/handoffs/returns").json()["data"] == []


def test_steps_are_listed(http: httpx.Client) -> None:
    run, action = paused(http, "approval")
    assert http.get(f"/v1/runs/{run}/steps").json()["data"] == []
    post(http, run, action, {"approved": True})
    text = said(http, run)
    (step,) = http.get(f"/v1/runs/{run}/steps").json()["data"]
    assert (step["key"], step["name"], step["effect"], step["status"], step["error"]) == (
        "charge#1", "charge", "once", "done", None
    )  # fmt: skip
    assert text == f"refunded {step['result']}"


# ── the server may go meanwhile ─────────────────────────────────────────────────────────────────────────────────────


def test_P16_a_question_outlives_the_server_that_asked_it(store_url: str) -> None:
    """Asked by one process, shown and answered in the next; a stream cut by the restart ends there, with every number."""
    lines = list[str]()

    def read(url: str, **headers: str) -> None:
        with httpx.Client(timeout=20) as http, http.stream("GET", url, headers=headers) as stream:
            lines.extend(line for line in stream.iter_lines() if line.startswith(("id: ", "data: ")))

    with serving(asking(), url=store_url) as served, served.client() as http:
        run, action = paused(http, "approval")
        reader = threading.Thread(target=read, args=(f"{served.url}/v1/runs/{run}/events",))
        reader.start()
        while not lines:
            time.sleep(0.01)
    reader.join(timeout=5)
    assert not reader.is_alive()
    with serving(asking(), url=store_url) as served, served.client() as http:
        (shown,) = until(http, run, "requires_action")["pending_actions"]
        assert shown == action
        assert post(http, run, shown, {"approved": True}).status_code == 200
        read(f"{served.url}/v1/runs/{run}/events", **{"Last-Event-ID": [line for line in lines if line.startswith("id")][-1][4:]})
        assert said(http, run) == "refunded 1"
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-1]["type"] == "response.completed"


def test_P16_a_timer_goes_on_in_the_next_server(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recover, "DUTY_MS", 500)  # for so long the first one still has the sweeper's duty
    with serving(asking(wait_s=0.5), url=store_url) as served, served.client() as http:
        run, _ = paused(http, "input")
    with serving(asking(wait_s=0.5), url=store_url) as served, served.client() as http:
        assert said(http, run) == "size None"
