"""P4: a reader that is cut at any event, and again while it comes back, at any server on the store, ends with exactly 1..n."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx2 as httpx
import pytest

from stateroom import limits
from stateroom.flows.agent import Turn
from stateroom.flows.steps import Doing
from stateroom.hosting.callable import CallableAgent
from tests.server.serving import Gate, Served, pieces, serving, until

Seen = list[tuple[str, int]]  # cursor and number of each event
AGAIN = (0, 1, 2)  # how often a connection is cut again before it says anything


async def read(http: httpx.AsyncClient, run: str, cursor: str, *, take: int | None = None) -> Seen:
    """Events after a cursor: `take` of them, then the connection is cut; None: to the end."""
    found, at = Seen(), ""
    async with http.stream("GET", f"/v1/runs/{run}/events", headers={"Last-Event-ID": cursor}) as answer:
        assert answer.status_code in (200, 204)
        if take == 0:
            return found
        async for line in answer.aiter_lines():
            if line.startswith("id: "):
                at = line[4:]
            if line.startswith("data: "):
                event = json.loads(line[6:])
                assert event["type"].startswith("response."), event
                found.append((at, event["sequence_number"]))
                if len(found) == take:
                    break
    return found


async def on(http: httpx.AsyncClient, run: str, seen: Seen, again: int) -> Seen:
    """The rest, after so many connections that are cut at once."""
    cursor = seen[-1][0] if seen else ""
    for _ in range(again):
        await read(http, run, cursor, take=0)
    return await read(http, run, cursor)


async def cut_everywhere(first: str, then: str, run: str, *, events: int) -> list[Seen]:
    """One reader for each place to cut and each number of times to come back, all at once: what each of them saw."""
    bounds = httpx.Limits(max_connections=None)
    async with (
        httpx.AsyncClient(base_url=first, timeout=20, limits=bounds) as one,
        httpx.AsyncClient(base_url=then, timeout=20, limits=bounds) as two,
    ):

        async def reader(cut: int, again: int) -> Seen:
            seen = await read(one, run, "", take=cut) if cut else []
            return seen + await on(two, run, seen, again)

        return await asyncio.gather(*(reader(cut, again) for cut in range(events + 1) for again in AGAIN))


def begin(http: httpx.Client) -> str:
    return "run_" + str(http.post("/v1/responses", json={"input": "hi", "background": True}).json()["id"])[5:]


def assert_whole(found: list[Seen]) -> None:
    for seen in found:
        assert [number for _, number in seen] == list(range(len(seen)))
        assert seen == found[0]


@contextmanager
def back_at(where: str, served: Served, store: str) -> Iterator[str]:
    """The server that was left, or one of its own process on the same store, which answers no turns of our agent."""
    if where == "same server":
        yield served.url
        return
    command = [sys.executable, "-m", "stateroom.cli.main", "serve", "--port", "0", "--store", store]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            yield child.stdout.readline().split()[-1]
        finally:
            child.terminate()


@pytest.fixture
def gate() -> Gate:
    return Gate()


COUNT = 4  # words; with what is around them 11 events
EVENTS = 2 + 2 + COUNT + 3 + 1


@pytest.mark.parametrize("where", ["same server", "another process"])
def test_P4_cut_anywhere_while_the_run_goes_on(gate: Gate, store_url: str, where: str) -> None:
    with serving(pieces(gate, COUNT), url=store_url) as served, served.client() as http:
        run = begin(http)
        with ThreadPoolExecutor(1) as pool, back_at(where, served, store_url) as then:
            pool.submit(lambda: (time.sleep(0.5), gate.opened.set()))
            found = asyncio.run(cut_everywhere(served.url, then, run, events=EVENTS - 1))
    assert EVENTS - COUNT // 2 < len(found[0]) <= EVENTS  # words that come while others are written share an event
    assert_whole(found)


@pytest.mark.parametrize("where", ["same server", "another process"])
def test_P4_cut_anywhere_after_the_end(gate: Gate, store_url: str, where: str) -> None:
    gate.opened.set()
    with serving(pieces(gate, COUNT), url=store_url) as served, served.client() as http:
        run = begin(http)
        until(http, run, "completed")
        with back_at(where, served, store_url) as then:
            found = asyncio.run(cut_everywhere(served.url, then, run, events=EVENTS))
    assert_whole(found)


def test_P4_cut_anywhere_and_the_server_starts_anew_in_between(gate: Gate, store_url: str) -> None:

    async def begun(url: str, run: str, events: int) -> list[Seen]:
        async with httpx.AsyncClient(base_url=url, timeout=20) as http:
            return await asyncio.gather(*(read(http, run, "", take=cut) for cut in range(1, events + 1)))

    async def rest(url: str, run: str, parts: list[Seen]) -> list[Seen]:
        async with httpx.AsyncClient(base_url=url, timeout=20) as http:
            ends = await asyncio.gather(*(on(http, run, seen, again) for seen in parts for again in AGAIN))
        return [seen + end for seen, end in zip([seen for seen in parts for _ in AGAIN], ends, strict=True)]

    with serving(pieces(gate, COUNT), url=store_url) as served, served.client() as http:
        run = begin(http)
        while gate.asked == 0:
            time.sleep(0.01)
        until_head(http, run, 2 + 2 + COUNT // 2)
        parts = asyncio.run(begun(served.url, run, 2 + 2 + COUNT // 2))
    gate.opened.set()
    with serving(pieces(gate, COUNT), url=store_url) as served:
        found = asyncio.run(rest(served.url, run, parts))
    assert_whole(found)


def until_head(http: httpx.Client, run: str, head: int) -> None:
    for _ in range(500):
        if http.get(f"/v1/runs/{run}").json()["events"] >= head:
            return
        time.sleep(0.01)
    raise AssertionError("the log did not grow")


# ── a log that was compacted ────────────────────────────────────────────────────────────────────────────────────────


def test_P6_after_compaction_old_cursors_are_gone_and_the_stream_is_complete(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LOG_MS", 1)
    with serving(pieces(count=COUNT), url=store_url) as served, served.client() as http:
        run = begin(http)
        response = f"resp_{run[4:]}"
        before = http.get(f"/v1/runs/{run}/events").text
        cursors = [line[4:] for line in before.splitlines() if line.startswith("id: ")]
        assert len(cursors) == EVENTS
        for _ in range(500):
            if http.get(f"/v1/runs/{run}").json()["events"] < EVENTS:
                break
            time.sleep(0.01)
        for cursor in cursors:
            gone = http.get(f"/v1/runs/{run}/events", headers={"Last-Event-ID": cursor})
            assert (gone.status_code, gone.json()["error"]["code"]) == (410, "cursor_gone")
        gone = http.get(f"/v1/responses/{response}", params={"stream": "true", "starting_after": 1})
        assert (gone.status_code, gone.json()["error"]["code"]) == (410, "cursor_gone")

        after = http.get(f"/v1/runs/{run}/events").text
        assert http.get(f"/v1/responses/{response}", params={"stream": "true"}).text == after
        assert last(after) == last(before) == http.get(f"/v1/responses/{response}").json()
        found = asyncio.run(cut_everywhere(served.url, served.url, run, events=after.count("id: ")))
        assert_whole(found)
        assert {cursor for cursor, _ in found[0]}.isdisjoint(cursors)


def last(text: str) -> object:
    """The response in a stream's last event."""
    return json.loads(text.split("data: ")[-1])["response"]


# ── one key ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("streamed", [False, True])
def test_P14_fifty_posts_with_one_key_are_one_run_one_effect_and_fifty_identical_answers(store_url: str, streamed: bool) -> None:
    effects = list[str]()

    async def charging(turn: Turn) -> str:
        def charge(doing: Doing) -> int:
            effects.append(doing.key)
            return len(effects)

        return f"charged {await turn.step('charge', charge, effect='idempotent')}"

    def post(server: Served) -> str:
        with server.client() as http:
            answer = http.post(
                "/v1/responses", json={"input": "buy", "stream": streamed}, headers={"Idempotency-Key": "one key"}, timeout=30
            )
        assert answer.status_code == 200
        return answer.text

    with (
        serving(CallableAgent("shop", charging), url=store_url) as one,
        serving(CallableAgent("shop", charging), url=store_url) as two,
    ):
        with ThreadPoolExecutor(50) as pool:
            answers = list(pool.map(post, [one, two] * 25))
        with one.client() as http:
            runs = http.get("/v1/runs").json()["data"]
    assert len(set(answers)) == 1
    assert "charged 1" in answers[0]
    assert (len(runs), len(effects)) == (1, 1)
