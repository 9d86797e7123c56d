"""P14: one turn key, one execution, one answer; and clients that try again without a key."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest
from openai import AsyncOpenAI, OpenAI, UnprocessableEntityError

from tests.server.serving import Gate, Served, held, serving


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def holding(gate: Gate, store_url: str):  # type: ignore[no-untyped-def]
    with serving(held(gate), url=store_url) as served:
        yield served
        gate.opened.set()


@pytest.mark.anyio
@pytest.mark.parametrize("streamed", [False, True])
async def test_P14_twenty_posts_with_one_key_are_one_run_and_one_answer(holding: Served, gate: Gate, streamed: bool) -> None:
    async with AsyncOpenAI(base_url=f"{holding.url}/v1", api_key="any", max_retries=0) as client:

        async def post() -> tuple[str, str]:
            headers = {"Idempotency-Key": "the key"}
            if not streamed:
                answer = await client.responses.create(input="hi", extra_headers=headers)
                return answer.id, answer.output_text
            events = [event async for event in await client.responses.create(input="hi", stream=True, extra_headers=headers)]
            assert [event.sequence_number for event in events] == list(range(len(events)))
            assert events[-1].type == "response.completed"
            return events[-1].response.id, events[-1].response.output_text

        posts = [asyncio.create_task(post()) for _ in range(20)]
        while gate.asked == 0:
            await asyncio.sleep(0.01)
        gate.opened.set()
        answers = set(await asyncio.gather(*posts))
        assert answers == {(next(iter(answers))[0], "answer 1 to hi")}
        assert await post() in answers
    assert gate.asked == 1


def test_P14_another_request_under_the_same_key_is_refused(client: OpenAI) -> None:
    first = client.responses.create(input="one", extra_headers={"Idempotency-Key": "two requests"})
    with pytest.raises(UnprocessableEntityError) as refused:
        client.responses.create(input="two", extra_headers={"Idempotency-Key": "two requests"})
    assert refused.value.code == "idempotency_key_reused"
    raw = client.responses.with_raw_response.create(input="one", extra_headers={"Idempotency-Key": "two requests"})
    assert raw.headers["Idempotency-Replayed"] == "true"
    assert raw.parse() == first


def retried(client: OpenAI, input: str, *, count: str = "1", timeout: str = "600") -> str:
    headers = {"x-stainless-retry-count": count, "x-stainless-read-timeout": timeout}
    return client.responses.create(input=input, extra_headers=headers).id


def test_a_retry_without_a_key_attaches_to_its_first_try(holding: Served, gate: Gate) -> None:
    with OpenAI(base_url=f"{holding.url}/v1", api_key="any", max_retries=0) as client, ThreadPoolExecutor() as pool:
        first = pool.submit(lambda: client.responses.create(input="hi").id)
        while gate.asked == 0:
            pass
        second = pool.submit(retried, client, "hi")
        gate.opened.set()
        assert first.result(timeout=5) == second.result(timeout=5)
        assert retried(client, "hi") == first.result()
    assert gate.asked == 1


def test_without_a_word_of_retrying_the_same_input_is_a_new_turn(client: OpenAI) -> None:
    first = client.responses.create(input="yes")
    assert client.responses.create(input="yes").id != first.id
    assert retried(client, "yes", count="0") != first.id
    assert retried(client, "no") != first.id


def test_the_client_itself_tries_again_and_finds_its_answer(holding: Served, gate: Gate) -> None:
    """A read timeout makes the client post again, without a key."""
    with OpenAI(base_url=f"{holding.url}/v1", api_key="any", max_retries=3, timeout=1) as client, ThreadPoolExecutor() as pool:
        answer = pool.submit(lambda: client.responses.create(input="patience"))
        pool.submit(lambda: (asyncio.run(asyncio.sleep(1.6)), gate.opened.set()))
        assert answer.result(timeout=10).output_text == "answer 1 to patience"
    assert gate.asked == 1
