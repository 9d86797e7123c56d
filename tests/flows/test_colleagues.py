"""Two principals of one tenant on one conversation, tenants that are new, and other things fresh eyes found."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import apsw
import pytest

from stateroom import ids
from stateroom.backends.sqlite.backend import SqliteBackend
from stateroom.batch import Batch
from stateroom.conversation.model import Append, CreateConversation, Fork, ItemQuery
from stateroom.errors import Gone, StateroomError, Unavailable
from stateroom.flows.agent import AgentEvent, Delta, Turn, Usage
from stateroom.flows.turn import TurnRequest
from stateroom.principal import LOCAL, operator, own
from stateroom.wire import json, openai
from tests.crash.test_P19_io_faults import Faults, FaultyVfs, batch
from tests.flows.conftest import Acts, Bench, ask, echo, record, says, take

pytestmark = pytest.mark.anyio
ADA, OPS = own("a", "ada"), operator("a", "ops")


async def test_a_colleague_who_takes_the_first_turn_does_not_take_the_desk(bench: Bench) -> None:
    async def counting(turn: Turn) -> AsyncIterator[AgentEvent]:
        turn.set("n", turn.slots.get("n", 0) + 1)
        yield Delta(turn.principal)

    room = await bench.room(counting)
    conversation = (await room.conversations.create(ADA)).id
    await ask(room, "one", scope=OPS, conversation=conversation)
    answer = await ask(room, "two", scope=ADA, conversation=conversation)
    assert answer.run.status == "completed"
    assert await room.sessions.state(ADA, answer.run.session) == {"n": 2}


async def test_a_colleagues_queued_turn_runs_at_once_and_in_its_own_name(bench: Bench) -> None:
    go_on = asyncio.Event()

    async def telling(turn: Turn) -> AsyncIterator[AgentEvent]:
        await go_on.wait()
        yield Delta(turn.principal)

    room = await bench.room(telling)
    conversation = (await room.conversations.create(ADA)).id
    tickets = [(scope, await take(room, "hi", scope=scope, conversation=conversation)) for scope in (ADA, OPS, ADA)]
    go_on.set()
    for scope, ticket in tickets:
        answer = await room.turns.outcome(scope, ticket.run.id, timeout_s=5)
        assert json.decode(answer.outputs[0].body)["content"][0]["text"] == scope.principal


async def test_P28_sqlite_a_tenant_whose_first_batch_was_lost_gives_its_number_to_nobody(tmp_path: Path) -> None:
    """A full disk in the moment two batches of a new tenant share a group."""
    faults = Faults()
    vfs = FaultyVfs("faulty", faults)
    store = await SqliteBackend.open(tmp_path, vfs="faulty")

    async def make(tenant: str) -> list[object]:
        writes = [CreateConversation(id=bytes([n + 1]) * 16, owner="o", subject="o") for n in range(2)]
        made = [Batch(id=ids.new(7, 1), scope=operator(tenant), at=1, writes=(write,)) for write in writes]
        return await asyncio.gather(*(store.commit(one) for one in made), return_exceptions=True)

    await make("A")
    faults.kind, faults.seen, faults.at, faults.always = "write", 0, 1, True
    assert all(isinstance(refused, Unavailable) for refused in await make("B"))
    faults.at, faults.always = 0, False
    await make("B")
    await make("C")
    names = apsw.Connection(str(tmp_path / "state.db")).execute("select name from tenant order by number").fetchall()
    assert sorted(names) == [("A",), ("B",), ("C",)]
    await store.close()
    vfs.unregister()


async def test_equal_turns_without_keys_are_different_turns_whatever_the_clock_does(bench: Bench) -> None:
    rooms = [await bench.room(), await bench.room()]
    answers = await asyncio.gather(*(ask(rooms[n % 2], "hi") for n in range(16)))
    assert len({answer.run.id for answer in answers}) == 16


async def test_a_fork_keeps_its_own_items_when_its_parent_lost_some_beyond(bench: Bench) -> None:
    room = await bench.room()
    conversation = (await room.conversations.create(LOCAL, items=[says(str(n)) for n in range(1, 5)])).id
    third = (await room.conversations.items(LOCAL, ItemQuery(branch=conversation, limit=9)))[2]
    await room.conversations.delete_item(LOCAL, conversation, third.id)
    fork = conversation[:2] + b"f" * 14
    await room.backend.commit(batch(Fork(id=fork, parent=conversation, up_to=2)))
    await room.conversations.append(LOCAL, fork, [says("f3"), says("f4")])
    assert await record(room, fork) == ["1", "2", "f3", "f4"]


@pytest.mark.parametrize("count", [1, 300, 512])
async def test_an_agent_always_gets_its_whole_input(bench: Bench, count: int) -> None:
    agent = Acts(echo)
    room = await bench.room(agent)
    request = TurnRequest(agent="agent", input=tuple(says(f"{n}") for n in range(count)))
    ticket = await room.turns.take(LOCAL, request)
    await room.turns.outcome(LOCAL, ticket.run.id, timeout_s=10)
    assert len(agent.turns[0].input) == count
    for _ in range(2):
        await room.conversations.append(LOCAL, ticket.run.branch, [says("aside")] * 512)
    await ask(room, "THE QUESTION", conversation=ticket.run.conversation)
    assert [item["content"] for item in agent.turns[1].input] == ["THE QUESTION"]
    big = [b'{"type":"message","role":"user","content":"%s"}' % (letter * 400_000) for letter in (b"a", b"b")]
    await room.turns.outcome(LOCAL, (await room.turns.take(LOCAL, TurnRequest(agent="agent", input=tuple(big)))).run.id)
    assert len(agent.turns[2].input) == 2


async def test_a_turn_whose_desk_was_ended_while_it_waited_is_still_answered(bench: Bench) -> None:
    go_on = asyncio.Event()

    async def setting(turn: Turn) -> AsyncIterator[AgentEvent]:
        await go_on.wait()
        turn.set("n", 1)
        yield Delta("ok")

    room = await bench.room(setting)
    first = await take(room, "one")
    second = await take(room, "two", conversation=first.run.conversation)
    await room.sessions.end(LOCAL, first.run.session)
    go_on.set()
    for ticket in (first, second):
        assert (await room.turns.outcome(LOCAL, ticket.run.id, timeout_s=5)).run.status == "completed"


async def test_a_key_whose_answer_was_deleted_is_gone(bench: Bench) -> None:
    room = await bench.room()
    answer = await ask(room, "hello", key="k")
    await room.runs.delete(LOCAL, answer.run.id)
    with pytest.raises(Gone) as gone:
        await take(room, "hello", key="k")
    assert gone.value.reason == "answer_deleted"


async def test_usage_that_is_nonsense_does_not_poison_the_answer(bench: Bench) -> None:
    async def odd(turn: Turn) -> AsyncIterator[AgentEvent]:
        yield Delta("ok")
        yield Usage({"input_tokens": 3, "input_tokens_details": 7, "output_tokens_details": {"reasoning_tokens": "x"}})

    room = await bench.room(odd)
    answer = await ask(room, "hello")
    assert openai.response_object(answer.run, answer.outputs)["usage"]["input_tokens"] == 3


async def test_P19_sqlite_a_store_that_failed_to_reopen_takes_writes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stateroom.backends.sqlite import db

    faults = Faults()
    vfs = FaultyVfs("faulty", faults)
    store = await SqliteBackend.open(tmp_path, vfs="faulty")
    connect, failing = db.connect, [True]

    def flaky(*given: object, **more: object) -> apsw.Connection:
        if failing:
            failing.clear()
            raise apsw.CantOpenError("no file handles")
        return connect(*given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(db, "connect", flaky)
    faults.kind, faults.seen, faults.at = "sync", 0, 1
    with pytest.raises(StateroomError):
        await store.commit(batch(CreateConversation(id=b"\1" * 16, owner="o", subject="o")))
    faults.at = 0
    await store.commit(batch(CreateConversation(id=b"\2" * 16, owner="o", subject="o"), Append(branch=b"\2" * 16, items=())))
    await store.close()
    vfs.unregister()
