"""Runs over HTTP, what the server says of itself, and how every error looks."""

from __future__ import annotations

import logging
from typing import Any

import httpx2 as httpx
import pytest

from stateroom import errors
from stateroom.hosting.callable import CallableAgent
from stateroom.server import problems
from stateroom.server.app import ENDPOINTS
from tests.server.serving import Gate, Served, echo, held, one_by_one, serving


def test_a_run_shows_what_it_really_is(http: httpx.Client) -> None:
    answer = http.post("/v1/responses", json={"input": "hi", "metadata": {"a": "b"}, "mine": 1.50}).json()
    run = http.get("/v1/runs/run_" + answer["id"][5:]).json()
    assert (run["response"], run["status"], run["agent"], run["stored"], run["attempt"]) == (
        answer["id"],
        "completed",
        "echo",
        True,
        1,
    )
    assert run["request"] == {"metadata": {"a": "b"}, "mine": 1.5}
    assert (run["pending"], run["error"]) == ([], None)
    assert http.get(f"/v1/sessions/{run['session']}").json()["conversation"] == run["conversation"]


def test_runs_are_listed_newest_first_by_conversation(http: httpx.Client) -> None:
    conversation = http.post("/v1/conversations", json={}).json()["id"]
    made = [one_by_one(http, "/v1/responses", input="x", conversation=conversation) for _ in range(3)]
    http.post("/v1/responses", json={"input": "elsewhere"})
    page = http.get("/v1/runs", params={"conversation": conversation, "limit": 2}).json()
    assert [run["response"] for run in page["data"]] == made[:0:-1]
    assert page["has_more"] is True
    rest = http.get("/v1/runs", params={"conversation": conversation, "after": page["last_id"]}).json()
    assert [run["response"] for run in rest["data"]] == made[:1]


def test_P12_any_run_can_be_cancelled_natively(store_url: str) -> None:
    gate = Gate()
    with serving(held(gate), url=store_url) as served, served.client() as http:
        first = http.post("/v1/responses", json={"input": "x", "background": True}).json()["id"]
        run = "run_" + first[5:]
        for _ in range(2):
            assert http.post(f"/v1/runs/{run}/cancel").json()["status"] == "cancelled"


def test_a_state_conflict_costs_no_answer_and_shows_on_the_run(store_url: str) -> None:
    """The run says what could not be written; the response is completed all the same."""

    async def stubborn(turn: Any) -> str:
        turn.set("size", 1)
        gate.asked += 1
        await gate.passed()
        return "done"

    gate = Gate()
    with serving(CallableAgent("stubborn", stubborn), url=store_url) as served, served.client() as http:
        conversation = http.post("/v1/conversations", json={}).json()["id"]
        made = http.post("/v1/responses", json={"input": "x", "conversation": conversation, "background": True}).json()["id"]
        while gate.asked == 0:
            pass
        (session,) = http.get("/v1/sessions", params={"conversation": conversation}).json()["data"]
        http.patch(f"/v1/sessions/{session['id']}", json={"slots": {"size": 2}})
        gate.opened.set()
        while (answer := http.get(f"/v1/responses/{made}").json())["status"] == "in_progress":
            pass
        assert (answer["status"], answer["error"]) == ("completed", None)
        assert http.get("/v1/runs/run_" + made[5:]).json()["error"]["code"] == "state_conflict"
        assert http.get(f"/v1/sessions/{session['id']}").json()["slots"] == {"size": 2}


def test_where_the_time_went(http: httpx.Client) -> None:
    answer = http.post("/v1/responses", json={"input": "hi"})
    named = [entry.partition(";dur=") for entry in answer.headers["Server-Timing"].split(", ")]
    assert [name for name, _, _ in named] == ["accept", "hydrate", "window", "model", "commit"]
    assert all(float(ms) >= 0 for _, _, ms in named)


def test_the_server_tells_how_it_is(http: httpx.Client) -> None:
    assert http.get("/healthz").json() == {"status": "ok"}
    assert http.get("/readyz").json() == {"status": "ready"}


def test_an_unready_store_is_told_and_nothing_of_its_inside(store_url: str) -> None:
    with serving(echo(), url=store_url) as served, served.client() as http:
        served.ask(served.room.backend.close())
        for answer in (http.get("/readyz"), http.post("/v1/responses", json={"input": "x"}), http.get("/v1/runs")):
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "closed")
            assert answer.json()["error"]["type"] == "server_error"
            assert answer.headers["Retry-After"] == "1"
        assert http.get("/healthz").status_code == 200


def test_the_openapi_document_names_every_path(http: httpx.Client) -> None:
    document = http.get("/openapi.json").json()
    named = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert named == {(endpoint.method, endpoint.path) for endpoint in ENDPOINTS}
    schemas = set(document["components"]["schemas"])
    used = {reference.rpartition("/")[2] for reference in references(document)}
    assert used == schemas  # none missing, none idle
    operations = [operation["operationId"] for methods in document["paths"].values() for operation in methods.values()]
    assert len(set(operations)) == len(operations)


def references(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if "$ref" in value else []
        return own + [found for inner in value.values() for found in references(inner)]
    return [found for inner in value for found in references(inner)] if isinstance(value, list) else []


# ── errors ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("kind", "status"), [
    (errors.InvalidInput, 400), (errors.LimitExceeded, 400), (errors.CursorInvalid, 400), (errors.NotFound, 404),
    (errors.Gone, 410), (errors.Conflict, 409), (errors.AlreadyExists, 409), (errors.StaleFence, 409), (errors.IllegalMove, 409),
    (errors.Busy, 409), (errors.KeyReused, 422), (errors.Unauthorized, 401), (errors.Unavailable, 503), (errors.StorageFull, 507),
    (errors.Closed, 503), (errors.StateroomError, 500),
])  # fmt: skip
def test_every_error_has_its_status(kind: type[errors.StateroomError], status: int) -> None:
    answer = problems.answer(kind("why"))
    assert answer.status_code == status
    retry = (answer.headers.get("retry-after"), answer.headers.get("x-should-retry"))
    expected = {503: ("1", None), 507: ("5", None), 409: (None, "false"), 500: (None, "false")}.get(status, (None, None))
    assert retry == expected


def test_no_error_class_is_without_a_status() -> None:
    for kind in errors.all_errors():
        error = kind(ref=b"", fingerprint=b"") if kind is errors.Known else kind("why")  # type: ignore[call-arg]
        assert 400 <= problems.status_of(error) < 600


def test_a_fault_of_ours_is_logged_and_shows_nothing(served: Served, http: httpx.Client, caplog: pytest.LogCaptureFixture,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    async def broken(*_: Any) -> None:
        raise RuntimeError("the secret inside")

    monkeypatch.setattr(served.room.runs, "get", broken)
    with caplog.at_level(logging.ERROR, "stateroom.server"):
        answer = http.get("/v1/runs/run_" + "1" * 32)
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
    assert answer.headers["x-should-retry"] == "false"
    assert answer.headers["x-request-id"]
    assert "secret" not in answer.text
    assert "the secret inside" in caplog.text
