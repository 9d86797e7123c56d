"""Refusals become the client's typed exceptions, with a code, the field and a request id."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from openai import (
    APIStatusError,
    AuthenticationError,
    BadRequestError,
    ConflictError,
    NotFoundError,
    OpenAI,
    UnprocessableEntityError,
)

from stateroom.server.auth import Token
from tests.server.serving import Gate, echo, held, serving

CONV, RESP = "conv_" + "0" * 32, "resp_" + "0" * 32
REFUSED: dict[str, tuple[Callable[[OpenAI], Any], type[APIStatusError], str, str | None]] = {
    "unknown conversation": (lambda c: c.conversations.retrieve(CONV), NotFoundError, "not_found", None),
    "malformed conversation": (lambda c: c.conversations.retrieve("nonsense"), NotFoundError, "not_found", None),
    "unknown response": (lambda c: c.responses.retrieve(RESP), NotFoundError, "not_found", None),
    "turn in an unknown conversation": (
        lambda c: c.responses.create(input="x", conversation=CONV), NotFoundError, "not_found", None
    ),
    "turn after an unknown response": (
        lambda c: c.responses.create(input="x", previous_response_id=RESP),
        BadRequestError, "previous_response_not_found", "previous_response_id",
    ),
    "two places": (
        lambda c: c.responses.create(input="x", previous_response_id=RESP, conversation=CONV),
        BadRequestError, "place_given_twice", None,
    ),
    "no input": (lambda c: c.responses.create(), BadRequestError, "input_missing", "input"),
    "wrong type": (lambda c: c.responses.create(input="x", metadata={"a": 1}), BadRequestError, "wrong_type", "metadata"),  # type: ignore[dict-item]
    "background without storing": (
        lambda c: c.responses.create(input="x", background=True, store=False), BadRequestError, "background_not_stored", "store"
    ),
    "bad key": (
        lambda c: c.responses.create(input="x", extra_headers={"Idempotency-Key": "k" * 256}),
        BadRequestError, "idempotency_key_invalid", "Idempotency-Key",
    ),
    "cursor ahead": (
        lambda c: c.responses.retrieve(c.responses.create(input="x").id, stream=True, starting_after=99),
        BadRequestError, "cursor_ahead", "starting_after",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_P31_a_refusal_is_a_typed_exception(client: OpenAI, case: str) -> None:
    ask, kind, code, param = REFUSED[case]
    with pytest.raises(kind) as refused:
        ask(client)
    error = refused.value
    assert (error.code, error.param, error.type) == (code, param, "invalid_request_error")
    assert error.request_id
    assert error.request_id.startswith("req_")


def test_a_deterministic_conflict_is_not_tried_again(store_url: str) -> None:
    gate = Gate()
    with serving(held(gate), url=store_url) as served, OpenAI(base_url=f"{served.url}/v1", api_key="any") as client:  # retries on
        answer = client.responses.create(input="x", background=True)
        with pytest.raises(ConflictError) as refused:
            client.responses.delete(answer.id)
        assert refused.value.response.request.headers["x-stainless-retry-count"] == "0"
        gate.opened.set()


def test_tokens_make_an_authentication_error(store_url: str) -> None:
    token = Token("sesame-open", "acme", "alice")
    with serving(echo(), tokens=[token], url=store_url) as served:
        with OpenAI(base_url=f"{served.url}/v1", api_key="wrong-token") as client, pytest.raises(AuthenticationError):
            client.responses.create(input="hi")
        with OpenAI(base_url=f"{served.url}/v1", api_key="sesame-open") as client:
            assert client.responses.create(input="hi").output_text == "hi"


def test_what_was_not_stored_is_gone_afterwards(client: OpenAI) -> None:
    answer = client.responses.create(input="x", store=False, extra_headers={"Idempotency-Key": "passing"})
    for ask in (
        lambda: client.responses.retrieve(answer.id),
        lambda: client.responses.retrieve(answer.id, stream=True),
        lambda: client.responses.input_items.list(answer.id),
        lambda: client.responses.create(input="x", store=False, extra_headers={"Idempotency-Key": "passing"}),
    ):
        with pytest.raises(APIStatusError) as gone:
            ask()
        assert (gone.value.status_code, gone.value.code) == (410, "answer_not_kept")


def test_a_reused_key_names_the_header(client: OpenAI) -> None:
    client.conversations.create(metadata={"n": "1"}, extra_headers={"Idempotency-Key": "conversation"})
    with pytest.raises(UnprocessableEntityError) as refused:
        client.conversations.create(metadata={"n": "2"}, extra_headers={"Idempotency-Key": "conversation"})
    assert refused.value.param == "Idempotency-Key"
