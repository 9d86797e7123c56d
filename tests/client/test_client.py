"""What a program sees of a server through its clients: replies, runs, errors of the same classes as inside."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest

from stateroom import errors
from stateroom.client import AsyncClient, Client
from stateroom.client.refusals import made, refusal
from stateroom.errors import Gone, InvalidInput, KeyReused, NotFound, StateroomError, Unauthorized
from stateroom.server import problems
from stateroom.server.auth import Token
from tests.server.serving import Gate, Served, echo, held, serving
from tools import codes


def test_a_turn_and_the_next_one(served: Served) -> None:
    with Client(served.url) as client:
        first = client.turn("I need boots")
        again = client.turn([{"type": "message", "role": "user", "content": "size 10"}], previous=first.run)
        assert (first.status, first.text, first.conversation) == ("completed", "I need boots", "")
        assert again.text == "I need boots\nI need boots\nsize 10"
        assert client.run(again.response)["previous_response"] == first.response
        with served.client() as http:
            conversation = http.post("/v1/conversations", json={}).json()["id"]
        placed = client.turn("hi", conversation=conversation, options={"metadata": {"a": "b"}})
        assert (placed.conversation, placed.items[0]["role"]) == (conversation, "assistant")


def test_the_two_clients_say_the_same(served: Served, gate: Gate) -> None:
    gate.opened.set()

    async def on_a_loop() -> Any:
        async with AsyncClient(served.url + "/v1/") as client:
            reply = await client.turn("hi", agent="pieces", key="same")
            events = [event async for event in client.follow(reply.run)]
            return reply, events, await client.run(reply.run), await client.cancel(reply.run)

    reply, events, run, cancelled = asyncio.run(on_a_loop())
    with Client(served.url) as client:
        assert client.turn("hi", agent="pieces", key="same") == reply
        assert list(client.follow(reply.run)) == events
        assert client.run(reply.run) == run
        assert client.cancel(reply.run) == cancelled
        assert cancelled["status"] == run["status"] == "completed"  # it was over
    public = {name for name in vars(AsyncClient) if not name.startswith("_")}
    assert public == {name for name in vars(Client) if not name.startswith("_")}


def test_a_turn_that_fails_is_a_reply(served: Served) -> None:
    with Client(served.url) as client:
        reply = client.turn("hi", agent="failing")
    assert reply.status == "failed"
    assert reply.error is not None
    assert reply.error["code"] == "agent_error"


def test_cancel_ends_what_goes_on(served: Served, gate: Gate) -> None:
    gate.opened.clear()
    with Client(served.url) as client:
        for event in client.stream("hi", agent="pieces"):
            if event.type == "response.created":
                assert client.cancel(event.body["response"]["id"])["status"] == "cancelled"
    assert event.body["response"]["status"] == "cancelled"


def test_errors_are_those_that_the_server_met(served: Served) -> None:
    with Client(served.url) as client:
        client.turn("hi", key="mine")
        with pytest.raises(KeyReused) as reused:
            client.turn("something else", key="mine")
        with pytest.raises(NotFound) as missing:
            list(client.follow("run_" + "1" * 32))
        with pytest.raises(InvalidInput) as twice:
            client.turn("hi", conversation="conv_" + "1" * 32, previous="resp_" + "1" * 32)
        with pytest.raises(InvalidInput, match="JSON"):
            client.turn([{"type": "message", "content": {1, 2}}])
        run = client.turn("hi").run
        with pytest.raises(Gone, match="without a cursor") as gone:
            list(client.follow(run, after="00000000.1"))
    told = [error.value.reason for error in (reused, missing, twice, gone)]
    assert told == ["idempotency_key_reused", "not_found", "place_given_twice", "cursor_gone"]


def test_what_was_not_stored_is_gone_after_its_end() -> None:
    gate = Gate()
    with serving(held(gate)) as served, Client(served.url) as client:
        gate.opened.set()
        events = list(client.stream("hi", options={"store": False}))
        assert events[-1].body["response"]["status"] == "completed"
        with pytest.raises(Gone, match="store=False") as gone:
            list(client.follow(events[0].body["response"]["id"]))
    assert gone.value.reason == "answer_not_kept"


def test_a_token_says_who_asks() -> None:
    with serving(echo(), tokens=[Token("sesame-open", "shop", "ann")]) as served:
        with Client(served.url, "sesame-open") as client:
            assert client.turn("hi").text == "hi"
        with Client(served.url, "sesame-shut") as client, pytest.raises(Unauthorized):
            client.turn("hi")


@pytest.mark.parametrize("url", ["127.0.0.1:8700", "", "ftp://x", "unix:///tmp/x"])
def test_an_address_that_is_none_is_told_at_once(url: str) -> None:
    with pytest.raises(InvalidInput):
        Client(url)


# ── codes ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def classes() -> list[tuple[str, frozenset[type[StateroomError]]]]:
    """Every code that a server answers with, and the classes that give it."""
    found = []
    for code, places in sorted(codes.found().items()):
        given = {getattr(errors, place.callee, None) for place in places if "/cli/" not in place.where}
        own = frozenset(cls for cls in given if isinstance(cls, type) and cls is not errors.Known)
        if own:
            found.append((code, own))
    return found


@pytest.mark.parametrize(("code", "given"), classes(), ids=[code for code, _ in classes()])
def test_every_error_comes_back_as_its_own_class(code: str, given: frozenset[type[StateroomError]]) -> None:
    for cls in given:
        status = problems.status_of(cls("", code=code))
        back = made(status, code, "No.", param="x", facts={"version": 4, "message": "not this one"})
        assert type(back) in given
        assert (back.reason, back.param, back.facts) == (code, "x", {"version": 4})


@pytest.mark.parametrize("status", [302, 404, 413, 502])
def test_what_a_proxy_says_is_an_error_too(status: int) -> None:
    told = refusal(status, b"<html>")
    assert (told.reason, str(status) in told.message) == ("http_error", True)


def test_the_client_needs_no_store_and_no_server() -> None:
    code = "import sys, stateroom.client; print(*{'apsw', 'starlette', 'uvicorn', 'stateroom.stack'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=60, text=True)
    assert found.stdout.split() == []
