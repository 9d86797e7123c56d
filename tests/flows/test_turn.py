"""The turn, on every kind of store: one key one execution, two commits, a sound record whatever the agent does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from stateroom import limits
from stateroom.errors import KeyReused, NotFound
from stateroom.flows.agent import AgentEvent, Delta, Done, End, Output, Start, Turn
from stateroom.principal import LOCAL, own
from stateroom.session.model import SlotPatch
from stateroom.wire import json
from tests.flows.conftest import Acts, Bench, ask, echo, heard, record, says, take

pytestmark = pytest.mark.anyio


async def test_P14_twenty_requests_with_one_key_are_one_execution_and_one_answer(bench: Bench) -> None:
    agent = Acts(echo)
    room = await bench.room(agent)
    answers = await asyncio.gather(*(ask(room, "hello", key="k") for _ in range(20)))
    assert len({answer.run.id for answer in answers}) == 1
    assert len({answer.outputs[0].body for answer in answers}) == 1
    assert len(agent.turns) == 1


async def test_P14_a_key_answers_the_same_after_the_run_has_ended(bench: Bench) -> None:
    room = await bench.room()
    first, again = await ask(room, "hello", key="k"), await take(room, "hello", key="k")
    assert (again.replayed, again.run.id) == (True, first.run.id)


async def test_P14_one_key_for_two_requests_is_refused(bench: Bench) -> None:
    room = await bench.room()
    await ask(room, "hello", key="k")
    with pytest.raises(KeyReused):
        await take(room, "something else", key="k")


async def test_P14_a_key_belongs_to_its_principal_and_tenant(bench: Bench) -> None:
    room = await bench.room()
    scopes = (own("a", "alice"), own("a", "bob"), own("b", "alice"))
    runs = {(await ask(room, "hello", key="k", scope=scope)).run.id for scope in scopes}
    assert len(runs) == 3


async def test_P14_a_retry_without_a_key_attaches_and_a_new_turn_does_not(bench: Bench) -> None:
    room = await bench.room()
    first = await ask(room, "yes")
    assert (await ask(room, "yes")).run.id != first.run.id
    newest = await ask(room, "yes")
    retried = await take(room, "yes", retry_ms=60_000)
    assert (retried.replayed, retried.run.id) == (True, newest.run.id)


async def test_a_turn_that_was_refused_leaves_its_key_free(bench: Bench) -> None:
    room = await bench.room()
    with pytest.raises(NotFound):
        await take(room, "hello", key="k", conversation=b"\1" * 16)
    assert not (await take(room, "hello", key="k")).replayed


async def test_an_ordinary_turn_costs_two_commits(bench: Bench) -> None:
    room = await bench.room()
    if bench.place.kind == "ram":
        pytest.skip("nothing is committed there")
    conversation = (await ask(room, "warm up")).run.conversation
    before = room.backend.commits
    await ask(room, "hello", conversation=conversation)
    assert room.backend.commits - before == 2


async def test_a_previous_response_is_extended_once_and_forked_after_that(bench: Bench) -> None:
    room = await bench.room()
    first = await ask(room, "one")
    left = await ask(room, "left", previous=first.run.id)
    right = await ask(room, "right", previous=first.run.id)
    assert left.run.branch == first.run.branch
    assert right.run.branch != first.run.branch
    assert await record(room, right.run.branch) == ["one", "you said one", "right", "you said right"]
    for branch, last in ((left, "left"), (right, "right")):
        more = await ask(room, "more", previous=branch.run.id)
        assert (await record(room, more.run.branch))[2:] == [last, f"you said {last}", "more", "you said more"]


async def test_failed_input_is_kept_marked_and_never_shown_to_the_agent_again(bench: Bench) -> None:
    async def moody(turn: Turn) -> AsyncIterator[AgentEvent]:
        if "boom" in turn.text:
            raise RuntimeError("no")
        yield Delta("fine")

    agent = Acts(moody)
    room = await bench.room(agent)
    good = await ask(room, "hello")
    bad = await ask(room, "boom", previous=good.run.id)
    assert (bad.run.status, json.decode(bad.run.error)["code"], bad.outputs) == ("failed", "agent_error", [])
    after = await ask(room, "again", previous=good.run.id)
    assert after.run.branch == good.run.branch, "the newest response that did not fail is extended, not forked"
    assert heard(agent.turns[-1]) == ["hello", "fine", "again"]
    assert await record(room, good.run.branch) == ["hello", "fine", "boom [failed]", "again", "fine"]


async def test_a_second_turn_waits_and_hears_the_first_answer(bench: Bench) -> None:
    go_on = asyncio.Event()

    async def slow(turn: Turn) -> AsyncIterator[AgentEvent]:
        if turn.text == "one":
            await go_on.wait()
        yield Delta(f"re {turn.text}")

    agent = Acts(slow)
    room = await bench.room(agent)
    conversation = (await room.conversations.create(LOCAL)).id
    tickets = [await take(room, text, conversation=conversation) for text in ("one", "two", "three")]
    assert [ticket.run.status for ticket in tickets] == ["in_progress", "queued", "queued"]
    go_on.set()
    for ticket in tickets:
        await room.turns.outcome(LOCAL, ticket.run.id, timeout_s=10)
    assert await record(room, conversation) == ["one", "re one", "two", "re two", "three", "re three"]
    assert heard(agent.turns[1]) == ["one", "re one", "two"]


async def test_a_caller_that_goes_away_changes_nothing(bench: Bench) -> None:
    go_on = asyncio.Event()

    async def slow(turn: Turn) -> AsyncIterator[AgentEvent]:
        await go_on.wait()
        yield Delta("done")

    room = await bench.room(slow)
    ticket = await take(room, "hello")
    caller = asyncio.create_task(room.turns.outcome(LOCAL, ticket.run.id))
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)
    go_on.set()
    assert (await room.turns.outcome(LOCAL, ticket.run.id, timeout_s=10)).run.status == "completed"


async def test_a_slot_conflict_never_costs_the_answer(bench: Bench) -> None:
    room = await bench.room(Acts(counting))
    first = await ask(room, "begin")
    session = first.run.session
    await room.sessions.patch(LOCAL, session, [SlotPatch(name="n", body=b"1")])
    answer = await racing(bench, session, previous=first.run.id, function=False)
    assert (answer.run.status, json.decode(answer.run.error)["code"]) == ("completed", "state_conflict")
    assert await room.sessions.state(LOCAL, session) == {"n": 100}


async def test_a_state_function_is_asked_again_when_slots_changed(bench: Bench) -> None:
    room = await bench.room(Acts(counting))
    first = await ask(room, "begin")
    session = first.run.session
    await room.sessions.patch(LOCAL, session, [SlotPatch(name="n", body=b"1")])
    answer = await racing(bench, session, previous=first.run.id, function=True)
    assert (answer.run.status, answer.run.error) == ("completed", b"")
    assert await room.sessions.state(LOCAL, session) == {"n": 101}


async def counting(turn: Turn) -> AsyncIterator[AgentEvent]:
    yield Delta("ok")


async def racing(bench: Bench, session: bytes, *, previous: bytes, function: bool):  # type: ignore[no-untyped-def]
    """A turn in whose middle somebody else sets n to 100."""
    rooms = []

    async def raced(turn: Turn) -> AsyncIterator[AgentEvent]:
        await rooms[0].sessions.patch(LOCAL, session, [SlotPatch(name="n", body=b"100")])
        if function:
            turn.update(lambda slots: {"n": slots["n"] + 1})
        else:
            turn.set("n", turn.slots["n"] + 1)
        yield Delta("ok")

    rooms.append(await bench.room(raced))
    return await ask(rooms[0], "count", previous=previous)


async def test_a_worker_never_uses_a_stale_desk_or_record(bench: Bench) -> None:
    """Two workers with a cache each take turns on one conversation, and an application writes between them."""
    first, second = Acts(echo), Acts(echo)
    rooms = [await bench.room(first), await bench.room(second)]
    conversation = (await rooms[0].conversations.create(LOCAL)).id
    for n in range(6):
        room, agent = (rooms[0], first) if n % 2 == 0 else (rooms[1], second)
        answer = await ask(room, f"turn {n}", conversation=conversation)
        assert agent.turns[-1].slots == ({"n": n - 1} if n else {})
        assert len(heard(agent.turns[-1])) == 2 * n + 1 + n
        await room.sessions.patch(LOCAL, answer.run.session, [SlotPatch(name="n", body=b"%d" % n)])
        await room.conversations.append(LOCAL, conversation, [says("aside")])


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (Output({"no": "type"}), "item_type_missing"),
        (End("failed", "refused", "no \0 \ud800"), "refused"),
        (Delta("long" * limits.ITEM_BYTES_MAX), "item_too_large"),
        (Delta(b"bytes"), "agent_answer_invalid"),  # type: ignore[arg-type]
        (Output(json.decode_trusted(b'{"type": "deep", "a":' + b"[" * 90 + b"]" * 90 + b"}")), "json_too_deep"),
    ],
)
async def test_P31_an_agent_that_says_nonsense_fails_its_run_and_leaves_the_record_sound(
    bench: Bench, wrong: AgentEvent, code: str
) -> None:
    async def nonsense(turn: Turn) -> AsyncIterator[AgentEvent]:
        yield Delta("half")
        yield wrong

    room = await bench.room(nonsense)
    answer = await ask(room, "hello")
    assert (answer.run.status, json.decode(answer.run.error)["code"]) == ("failed", code)
    assert await record(room, answer.run.branch) == ["hello [failed]"]


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_nul_or_half_a_character_costs_no_answer_and_none_is_in_the_record(bench: Bench, streamed: bool) -> None:
    async def careless(turn: Turn) -> AsyncIterator[AgentEvent]:
        yield Delta("one \0")
        yield Delta(" and \ud83d")
        yield Done()
        yield Output({"type": "function_call", "name": "look\0", "call_id": "c", "arguments": "\0", "more": {"\0": ["\udc00"]}})
        yield Output({"type": "function_call_output", "call_id": "c", "output": "said \\u0000"})
        yield Start({"type": "message", "role": "assistant", "phase": "\0"})
        yield Done({"type": "message", "role": "assistant", "content": "\0"})

    room = await bench.room(careless)
    options = json.encode({"stream": streamed})
    answer = await ask(room, "hello", options=options, listed=True)
    assert (answer.run.status, answer.run.error) == ("completed", b"")
    said, call, output, last = (json.decode(item.body) for item in answer.outputs)
    assert said["content"][0]["text"] == "one \ufffd and \ufffd"
    assert (call["name"], call["arguments"], call["more"]) == ("look\ufffd", "\ufffd", {"\ufffd": ["\ufffd"]})
    assert output["output"] == "said \\u0000", "what only looks like one is left as it is"
    assert last["content"] == "\ufffd"
    events = [found[1] async for found in room.followers.events(LOCAL, answer.run.id, room.followers.at(answer.run, 0)) if found]
    assert "\0" not in str(events)


async def test_a_turn_that_is_not_stored_answers_and_leaves_nothing(bench: Bench) -> None:
    agent = Acts(echo)
    room = await bench.room(agent)
    kept = await ask(room, "kept")
    answer = await ask(room, "secret", stored=False, previous=kept.run.id)
    assert json.decode(answer.outputs[0].body)["content"][0]["text"] == "you said secret"
    assert heard(agent.turns[-1]) == ["kept", "you said kept", "secret"]
    assert await record(room, kept.run.branch) == ["kept", "you said kept"]


async def test_a_full_queue_says_so(bench: Bench) -> None:
    async def never(turn: Turn) -> AsyncIterator[AgentEvent]:
        await asyncio.sleep(60)
        yield Delta("late")

    room = await bench.room(never)
    conversation = (await room.conversations.create(LOCAL)).id
    for _ in range(limits.QUEUE_TURNS_MAX + 1):
        await take(room, "more", conversation=conversation)
    with pytest.raises(Exception, match="waiting") as refused:
        await take(room, "more", conversation=conversation)
    assert refused.value.reason == "queue_full"  # type: ignore[attr-defined]


async def test_a_turn_that_is_not_stored_reaches_its_reader_and_never_the_disk(bench: Bench) -> None:
    async def secretive(turn: Turn) -> AsyncIterator[AgentEvent]:
        yield Delta("canary-answer")
        await asyncio.sleep(0.05)
        yield Output({"type": "function_call_output", "call_id": "c", "output": "canary-output"})

    room = await bench.room(secretive)
    options = b'{"stream":true,"store":false,"instructions":"canary-instructions"}'
    ticket = await take(room, "canary-input", stored=False, options=options)
    start = room.followers.cursor(ticket.run, None)
    seen = [event[1] async for event in room.followers.events(LOCAL, ticket.run.id, start) if event is not None]
    assert [event["sequence_number"] for event in seen] == list(range(len(seen)))
    for canary in ("canary-answer", "canary-output", "canary-instructions"):
        assert canary in str(seen), canary
    assert bench.place.kind == "ram" or not bench.place.holds(b"canary")


async def test_a_purged_item_is_gone_from_the_log_too(bench: Bench) -> None:
    room = await bench.room()
    answer = await ask(room, "hello", options=b'{"stream":true}')
    await room.conversations.delete_item(LOCAL, answer.run.branch, answer.outputs[0].id)
    assert b"you said" not in b"".join(row.body for row in await room.runs.log(LOCAL, answer.run.id))
