"""Ephemeral sessions and what becomes of turns, hooks and bundles when they are lost (S19)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from stateroom import ids
from stateroom.backends.sqlite.backend import SqliteBackend
from stateroom.clock import FrozenClock
from stateroom.conversation.model import ItemQuery
from stateroom.errors import Gone
from stateroom.flows.agent import AgentEvent, Delta, Turn
from stateroom.principal import LOCAL, operator
from stateroom.session.model import OpenSession
from stateroom.session.service import Sessions, patches_of
from stateroom.stack import Stateroom
from stateroom.wire import json
from tests.flows.conftest import Acts, Bench, ask

pytestmark = pytest.mark.anyio
TTL = 60_000


async def counts(turn: Turn) -> AsyncIterator[AgentEvent]:
    turn.set("turns", turn.slots.get("turns", 0) + 1)
    yield Delta(f"turn {turn.slots['turns']}")


class Told:
    """A hook that keeps what it was told."""

    def __init__(self) -> None:
        self.ended = list[dict[str, Any]]()

    def __call__(self, given: dict[str, Any]) -> None:
        self.ended.append(given)


async def room_of(bench: Bench, on_expiry: Any = None) -> Stateroom:
    bench.clock = clock = bench.clock if isinstance(bench.clock, FrozenClock) else FrozenClock()
    assert isinstance(clock, FrozenClock)
    backend = await bench.place.backend()
    room = Stateroom(backend, {"agent": Acts(counts)}, owner=backend.owner, default_agent="agent", on_expiry=on_expiry)
    bench._rooms.append(room)
    return room


async def again(bench: Bench, on_expiry: Any = None) -> Stateroom:
    """What may be lost is lost, and somebody else opens the store."""
    for room in bench._rooms:
        await room.close(grace_s=0)
    bench._rooms.clear()
    bench.place.lose()
    return await room_of(bench, on_expiry)


async def desk_of(room: Stateroom, *, ttl_ms: int = 0) -> tuple[bytes, bytes]:
    """A conversation, and an ephemeral desk that its turns work on."""
    conversation = (await room.conversations.create(LOCAL)).id
    desk = ids.new(ids.home(conversation), 1)
    write = OpenSession(
        id=desk, owner="local", subject="local", conversation=conversation, agent="agent", durability="ephemeral", ttl_ms=ttl_ms
    )
    await room.sessions.open_as(LOCAL, write, slots={"size": 42})
    return conversation, desk


async def test_turns_work_on_an_ephemeral_desk_as_on_any(bench: Bench) -> None:
    room = await room_of(bench)
    conversation, desk = await desk_of(room)
    for _ in range(3):
        assert (await ask(room, "hello", conversation=conversation)).run.session == desk
    assert await room.sessions.state(LOCAL, desk) == {"size": 42, "turns": 3}
    marks = [mark for mark in await room.sessions.checkpoints(LOCAL, desk) if mark.kind == "turn"]
    assert [mark.version for mark in marks] == [4, 3, 2]
    await room.rollbacks.to(LOCAL, desk, marks[-1].name)
    assert await room.sessions.state(LOCAL, desk) == {"size": 42, "turns": 1}
    assert len(await room.conversations.items(LOCAL, ItemQuery(branch=conversation, limit=100))) == 2
    fork, forked = await room.forks.both(LOCAL, desk)
    assert fork.durability == "ephemeral"
    assert (await ask(room, "hello", conversation=forked.id)).run.session == fork.id
    assert await room.sessions.state(LOCAL, fork.id) == {"size": 42, "turns": 2}


async def test_S19_a_turn_is_refused_until_the_lost_desk_is_ended(bench: Bench) -> None:
    room = await room_of(bench)
    conversation, desk = await desk_of(room)
    await ask(room, "hello", conversation=conversation)
    room = await again(bench)
    with pytest.raises(Gone) as error:
        await ask(room, "hello again", conversation=conversation)
    assert error.value.reason == "state_lost"
    await room.sessions.end(LOCAL, desk)
    assert (await ask(room, "hello again", conversation=conversation)).run.session != desk
    items = await room.conversations.items(LOCAL, ItemQuery(branch=conversation, limit=9))
    assert [json.decode(item.body)["content"] for item in items][0::2] == ["hello", "hello again"]


async def test_S19_a_turn_that_waited_does_not_begin_as_if_there_had_been_nothing(bench: Bench) -> None:
    room = await room_of(bench)
    conversation, _ = await desk_of(room)
    gate, asked = asyncio.Event(), list[Turn]()

    async def slow(turn: Turn) -> AsyncIterator[AgentEvent]:
        asked.append(turn)
        await gate.wait()
        turn.set("turns", 1)
        yield Delta("done")

    room.agents["agent"]._work = slow  # type: ignore[attr-defined]
    first = asyncio.create_task(ask(room, "one", conversation=conversation))
    while not asked:
        await asyncio.sleep(0.01)
    second = asyncio.create_task(ask(room, "two", conversation=conversation))
    await asyncio.sleep(0.1)
    room.hydrator._desks.clear()
    lost = Gone("What lay on this ephemeral session was lost.", code="state_lost")
    slots, commit = room.backend.slots, room.backend.commit

    async def loses(*given: Any, **named: Any) -> Any:
        raise lost

    async def takes_no_patch(batch: Any) -> Any:
        if any(type(write).__name__ == "PatchSlots" for write in batch.writes):
            raise lost
        return await commit(batch)

    room.backend.slots, room.backend.commit = loses, takes_no_patch  # type: ignore[method-assign]
    gate.set()
    done, refused = await first, await second
    assert json.decode(done.run.error)["code"] == "state_lost", "its answer is kept, what it set is not, and it is told"
    assert (done.run.status, refused.run.status) == ("completed", "failed")
    assert json.decode(refused.run.error)["code"] == "state_lost"
    assert len(asked) == 1, "its agent was not asked"
    room.backend.slots, room.backend.commit = slots, commit  # type: ignore[method-assign]


@pytest.mark.parametrize("archived", [False, True])
async def test_S19_P23_what_was_lost_is_purged_and_no_hook_is_told_of_emptiness(
    bench: Bench, tmp_path: Path, *, archived: bool
) -> None:
    room, told, cold = await room_of(bench), Told(), tmp_path / "cold"
    _, desk = await desk_of(room, ttl_ms=TTL)
    _, other = await desk_of(room, ttl_ms=TTL)
    clock = bench.clock
    assert isinstance(clock, FrozenClock)
    clock.advance(TTL // 2)
    await room.sessions.patch(LOCAL, desk, patches_of({"size": 43}))
    room = await again(bench, f"archive:{cold}" if archived else told)
    clock.advance(TTL)
    await room.expiry.sweep()
    with pytest.raises(Gone) as error:
        await room.sessions.state(LOCAL, desk)
    assert error.value.reason == "state_lost", "for another time to live"
    clock.advance(TTL + 1)
    await room.expiry.sweep()
    heads = [await room.backend.head(operator(LOCAL.tenant, "system"), id_) for id_ in (desk, other)]
    assert [head.status for head in heads] == ["expired", "expired"]
    assert told.ended == []
    assert not cold.exists() or list(cold.iterdir()) == []


async def test_a_bundle_of_an_ephemeral_desk_opens_as_one(bench: Bench) -> None:
    room = await room_of(bench)
    _, desk = await desk_of(room)
    await room.sessions.patch(LOCAL, desk, patches_of({"size": 43}))
    lines = [line async for line in room.bundles.export(LOCAL, desk)]

    async def source() -> AsyncIterator[bytes]:
        for line in lines:
            yield line

    made = await room.bundles.import_(LOCAL, source)
    assert (made.durability, made.version) == ("ephemeral", 2)
    assert await room.sessions.state(LOCAL, made.id) == {"size": 43}
    assert [slot.body for slot in await room.sessions.slots_at(LOCAL, made.id, 1)] == [b"42"]


async def test_what_another_process_changes_on_an_ephemeral_desk_is_noticed(tmp_path: Path) -> None:
    """Although the store's own file does not change with it."""
    store, other = await SqliteBackend.open(tmp_path), await SqliteBackend.open(tmp_path)
    sessions = Sessions(store)
    desk = await sessions.open_as(
        LOCAL, OpenSession(id=sessions.new_id(), owner="local", subject="local", durability="ephemeral")
    )
    for n in range(3):
        before = other._data_version()
        assert before == other._data_version()
        await sessions.patch(LOCAL, desk.id, patches_of({"n": n}))
        assert other._data_version() != before
    await store.close()
    await other.close()
