"""Who gets in: bearer tokens, and a server without tokens that answers its own machine's programs only."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx2 as httpx
import pytest

from stateroom.errors import InvalidInput
from stateroom.server.app import ENDPOINTS
from stateroom.server.auth import Token, read_tokens
from stateroom.server.run import is_loopback, serve
from tests.server.serving import Served, echo, serving
from tests.services.places import Place

TOKENS = [Token("sesame-open", "acme", "alice"), Token("sesame-other", "acme", "bob")]


@pytest.fixture(scope="module")
def guarded(module_place: Place) -> Iterator[Served]:
    with serving(echo(), tokens=TOKENS, url=module_place.url) as running:
        yield running


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer wrong",
        "Basic sesame-open",
        "sesame-open",
        "Bearer sesame-open2",
        "Bearer sesame-ope",
        "Bearer \xe9",
    ],
)
def test_without_a_valid_token_every_route_answers_401(guarded: Served, header: str | None) -> None:
    headers = {} if header is None else {"Authorization": header.encode("latin-1")}
    with guarded.client() as http:
        for endpoint in ENDPOINTS:
            answer = http.request(endpoint.method, f"/v1{endpoint.path}", headers=headers)
            if endpoint.open:
                assert answer.status_code == 200
                continue
            assert answer.status_code == 401, endpoint.path
            assert answer.json()["error"]["code"] == "unauthorized"
            assert answer.json()["error"]["type"] == "authentication_error"


def test_a_token_opens_its_principals_room(guarded: Served) -> None:
    with guarded.client("sesame-open") as alice, guarded.client("sesame-other") as bob:
        made = alice.post("/v1/conversations", json={}).json()["id"]
        assert alice.get(f"/v1/conversations/{made}").status_code == 200
        assert bob.get(f"/v1/conversations/{made}").status_code == 404


def test_the_word_bearer_is_taken_in_any_case(guarded: Served) -> None:
    with guarded.client() as http:
        assert http.get("/v1/models", headers={"Authorization": "bearer sesame-open"}).status_code == 200


# ── without tokens ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "headers", [{"Origin": "https://evil.example"}, {"Origin": "null"}, {"Host": "evil.example"}, {"Host": "[oops"}]
)
def test_web_pages_from_elsewhere_are_refused(http: httpx.Client, headers: dict[str, str]) -> None:
    answer = http.post("/v1/conversations", content=b"{}", headers={**headers, "Content-Type": "text/plain"})
    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "origin_refused"


def test_programs_and_pages_of_this_very_server_are_not(served: Served, http: httpx.Client) -> None:
    assert http.get("/v1/models", headers={"Origin": served.url}).status_code == 200
    assert http.get("/v1/models", headers={"Host": "localhost:1"}).status_code == 200
    assert http.get("/v1/models", headers={"Host": "[::1]:1"}).status_code == 200


@pytest.mark.parametrize(("host", "local"), [
    ("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True),
    ("0.0.0.0", False), ("::", False), ("192.168.1.5", False), ("example.org", False), ("127.evil.example", False),
])  # fmt: skip
def test_loopback_is_told_from_the_rest(host: str, local: bool) -> None:
    assert is_loopback(host) is local


@pytest.mark.anyio
async def test_without_tokens_nothing_but_loopback_is_served() -> None:
    with pytest.raises(InvalidInput) as refused:
        await serve("ram://", host="0.0.0.0", port=0)
    assert refused.value.reason == "tokens_needed"


# ── the tokens file ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_tokens_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    file.write_text(json.dumps({"tokens": [
        {"token": "sesame-open", "tenant": "acme", "principal": "alice"},
        {"token": "sesame-boss", "tenant": "acme", "principal": "boss", "sees": "tenant"},
    ]}))  # fmt: skip
    alice, boss = read_tokens(file)
    assert (alice.scope().tenant, alice.scope().principal, alice.scope().may_see("alice")) == ("acme", "alice", True)
    assert not alice.scope().may_see("bob")
    assert boss.scope().may_see("bob")


TWICE = '{"token": "sesame-open", "tenant": "a", "principal": "b"}'


@pytest.mark.parametrize(
    "content",
    [
        "", "[]", "{}", '{"tokens": []}', '{"tokens": [{"token": "sesame-open"}]}',
        '{"tokens": [{"token": "short", "tenant": "a", "principal": "b"}]}',
        '{"tokens": [{"token": "has a space", "tenant": "a", "principal": "b"}]}',
        '{"tokens": [{"token": "sesame-open", "tenant": "", "principal": "b"}]}',
        '{"tokens": [{"token": "sesame-open", "tenant": "a", "principal": "b", "sees": "all"}]}',
        f'{{"tokens": [{TWICE}, {TWICE}]}}',
    ],
)  # fmt: skip
def test_a_bad_tokens_file_is_refused_and_no_secret_is_repeated(tmp_path: Path, content: str) -> None:
    file = tmp_path / "tokens.json"
    file.write_text(content)
    with pytest.raises(InvalidInput) as refused:
        read_tokens(file)
    assert refused.value.reason == "tokens_invalid"
    assert "sesame" not in str(refused.value)


def test_a_missing_tokens_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput):
        read_tokens(tmp_path / "none.json")
