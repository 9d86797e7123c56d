"""The primary dies and its standby takes its place: with a synchronous one nothing acknowledged is lost; with one that had not
heard of the last writes, nothing that those gave out is honoured: no fence, no cursor, no cached past."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from stateroom import limits
from stateroom.backends.postgres.backend import PostgresBackend
from stateroom.conformance.kit import OTHER_WORKER, WORKER, Actor, turn_key
from stateroom.errors import Gone, NotFound, StaleFence
from stateroom.flows.agent import AgentEvent, Delta, Turn
from stateroom.flows.turn import TurnRequest
from stateroom.hosting.callable import CallableAgent
from stateroom.principal import LOCAL
from stateroom.run.model import Finish, Heartbeat, Log, Run
from stateroom.run.steps import RecordSteps
from stateroom.stack import Stateroom
from stateroom.wire import json
from tests.crash import scale
from tests.crash.actor import text_of
from tests.crash.history import history
from tests.crash.postgres.fleet import fleet
from tests.crash.postgres.talk import Line, Talker
from tests.crash.where import on_postgres
from tests.services.postgres import Server
from tests.services.processes import wait_until
from tests.services.store import as_role, migrated

pytestmark = [pytest.mark.anyio, pytest.mark.crash]

LEASE_MS = 2_000
NAME = "pair"


class Pair(NamedTuple):
    """Two servers, one of which follows the other until it takes its place."""

    primary: Server
    standby: Server

    @property
    def url(self) -> str:
        """As workers know it: both, and whichever takes writes."""
        hosts = ",".join(f"127.0.0.1:{server.port}" for server in self)
        return f"postgresql://postgres@{hosts}/{NAME}?target_session_attrs=read-write&connect_timeout=2"

    def promote(self) -> None:
        self.primary.kill()
        self.standby.promote()

    def fall_behind(self) -> None:
        """All that was written so far has come through; nothing that is written from now on will."""
        (at,) = self.primary.execute("select pg_current_wal_lsn()")[0]
        assert wait_until(lambda: bool(self.standby.execute(f"select pg_last_wal_replay_lsn() >= '{at}'")[0][0]), within_s=20)
        self.standby.configure({"primary_conninfo": ""})
        running = "select count(*) from pg_stat_replication"
        assert wait_until(lambda: self.primary.execute(running) == [(0,)], within_s=20)


def pair_of(*, synchronous: bool) -> Iterator[Pair]:
    with Server.start(fsync=synchronous) as primary:
        migrated(primary.create_database(NAME))
        with Server.standby(None, primary, synchronous=synchronous) as standby:
            yield Pair(primary, standby)


@pytest.fixture
def synchronous() -> Iterator[Pair]:
    yield from pair_of(synchronous=True)


@pytest.fixture
def lagging() -> Iterator[Pair]:
    yield from pair_of(synchronous=False)


async def test_P1_P2_P4_P8_P9_P14_P15_a_synchronous_standby_takes_over_and_nothing_acknowledged_is_lost(
    synchronous: Pair, tmp_path: Path, figure: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LEASE_MS", LEASE_MS)
    monkeypatch.setattr(limits, "HEARTBEAT_MS", LEASE_MS // 3)
    folder = on_postgres(tmp_path / "store", synchronous.standby.url(NAME), workers=synchronous.url)
    dice, enough = Random(scale.SEED), asyncio.Event()
    async with fleet(folder, 2, lease_ms=LEASE_MS) as workers, Line(workers.ports, dice=dice, most=64) as line:
        talkers = [Talker(line, folder, f"c{number}", dice=Random(dice.random())) for number in range(16)]
        async with asyncio.TaskGroup() as group:
            for talker in talkers:
                group.create_task(talker.talk(enough))
            await asyncio.sleep(3)
            before = sum(talker.told for talker in talkers)
            await asyncio.to_thread(synchronous.promote)
            began = asyncio.get_running_loop().time()
            while sum(talker.told for talker in talkers) == before:
                await asyncio.sleep(0.01)
            pause_s = asyncio.get_running_loop().time() - began
            await asyncio.sleep(3)
            enough.set()
        assert set(await workers.end()) == {0}, workers.last_words()
    found = await history(folder)
    figure(
        f"PostgreSQL, synchronous standby promoted under {len(talkers)} clients: {before} answers before; first answer after"
        f" {pause_s:.2f} s; {line.gone} cursors of before told so; {found.text}"
    )
    assert [fault for talker in talkers for fault in talker.faults] == []
    assert found.faults == []
    assert before > 0
    assert pause_s < 5
    assert synchronous.standby.execute("select value from stateroom.meta where name = 'epoch'", database=NAME) == [("2",)]
    assert line.gone, "some were reading"


# ── one that had not heard of the last writes ───────────────────────────────────────────────────────────────────────


@pytest.fixture
async def alice(lagging: Pair) -> AsyncIterator[Actor]:
    """Somebody at a worker's handle, who does not notice by herself."""
    backend = await PostgresBackend.open(as_role(lagging.url))
    yield Actor(backend)
    await backend.close()


def late_words(run: Run) -> tuple[tuple[object, ...], ...]:
    """Everything that a worker may say of a run it believes to hold."""
    return (
        (Finish(run=run.id, fence=run.fence, status="completed"),),
        (Heartbeat(run=run.id, fence=run.fence, lease=WORKER),),
        (Log(run=run.id, fence=run.fence, rows=()),),
        (RecordSteps(run=run.id, fence=run.fence, steps=()),),
    )


async def test_P8_P14_no_fence_that_a_lost_past_gave_out_is_honoured(lagging: Pair, alice: Actor) -> None:
    conversations = [await alice.opens_conversation("hello") for _ in range(4)]
    held = (await alice.asks(conversations[0], "held before")).run
    waiting = (await alice.asks(conversations[1], "claimed in the lost past", claim=None)).run
    lost_worker = (await alice.asks(conversations[2], "taken over in the lost past")).run
    await asyncio.to_thread(lagging.fall_behind)
    claimed = (await alice.claims(waiting)).run
    requeued = (await alice.claims(await alice.requeues(lost_worker), OTHER_WORKER)).run
    key = turn_key("lost")
    lost = (await alice.asks(conversations[3], "accepted in the lost past", key=key)).run
    await asyncio.to_thread(lagging.promote)
    for run in (held, claimed, lost_worker, requeued):
        for writes in late_words(run):
            with pytest.raises(StaleFence):
                await alice.does(*writes)  # type: ignore[arg-type]
    for writes in late_words(lost):
        with pytest.raises(NotFound):
            await alice.does(*writes)  # type: ignore[arg-type]
    now = (await alice.claims(await alice.run(waiting))).run
    assert now.fence > claimed.fence, "or the one of before would be as good as this"
    for writes in late_words(claimed):
        with pytest.raises(StaleFence):
            await alice.does(*writes)  # type: ignore[arg-type]
    again = (await alice.asks(conversations[3], "accepted in the lost past", key=key)).run
    assert (again.status, again.fence > lost.fence) == ("in_progress", True), "the key is as new as the turn"
    await alice.answers(again, "an answer")
    assert await alice.reads(conversations[3]) == ["hello", "accepted in the lost past", "an answer"]


async def echo(turn: Turn) -> AsyncIterator[AgentEvent]:
    """What he sees of the conversation."""
    said = [str(item["content"]) for item in turn.window if item.get("role") == "user"]
    yield Delta("] " + " ".join(said))


async def test_P3_P6_no_cursor_and_no_cached_past_outlives_it(lagging: Pair) -> None:
    backend = await PostgresBackend.open(as_role(lagging.url))
    room = Stateroom(backend, {"echo": CallableAgent("echo", echo)}, owner=backend.owner, default_agent="echo")
    await room.start()
    try:
        conversation = (await room.conversations.create(LOCAL)).id

        async def says(text: str) -> tuple[Run, str]:
            body = json.encode({"type": "message", "role": "user", "content": text})
            request = TurnRequest(agent="echo", input=(body,), conversation=conversation, options=b'{"stream":true}')
            ticket = await room.turns.take(LOCAL, request)
            answer = await room.turns.outcome(LOCAL, ticket.run.id)
            return answer.run, text_of(answer)

        kept, _ = await says("kept")
        cursor = str(room.followers.at(kept, 2))
        await asyncio.to_thread(lagging.fall_behind)
        assert (await says("lost"))[1] == "kept lost"
        await asyncio.to_thread(lagging.promote)
        assert (await says("said"))[1] == "kept said"
        assert (await says("anew"))[1] == "kept said anew"
        with pytest.raises(Gone):
            room.followers.cursor(await backend.run(LOCAL, kept.id), cursor)
    finally:
        await room.close()
