"""Two servers over one store: what one works on, the other shows, follows and cancels."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import httpx2 as httpx
import pytest

from tests.server.serving import Gate, Served, pieces, serving


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def both(gate: Gate, store_url: str) -> Iterator[tuple[Served, Served]]:
    with serving(pieces(gate), url=store_url) as one, serving(pieces(gate), url=store_url) as other:
        yield one, other
        gate.opened.set()


def started(served: Served, gate: Gate, **body: object) -> str:
    made = httpx.post(f"{served.url}/v1/responses", json={"input": "hi", "background": True, **body}, timeout=10).json()
    while gate.asked == 0:
        time.sleep(0.01)
    return str(made["id"])


def test_P4_a_run_is_followed_live_through_another_server(both: tuple[Served, Served], gate: Gate) -> None:
    one, other = both
    response = started(one, gate)
    numbers, kinds = list[int](), list[str]()
    with (
        httpx.Client(timeout=10) as http,
        http.stream("GET", f"{other.url}/v1/responses/{response}", params={"stream": "true"}) as stream,
    ):
        for line in stream.iter_lines():
            if line.startswith("data: "):
                event = json.loads(line.removeprefix("data: "))
                numbers.append(event["sequence_number"])
                kinds.append(event["type"])
                gate.opened.set()  # the first half is seen while the run goes on
    assert numbers == list(range(len(numbers)))
    assert kinds[-1] == "response.completed"
    assert gate.asked == 1


def test_P12_a_run_is_cancelled_through_another_server(both: tuple[Served, Served], gate: Gate) -> None:
    one, other = both
    response = started(one, gate)
    assert httpx.post(f"{other.url}/v1/responses/{response}/cancel", timeout=10).json()["status"] == "cancelled"
    assert httpx.get(f"{one.url}/v1/responses/{response}").json()["status"] == "cancelled"


def test_P14_one_key_is_one_run_on_both(both: tuple[Served, Served], gate: Gate) -> None:
    one, other = both
    headers = {"Idempotency-Key": "both"}
    body = {"input": "hi", "background": True}
    made = [httpx.post(f"{served.url}/v1/responses", json=body, headers=headers).json()["id"] for served in (one, other, one)]
    assert len(set(made)) == 1


def test_what_is_not_stored_is_only_where_its_worker_is(both: tuple[Served, Served], gate: Gate) -> None:
    one, other = both
    with httpx.Client(timeout=10) as http:
        body = {"input": "hi", "store": False, "stream": True}
        with http.stream("POST", f"{one.url}/v1/responses", json=body, headers={"Idempotency-Key": "k"}) as stream:
            line = next(line for line in stream.iter_lines() if line.startswith("data: "))
            response = json.loads(line.removeprefix("data: "))["response"]["id"]
            elsewhere = [
                httpx.get(f"{other.url}/v1/responses/{response}"),
                httpx.get(f"{other.url}/v1/responses/{response}?stream=true"),
                httpx.post(f"{other.url}/v1/responses", json=body, headers={"Idempotency-Key": "k"}),
            ]
            here = httpx.get(f"{one.url}/v1/responses/{response}")
            gate.opened.set()
    assert [(answer.status_code, answer.json()["error"]["code"]) for answer in elsewhere] == [(409, "not_here")] * 3
    assert (here.status_code, here.json()["status"]) == (200, "in_progress")
