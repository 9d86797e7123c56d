"""Going back: state and conversation together, in one batch; what is undone can be gone back to (P18, P25)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import chain

import pytest

from stateroom.conversation.model import ItemQuery
from stateroom.errors import Busy, Gone, NotFound
from stateroom.flows.agent import AgentEvent, Delta, Turn, text_of
from stateroom.ids import NIL
from stateroom.principal import LOCAL
from stateroom.session import versions
from stateroom.session.model import OpenSession
from stateroom.stack import Stateroom
from stateroom.wire import json
from tests.flows.conftest import Acts, Bench, ask, record, take

pytestmark = pytest.mark.anyio


async def remembers(turn: Turn) -> AsyncIterator[AgentEvent]:
    """Keeps on the desk what it was told last."""
    turn.changes["last"] = turn.text
    yield Delta(f"re {turn.text}")


async def talk(room: Stateroom, *texts: str) -> tuple[bytes, bytes, list[bytes]]:
    """A conversation, its desk, and the runs."""
    conversation = (await room.conversations.create(LOCAL)).id
    runs = [(await ask(room, text, conversation=conversation)).run.id for text in texts]
    desk = await room.sessions.bound(LOCAL, conversation, room.default_agent)
    assert desk is not None
    return conversation, desk.id, runs


def said(*texts: str) -> list[str]:
    return list(chain.from_iterable((text, f"re {text}") for text in texts))


async def test_every_turn_leaves_a_checkpoint_that_tells_of_desk_and_conversation(bench: Bench) -> None:
    room = await bench.room(remembers)
    conversation, desk, runs = await talk(room, "a", "b")
    found = await room.sessions.checkpoints(LOCAL, desk)
    assert [(mark.name, mark.version, mark.branch, mark.seq) for mark in found] == [
        (versions.turn_name(runs[1]), 2, conversation, 4),
        (versions.turn_name(runs[0]), 1, conversation, 2),
    ]


async def test_an_ordinary_turn_is_still_two_commits(bench: Bench) -> None:
    room = await bench.room(remembers)
    conversation, _, _ = await talk(room, "a")
    if not hasattr(room.backend, "commits"):
        return
    before = room.backend.commits
    await ask(room, "b", conversation=conversation)
    assert room.backend.commits - before == 2


async def test_P18_state_and_conversation_go_back_together(bench: Bench) -> None:
    room = await bench.room(remembers)
    conversation, desk, runs = await talk(room, "a", "b", "c")
    rolled = await room.rollbacks.to(LOCAL, desk, versions.turn_name(runs[0]))
    assert (rolled.to, rolled.version, rolled.undone.seq) == (1, 4, 6)
    assert await room.sessions.state(LOCAL, desk) == {"last": "a"}
    assert await record(room, conversation) == said("a")
    await ask(room, "d", conversation=conversation)
    assert await record(room, conversation) == said("a", "d")
    assert await room.sessions.state(LOCAL, desk) == {"last": "d"}


async def test_P18_what_was_undone_can_be_gone_back_to(bench: Bench) -> None:
    room = await bench.room(remembers)
    conversation, desk, runs = await talk(room, "a", "b")
    rolled = await room.rollbacks.to(LOCAL, desk, versions.turn_name(runs[0]))
    await ask(room, "other", conversation=conversation)
    again = await room.rollbacks.to(LOCAL, desk, rolled.undone.name)
    assert await room.sessions.state(LOCAL, desk) == {"last": "b"}
    assert await record(room, conversation) == said("a", "b")
    await room.rollbacks.to(LOCAL, desk, again.undone.name)
    assert await record(room, conversation) == said("a", "other")


async def test_answers_that_were_undone_can_still_be_read_by_their_run(bench: Bench) -> None:
    room = await bench.room(remembers)
    _, desk, runs = await talk(room, "a", "b")
    await room.rollbacks.to(LOCAL, desk, versions.turn_name(runs[0]))
    outputs = await room.turns.outputs(LOCAL, await room.runs.get(LOCAL, runs[1]))
    assert len(outputs) == 1
    turn = await ask(room, "c", previous=runs[1])
    assert await record(room, turn.run.branch) == said("a", "b", "c"), "who names an answer goes on from it"


async def test_a_version_goes_back_to_the_last_turn_up_to_it(bench: Bench) -> None:
    room = await bench.room(remembers)
    conversation, desk, _ = await talk(room, "a", "b")
    await room.rollbacks.to(LOCAL, desk, 1)
    assert await record(room, conversation) == said("a")
    assert await room.sessions.state(LOCAL, desk) == {"last": "a"}


async def test_a_checkpoint_with_a_name_knows_the_conversation(bench: Bench) -> None:
    room = await bench.room(remembers)
    conversation, desk, _ = await talk(room, "a")
    await room.sessions.checkpoint(LOCAL, desk, "good")
    await ask(room, "b", conversation=conversation)
    await room.conversations.append(LOCAL, conversation, [b'{"type":"message","role":"user","content":"noted"}'])
    await room.rollbacks.to(LOCAL, desk, "good")
    assert await record(room, conversation) == said("a")
    with pytest.raises(NotFound):
        await room.rollbacks.to(LOCAL, desk, "better")


async def test_nothing_goes_back_under_a_turn_that_is_active(bench: Bench) -> None:
    began, go_on = asyncio.Event(), asyncio.Event()

    async def slow(turn: Turn) -> AsyncIterator[AgentEvent]:
        yield Delta(f"re {turn.text}")
        if turn.text == "b":
            began.set()
            await go_on.wait()

    room = await bench.room(slow)
    conversation, desk, runs = await talk(room, "a")
    second = await take(room, "b", conversation=conversation)
    await asyncio.wait_for(began.wait(), 5)
    with pytest.raises(Busy):
        await room.rollbacks.to(LOCAL, desk, versions.turn_name(runs[0]))
    go_on.set()
    await room.turns.outcome(LOCAL, second.run.id, timeout_s=10)
    assert await record(room, conversation) == said("a", "b")


async def test_P25_desk_and_conversation_fork_together(bench: Bench) -> None:
    room = await bench.room(remembers)
    conversation, desk, runs = await talk(room, "a", "b")
    session, forked = await room.forks.both(LOCAL, desk, to=versions.turn_name(runs[0]))
    assert session.conversation == forked.id
    assert await room.sessions.state(LOCAL, session.id) == {"last": "a"}
    await ask(room, "x", conversation=forked.id)
    assert await room.sessions.state(LOCAL, session.id) == {"last": "x"}, "its turns work on the desk that was forked with it"
    assert await record(room, forked.id) == said("a", "x")
    assert (await record(room, conversation), await room.sessions.state(LOCAL, desk)) == (said("a", "b"), {"last": "b"})


async def test_a_fork_goes_back_to_what_it_shares_with_its_parent(bench: Bench) -> None:
    room = await bench.room(remembers)
    _, desk, runs = await talk(room, "a", "b")
    session, forked = await room.forks.both(LOCAL, desk)
    await room.rollbacks.to(LOCAL, session.id, versions.turn_name(runs[0]))
    assert await record(room, forked.id) == said("a")
    assert await room.sessions.state(LOCAL, session.id) == {"last": "a"}


async def test_a_desk_forks_alone(bench: Bench) -> None:
    room = await bench.room(remembers)
    _, desk, _ = await talk(room, "a", "b")
    fork = await room.forks.session(LOCAL, desk, to=1)
    assert (fork.conversation, await room.sessions.state(LOCAL, fork.id)) == (NIL, {"last": "a"})


class Slow:
    """Says something, changes the desk under its fence's nose, and waits to be told to go on."""

    def __init__(self) -> None:
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()
        self.agent = Acts(self.work)

    async def work(self, turn: Turn) -> AsyncIterator[AgentEvent]:
        turn.changes["last"] = turn.text
        yield Delta(f"re {turn.text}")
        if turn.text == "slow":
            self.begun.set()
            await self.go_on.wait()


async def test_rollback_undoes_the_active_turn_and_takes_its_place(bench: Bench) -> None:
    slow = Slow()
    room = await bench.room(slow.agent)
    conversation, desk, _ = await talk(room, "a")
    first = await take(room, "slow", conversation=conversation)
    await asyncio.wait_for(slow.begun.wait(), 5)
    waits = await take(room, "waits", conversation=conversation)
    await room.sessions.patch(LOCAL, desk, [*_patch("half", 1)])
    second = await take(room, "b", conversation=conversation, policy="rollback")
    undone = await room.runs.get(LOCAL, first.run.id)
    assert (undone.status, b"rolled_back" in undone.error) == ("cancelled", True)
    await room.turns.outcome(LOCAL, second.run.id, timeout_s=10)
    await room.turns.outcome(LOCAL, waits.run.id, timeout_s=10)
    assert await record(room, conversation) == said("a", "b", "waits")
    assert await room.sessions.state(LOCAL, desk) == {"last": "waits"}
    gone = await room.runs.get(LOCAL, first.run.id)
    assert [item.mark for item in await room.turns.inputs(LOCAL, gone)] == ["failed"]


async def test_rollback_of_an_idle_conversation_is_a_turn_like_any(bench: Bench) -> None:
    room = await bench.room(remembers)
    conversation, _, _ = await talk(room, "a")
    await ask(room, "b", conversation=conversation, policy="rollback")
    assert await record(room, conversation) == said("a", "b")


async def test_P23_a_turn_at_work_keeps_its_desk_alive(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    from stateroom import ids
    from stateroom.batch import Batch
    from stateroom.clock import FrozenClock
    from stateroom.run.model import Heartbeat

    bench.clock = clock = FrozenClock()
    slow = Slow()
    room = await bench.room(slow.agent)
    conversation = (await room.conversations.create(LOCAL)).id
    desk = await room.sessions.open_as(
        LOCAL,
        OpenSession(
            id=ids.new(ids.home(conversation), 1),
            owner="local",
            subject="local",
            conversation=conversation,
            agent="agent",
            ttl_ms=60_000,
        ),
    )
    turn = await take(room, "slow", conversation=conversation)
    await asyncio.wait_for(slow.begun.wait(), 5)
    for _ in range(5):
        clock.advance(20_000)
        beat = Heartbeat(run=turn.run.id, fence=turn.run.fence, lease=room.turns.workshop.lease())
        await room.backend.commit(Batch(id=ids.new(ids.home(turn.run.id), 1), scope=LOCAL, at=1, writes=(beat,)))
        await room.sessions.get(LOCAL, desk.id)
    clock.advance(61_000)
    with pytest.raises(Gone):
        await room.sessions.get(LOCAL, desk.id)


def _patch(name: str, value: object):  # type: ignore[no-untyped-def]
    from stateroom.session.service import patches_of

    return patches_of({name: value})


async def test_P25_going_back_writes_the_same_rows_whatever_the_length(bench: Bench) -> None:
    room = await bench.room(remembers)
    conversation, desk, runs = await talk(room, "a")
    for start in range(3):
        await room.conversations.append(
            LOCAL,
            conversation,
            [b'{"type":"message","role":"user","content":"%d"}' % n for n in range(start * 100, start * 100 + 100)],
        )
    await room.rollbacks.to(LOCAL, desk, versions.turn_name(runs[0]))
    assert len(await room.conversations.items(LOCAL, ItemQuery(branch=conversation, limit=1000))) == 2


async def test_P18_two_workers_go_back_and_append_at_once_and_nothing_is_half_done(bench: Bench) -> None:
    room, other = await bench.room(remembers), await bench.room(remembers)
    conversation, desk, runs = await talk(room, "a", "b")
    mark = versions.turn_name(runs[0])

    async def appends(number: int) -> None:
        note = b'{"type":"message","role":"user","content":"n%d"}' % number
        await other.conversations.append(LOCAL, conversation, [note])

    await asyncio.gather(*(appends(number) for number in range(5)), room.rollbacks.to(LOCAL, desk, mark), appends(5))
    assert (await room.sessions.state(LOCAL, desk))["last"] == "a"
    shown = await record(room, conversation)
    assert shown[:2] == said("a")
    assert "b" not in shown
    undone = [known for known in await room.sessions.checkpoints(LOCAL, desk) if known.kind == "undone"]
    assert len(undone) == 1
    left = await room.backend.items(LOCAL, ItemQuery(branch=undone[0].branch, limit=100))
    kept = [text_of(json.decode_trusted(item.body)) for item in left]
    assert kept[:4] == said("a", "b")
    assert sorted([*kept[4:], *shown[2:]]) == [f"n{number}" for number in range(6)], "each note is on one side, and on one only"
