"""A turn that comes while another one is active, in six ways; and turns with a deadline."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx2 as httpx
import pytest

from stateroom.flows.agent import AgentEvent, Delta, Turn
from stateroom.hosting.callable import CallableAgent
from tests.server.serving import Gate, serving, until


def stepping(gate: Gate) -> CallableAgent:
    """Answers once the gate is open and a step is done, with everything it was told by then."""

    async def answer(turn: Turn) -> AsyncIterator[AgentEvent]:
        gate.asked += 1
        yield Delta("re ")
        await gate.passed()
        await turn.step("look", lambda: "seen", effect="idempotent")
        news = [str(item["content"]) for item in turn.news]
        yield Delta(" and ".join([turn.text, *news]))

    return CallableAgent("stepping", answer)


class Talk:
    """A conversation whose first turn is active."""

    def __init__(self, http: httpx.Client, gate: Gate) -> None:
        self.http, self.gate = http, gate
        self.conversation = http.post("/v1/conversations", json={}).json()["id"]
        self.first = self.say("first")
        while gate.asked == 0:
            time.sleep(0.01)

    def say(self, text: str, policy: str = "enqueue", **more: Any) -> httpx.Response:
        body = {"input": text, "conversation": self.conversation, "background": True, "double_text": policy, **more}
        return self.http.post("/v1/responses", json=body)

    def end(self, answer: httpx.Response) -> str:
        found = until(self.http, "run_" + answer.json()["id"][5:], "completed", "cancelled", "failed", "expired")
        return str(found["status"])

    def record(self) -> list[str]:
        items = self.http.get(f"/v1/conversations/{self.conversation}/items", params={"order": "asc"}).json()["data"]
        return [item["content"][0]["text"] for item in items if item["type"] == "message"]


@pytest.fixture
def talk(store_url: str) -> Iterator[Talk]:
    gate = Gate()
    with serving(stepping(gate), url=store_url) as served, served.client() as http:
        yield Talk(http, gate)
        gate.opened.set()


def test_enqueue_waits_for_its_turn(talk: Talk) -> None:
    second = talk.say("second")
    assert second.json()["status"] == "queued"
    talk.gate.opened.set()
    assert [talk.end(talk.first), talk.end(second)] == ["completed", "completed"]
    assert talk.record() == ["first", "re first", "second", "re second"]


def test_reject_says_who_is_active(talk: Talk) -> None:
    second = talk.say("second", "reject")
    assert (second.status_code, second.json()["error"]["code"]) == (409, "conversation_busy")
    assert second.json()["error"]["details"] == {"run": "run_" + talk.first.json()["id"][5:]}
    talk.gate.opened.set()
    assert talk.end(talk.first) == "completed"
    assert talk.record() == ["first", "re first"]
    assert talk.say("third", "reject").status_code == 200


def test_merge_is_answered_by_the_turn_that_took_it_in(talk: Talk) -> None:
    answers = list[httpx.Response]()
    post = threading.Thread(target=lambda: answers.append(talk.say("second", "merge", background=False)))
    post.start()
    while len(talk.http.get("/v1/runs", params={"conversation": talk.conversation}).json()["data"]) < 2:
        time.sleep(0.01)
    talk.gate.opened.set()
    post.join(timeout=10)
    (answer,) = answers
    assert answer.json()["id"] == talk.first.json()["id"]
    assert answer.json()["output"][0]["content"][0]["text"] == "re first and second"
    assert talk.record() == ["first", "second", "re first and second"]
    (own, _) = talk.http.get("/v1/runs", params={"conversation": talk.conversation}).json()["data"]
    assert (own["status"], own["merged_into"]) == ("completed", "run_" + talk.first.json()["id"][5:])
    shown = talk.http.get(f"/v1/responses/{own['response']}").json()
    assert (shown["status"], shown["output"], shown["merged_into"]) == ("completed", [], talk.first.json()["id"])
    events = talk.http.get(f"/v1/responses/{own['response']}", params={"stream": "true"}).text
    assert events.count("event: response.completed") == 1
    assert f'"merged_into":"{talk.first.json()["id"]}"' in events


def test_latest_drops_the_others_that_wait(talk: Talk) -> None:
    second, third = talk.say("second"), talk.say("third", "latest")
    assert talk.end(second) == "cancelled"
    talk.gate.opened.set()
    assert [talk.end(talk.first), talk.end(third)] == ["completed", "completed"]
    assert talk.record() == ["first", "second", "re first", "third", "re third"]  # what was said stays, marked
    error = talk.http.get("/v1/runs/run_" + second.json()["id"][5:]).json()["error"]
    assert error["code"] == "superseded"


def test_interrupt_ends_the_active_one_and_goes_first(talk: Talk) -> None:
    second, third = talk.say("second"), talk.say("third", "interrupt")
    assert talk.end(talk.first) == "cancelled"
    talk.gate.opened.set()
    assert [talk.end(third), talk.end(second)] == ["completed", "completed"]
    assert talk.record() == ["first", "re ", "third", "re third", "second", "re second"]


def test_parallel_answers_beside_it_on_a_fork(talk: Talk) -> None:
    second = talk.say("second", "parallel")
    while talk.gate.asked < 2:  # both are at work
        time.sleep(0.01)
    talk.gate.opened.set()
    assert [talk.end(talk.first), talk.end(second)] == ["completed", "completed"]
    assert talk.record() == ["first", "re first"]
    answer = talk.http.get(f"/v1/responses/{second.json()['id']}").json()
    assert answer["output"][0]["content"][0]["text"] == "re second"


def test_a_turn_that_is_not_done_by_its_deadline_has_expired(talk: Talk) -> None:
    second = talk.say("second", deadline_s=0.3)
    assert talk.http.get("/v1/runs/run_" + second.json()["id"][5:]).json()["deadline_at"]
    assert talk.end(second) == "expired"
    talk.gate.opened.set()
    assert talk.end(talk.first) == "completed"
    shown = talk.http.get(f"/v1/responses/{second.json()['id']}").json()
    assert (shown["status"], shown["error"]["code"]) == ("failed", "deadline_passed")
