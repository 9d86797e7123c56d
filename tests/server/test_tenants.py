"""P28: what belongs to somebody else is answered, on every route, exactly like what does not exist."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import httpx2 as httpx
import pytest

from stateroom.server.app import ENDPOINTS, PREFIXES, SOCKETS
from stateroom.server.auth import Token
from tests.server.serving import Served, asking, echo, paused, pieces, serving
from tests.services.places import Place

ALICE = Token("token-of-alice", "acme", "alice")
STRANGERS = {
    "another tenant": Token("token-of-mallory", "evil", "alice"),  # even under the same name
    "another tenant's operator": Token("token-of-boss", "evil", "boss", sees="tenant"),
    "another principal": Token("token-of-bob", "acme", "bob"),
}
ITEM = {"type": "message", "role": "user", "content": "mine"}

# For every route: how to ask for somebody's object. `{name}` stands for its id, in the path, the query or the body.
# None: the route takes no id.
PROBES: dict[tuple[str, str], list[dict[str, Any]] | None] = {
    ("POST", "/responses"): [
        {"json": {"input": "x", "conversation": "{conversation}"}},
        {"json": {"input": "x", "conversation": {"id": "{conversation}"}, "stream": True}},
        {"json": {"input": "x", "conversation": "{conversation}", "store": False}},
        {"json": {"input": "x", "previous_response_id": "{response}"}},
        {"json": {"input": "x", "previous_response_id": "{response}", "background": True}},
        {"json": {"input": "x", "previous_response_id": "{response}", "store": False}},
    ],
    ("GET", "/responses/{response}"): [{}, {"params": {"stream": "true"}}, {"params": {"stream": "true", "starting_after": "1"}}],
    ("DELETE", "/responses/{response}"): [{}],
    ("POST", "/responses/{response}/cancel"): [{}, {"headers": {"Idempotency-Key": "k"}}],
    ("GET", "/responses/{response}/input_items"): [{}, {"params": {"after": "{item}"}}],
    ("POST", "/conversations"): None,
    ("GET", "/conversations"): [{"params": {"after": "{conversation}"}}],
    ("GET", "/conversations/{conversation}"): [{}],
    ("POST", "/conversations/{conversation}"): [
        {"json": {"metadata": {}}},
        {"json": {"metadata": {}}, "headers": {"Idempotency-Key": "k"}},
    ],
    ("DELETE", "/conversations/{conversation}"): [{}],
    ("POST", "/conversations/{conversation}/fork"): [{"json": {}}, {"json": {"after": "{item}"}}],
    ("GET", "/conversations/{conversation}/export"): [{}],
    ("POST", "/conversations/{conversation}/items"): [{"json": {"items": [ITEM]}}],
    ("GET", "/conversations/{conversation}/items"): [{}, {"params": {"after": "{item}"}}],
    ("GET", "/conversations/{conversation}/items/{item}"): [{}],
    ("DELETE", "/conversations/{conversation}/items/{item}"): [{}],
    ("POST", "/sessions"): None,
    ("GET", "/sessions"): [
        {"params": {"after": "{session}"}},
        {"params": {"conversation": "{conversation}"}},
        {"params": {"conversation": "{conversation}", "agent": "echo"}},
    ],
    ("GET", "/sessions/{session}"): [{}, {"params": {"since_version": "1"}}, {"params": {"version": "1"}}],
    ("PATCH", "/sessions/{session}"): [
        {"content": '[{{"op": "test", "path": "/a", "value": 1}}]', "headers": {"content-type": "application/json-patch+json"}},
        {"content": '{{"a": 2}}', "headers": {"content-type": "application/merge-patch+json"}},
        {"json": {"slots": {"a": 1}}},
        {"json": {"slots": {"a": 1}, "expected": {"a": 7}}},
        {"json": {"slots": {"a": 1}}, "headers": {"If-Match": '"99"'}},
    ],
    ("DELETE", "/sessions/{session}"): [{}],
    ("POST", "/sessions/{session}/touch"): [{}],
    ("POST", "/sessions/{session}/prefetch"): [{}],
    ("POST", "/sessions/{session}/access"): [{"json": {"agent": "a", "read": ["a"]}}],
    ("POST", "/sessions/{session}/hold"): [{"json": {"holder": "a", "seconds": 1}}, {"json": {"seconds": 1, "hold": 9}}],
    ("GET", "/sessions/{session}/watch"): [{"params": {"after": "00000000.1"}}, {"headers": {"Last-Event-ID": "00000000.1"}}],
    ("GET", "/sessions/{session}/diff"): [{"params": {"before": "0"}}],
    ("GET", "/sessions/{session}/checkpoints"): [{}, {"params": {"limit": "1"}}],
    ("POST", "/sessions/{session}/checkpoints"): [{"json": {"name": "mine"}}, {"json": {"name": "mine", "version": 1}}],
    ("DELETE", "/sessions/{session}/checkpoints/{checkpoint}"): [{}],
    ("POST", "/sessions/{session}/rollback"): [{"json": {"version": 1}}, {"json": {"checkpoint": "{checkpoint}"}}],
    ("POST", "/sessions/{session}/fork"): [{"json": {}}, {"json": {"version": 1}}],
    ("GET", "/sessions/{session}/slots/{slot}"): [{}],
    ("GET", "/sessions/{session}/slots/{slot}/entries"): [{}, {"params": {"as_of": "1", "limit": "5"}}],
    ("POST", "/sessions/{session}/slots/{slot}/entries"): [
        {"json": {"entries": [{"data": 1}]}},
        {"content": "x", "headers": {"content-type": "image/png"}},
    ],
    ("GET", "/sessions/{session}/slots/{slot}/document"): [{}],
    ("POST", "/sessions/{session}/slots/{slot}/document"): [{"content": "x"}],
    ("GET", "/runs"): [{"params": {"conversation": "{conversation}"}}, {"params": {"after": "{run}"}}],
    ("GET", "/runs/{run}"): [{}],
    ("GET", "/runs/{run}/events"): [{}, {"headers": {"Last-Event-ID": "{cursor}"}}, {"params": {"after": "{cursor}"}}],
    ("POST", "/runs/{run}/cancel"): [{}],
    ("GET", "/runs/{run}/actions"): [{}, {"params": {"pending": "true"}}],
    ("POST", "/runs/{run}/actions/{action}"): [
        {"json": {"answer": 1}},
        {"json": {"answer": 1}, "headers": {"Idempotency-Key": "k"}},
        {"json": {}},
    ],
    ("GET", "/runs/{run}/steps"): [{}],
    ("GET", "/handoffs/{queue}"): [{}, {"params": {"limit": "1"}}],
    ("GET", "/models"): None,
    ("GET", "/models/{model}"): None,
    ("GET", "/stats"): None,
    ("GET", "/healthz"): None,
    ("GET", "/readyz"): None,
    ("GET", "/openapi.json"): None,
}
CASES = [(*route, probe) for route, probes in PROBES.items() for probe in probes or ()]


@pytest.fixture(scope="module")
def served(module_place: Place) -> Iterator[Served]:
    tokens = [ALICE, *STRANGERS.values()]
    with serving(echo(), pieces(), asking(), tokens=tokens, url=module_place.url) as running:
        yield running


@pytest.fixture(scope="module")
def objects(served: Served) -> dict[str, str]:
    """What Alice has."""
    with served.client(ALICE.token) as http:
        conversation = http.post("/v1/conversations", json={"items": [ITEM]}).json()["id"]
        response = http.post("/v1/responses", json={"input": "x", "conversation": conversation}).json()["id"]
        bound = http.get("/v1/sessions", params={"conversation": conversation}).json()["data"]
        item = http.get(f"/v1/responses/{response}/input_items").json()["data"][0]["id"]
        session = http.post(
            "/v1/sessions", json={"slots": {"a": 1, "window of alice": {"seconds": 9}}, "kinds": {"window of alice": "window"}}
        ).json()["id"]
        http.post(f"/v1/sessions/{session}/checkpoints", json={"name": "checkpoint of alice"})
        run = "run_" + response[5:]
        cursor = http.get(f"/v1/runs/{run}/events").text.partition("\n")[0].removeprefix("id: ")
        _, action = paused(http, "handoff")
    assert len(bound) == 1
    return {
        "conversation": conversation, "response": response, "run": run, "item": item, "session": session, "cursor": cursor,
        "action": action["id"], "queue": action["queue"], "slot": "window of alice", "checkpoint": "checkpoint of alice",
    }  # fmt: skip


def random_ids(objects: dict[str, str]) -> dict[str, str]:
    """Ids of the same form that belong to nobody."""
    made = {name: f"{value.partition('_')[0]}_{os.urandom(16).hex()}" for name, value in objects.items()}
    names = {"queue": "nobody serves this", "slot": "no such slot", "checkpoint": "no such checkpoint"}
    return {**made, "run": "run_" + made["response"][5:], "cursor": objects["cursor"], **names}


def filled(value: Any, ids: dict[str, str]) -> Any:
    if isinstance(value, str):
        return value.format(**ids)
    if isinstance(value, dict):
        return {name: filled(inner, ids) for name, inner in value.items()}
    return [filled(inner, ids) for inner in value] if isinstance(value, list) else value


def said(http: httpx.Client, method: str, path: str, probe: dict[str, Any], ids: dict[str, str]) -> tuple[int, Any, str]:
    """Everything an answer shows, with the ids that were asked for taken out."""
    answer = http.request(method, path.format(**ids), **filled(probe, ids))
    text = answer.text
    for name, value in ids.items():
        text = text.replace(value, f"<{name}>").replace(value.partition("_")[2] or value, f"<{name}>")
    headers = {name: value for name, value in answer.headers.items() if name not in ("x-request-id", "date")}
    return answer.status_code, headers, text


@pytest.mark.parametrize("stranger", STRANGERS)
@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize(("method", "path", "probe"), CASES, ids=[f"{m} {p} {n}" for n, (m, p, _) in enumerate(CASES)])
def test_P28_a_foreign_id_is_answered_like_a_random_one(
    served: Served, objects: dict[str, str], stranger: str, prefix: str, method: str, path: str, probe: dict[str, Any]
) -> None:
    with served.client(STRANGERS[stranger].token) as http:
        foreign = said(http, method, prefix + path, probe, objects)
        unknown = said(http, method, prefix + path, probe, random_ids(objects))
    assert foreign == unknown
    assert foreign[0] in (400, 404) or '"data":[]' in foreign[2]


def test_P28_every_route_is_probed(served: Served) -> None:
    """A route that is not in the table above was not thought about."""
    assert set(PROBES) == {(endpoint.method, endpoint.path) for endpoint in ENDPOINTS}
    app = served.server.config.app
    walked = {(method, route.path) for route in app.routes for method in getattr(route, "methods", ["WS"])}  # type: ignore[union-attr]
    sockets = {("WS", prefix + socket.path) for socket in SOCKETS for prefix in PREFIXES}
    assert walked == {(method, prefix + path) for method, path in PROBES for prefix in PREFIXES} | sockets
    assert {socket.path for socket in SOCKETS} == {"/responses", "/runs/{run}/events", "/sessions/{session}/watch"}
    named = {route for route in PROBES if "{" in route[1]} - {("GET", "/models/{model}")}
    assert all(PROBES[route] for route in named)


def test_P28_the_probes_find_what_is_there(served: Served, objects: dict[str, str]) -> None:
    """The same questions, asked by the owner, are answered: the probes can fail."""
    with served.client(ALICE.token) as http:
        for method, path, probe in CASES:
            if method == "GET":
                found = {"document": 400, "watch": 410}.get(path.rpartition("/")[2], 200)  # a window; another stream's cursor
                assert said(http, method, path, probe, objects)[0] == found, path


def test_P28_lists_show_only_what_is_ones_own(served: Served, objects: dict[str, str]) -> None:
    for stranger in STRANGERS.values():
        with served.client(stranger.token) as http:
            for path in ("/v1/conversations", "/v1/sessions", "/v1/runs"):
                shown = http.get(path, params={"limit": 100}).text
                assert not [value for name, value in objects.items() if name != "cursor" and value in shown]


def test_an_operator_sees_its_tenant(store_url: str) -> None:
    boss = Token("token-of-boss", "acme", "boss", sees="tenant")
    with serving(echo(), tokens=[ALICE, boss], url=store_url) as served:
        with served.client(ALICE.token) as http:
            conversation = http.post("/v1/conversations", json={}).json()["id"]
        with served.client(boss.token) as http:
            assert http.get(f"/v1/conversations/{conversation}").status_code == 200


def test_P28_a_key_means_nothing_to_others(served: Served) -> None:
    made = []
    for token in (ALICE, *STRANGERS.values()):
        with served.client(token.token) as http:
            answer = http.post("/v1/conversations", json={}, headers={"Idempotency-Key": "shared"})
            turn = http.post("/v1/responses", json={"input": token.token}, headers={"Idempotency-Key": "shared"})
            assert "Idempotency-Replayed" not in answer.headers
            assert turn.status_code == 200
            made += [answer.json()["id"], turn.json()["id"]]
    assert len(set(made)) == 2 * (1 + len(STRANGERS))
