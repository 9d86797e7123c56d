"""P6: an expired, foreign or malformed cursor gets 400 or 410, never other content. P5: an end is not a cut."""

from __future__ import annotations

import httpx2 as httpx
import pytest

from tests.server.serving import Served


def turn(http: httpx.Client, **body: object) -> str:
    return "run_" + str(http.post("/v1/responses", json={"input": "hi", **body}).json()["id"])[5:]


def frames(text: str) -> list[dict[str, str]]:
    return [dict(line.split(": ", 1) for line in frame.splitlines()) for frame in text.split("\n\n") if frame]


def test_events_carry_their_cursor_and_go_on_after_it(http: httpx.Client) -> None:
    run = turn(http)
    whole = frames(http.get(f"/v1/runs/{run}/events").text)
    assert [frame["id"].split(".")[1] for frame in whole] == [str(seq) for seq in range(1, len(whole) + 1)]
    assert whole[-1]["event"] == "response.completed"
    for at, frame in enumerate(whole[:-1], 1):
        for how in ({"headers": {"Last-Event-ID": frame["id"]}}, {"params": {"after": frame["id"]}}):
            rest = http.get(f"/v1/runs/{run}/events", **how)
            assert frames(rest.text) == whole[at:]


def test_P5_at_the_end_of_a_finished_run_there_is_no_content(http: httpx.Client) -> None:
    run = turn(http)
    last = frames(http.get(f"/v1/runs/{run}/events").text)[-1]["id"]
    answer = http.get(f"/v1/runs/{run}/events", headers={"Last-Event-ID": last})
    assert (answer.status_code, answer.content) == (204, b"")


@pytest.mark.parametrize(
    "cursor",
    [
        "x",
        "1",
        ".",
        "..",
        "12345678.",
        "12345678.x",
        "12345678.-1",
        "12345678.1e3",
        "1234567.1",
        "12345678." + "9" * 400,
        "12345678.\u0661",
    ],
)
def test_P6_a_malformed_cursor_is_refused(http: httpx.Client, cursor: str) -> None:
    run = turn(http)
    for how in ({"headers": {"Last-Event-ID": cursor.encode()}}, {"params": {"after": cursor}}):
        answer = http.get(f"/v1/runs/{run}/events", **how)  # type: ignore[arg-type]
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "cursor_invalid")


def test_P6_another_runs_cursor_is_gone(http: httpx.Client) -> None:
    mine, other = turn(http), turn(http)
    cursor = frames(http.get(f"/v1/runs/{other}/events").text)[2]["id"]
    answer = http.get(f"/v1/runs/{mine}/events", headers={"Last-Event-ID": cursor})
    assert (answer.status_code, answer.json()["error"]["code"]) == (410, "cursor_gone")


def test_P6_a_cursor_ahead_of_its_stream_is_refused(http: httpx.Client) -> None:
    run = turn(http)
    whole = frames(http.get(f"/v1/runs/{run}/events").text)
    epoch = whole[0]["id"].partition(".")[0]
    answer = http.get(f"/v1/runs/{run}/events", headers={"Last-Event-ID": f"{epoch}.{len(whole) + 1}"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "cursor_ahead")
    response = "resp_" + run[4:]
    past = {"stream": "true", "starting_after": str(len(whole))}
    answer = http.get(f"/v1/responses/{response}", params=past)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "cursor_ahead")


def test_an_event_stream_says_what_it_is(served: Served, http: httpx.Client) -> None:
    answer = http.post("/v1/responses", json={"input": "hi", "stream": True})
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-request-id"]


def test_a_deleted_runs_stream_is_not_found(http: httpx.Client) -> None:
    run = turn(http)
    first = frames(http.get(f"/v1/runs/{run}/events").text)[0]["id"]
    http.delete("/v1/responses/resp_" + run[4:])
    assert http.get(f"/v1/runs/{run}/events", headers={"Last-Event-ID": first}).status_code == 404
