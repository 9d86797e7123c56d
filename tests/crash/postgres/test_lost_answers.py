"""The network is cut after every single message of a batch, either way: its caller gets the receipts or a typed error, it
landed once or not at all, and the same key is answered the same."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NamedTuple

import psycopg
import pytest

from stateroom import ids
from stateroom.backends.postgres.backend import PostgresBackend
from stateroom.backends.postgres.lane import Lane
from stateroom.batch import Batch, ClaimKey, Receipt, Write
from stateroom.conformance.kit import HOME, WORKER, Actor, put, row, turn_key
from stateroom.conformance.steps import step
from stateroom.conversation.model import Append, CreateConversation
from stateroom.errors import Known, StateroomError, Unavailable
from stateroom.run.model import Accepted, Finish, Finished, Log
from stateroom.run.steps import RecordSteps
from stateroom.session.model import PatchSlots
from tests.crash import scale
from tests.crash.builds import break_it
from tests.services.postgres import Server
from tests.services.store import as_role
from tests.services.wire import Cut, Way, Wire

pytestmark = [pytest.mark.anyio, pytest.mark.crash]

WAYS: tuple[Way, ...] = ("questions", "late questions", "answers")
STRIDE = 1 if scale.WHOLE else 3


class Bench(NamedTuple):
    wire: Wire
    alice: Actor  # through the wire
    sound: Actor  # not
    admin: str

    def leaves(self, batch: Batch) -> int:
        with psycopg.connect(self.admin, options="-c search_path=stateroom") as db:
            found = db.execute("select count(*) from leaf where batch = %s", (batch.id,)).fetchone()
            assert found is not None
            return int(found[0])


@pytest.fixture
async def bench(postgres_store: str, postgres_server: Server) -> AsyncIterator[Bench]:
    app = as_role(postgres_store)
    async with Wire.before(postgres_server.port) as wire:
        tcp = as_role(postgres_server.url(postgres_store.rpartition("/")[2].partition("?")[0], tcp=True))
        through = await PostgresBackend.open(wire.url(f"{tcp}?lanes=1&patience_s=5"))
        sound = await PostgresBackend.open(app)
        yield Bench(wire, Actor(through), Actor(sound), postgres_store)
        await through.close()
        await sound.close()


# ── what is done, each time anew: the writes, and what shows that they took effect once ─────────────────────────────

Prepared = tuple[tuple[Write, ...], Callable[[tuple[Receipt, ...]], Awaitable[None]]]


async def accepts(bench: Bench, number: int) -> Prepared:
    conversation = await bench.sound.opens_conversation("hello")
    key = turn_key(f"k{number}")
    turn = bench.sound.turn("a turn", conversation=conversation, key=key)

    async def check(receipts: tuple[Receipt, ...]) -> None:
        (accepted,) = receipts
        assert isinstance(accepted, Accepted)
        assert (accepted.run.status, accepted.run.id) == ("in_progress", turn.run)
        assert await bench.sound.reads(conversation) == ["hello", "a turn"]
        with pytest.raises(Known) as known:
            await bench.alice.does(bench.sound.turn("a turn", conversation=conversation, key=key))
        assert known.value.ref == turn.run

    return (turn,), check


async def finishes(bench: Bench, number: int) -> Prepared:
    """With slots, and another turn behind it."""
    conversation = await bench.sound.opens_conversation()
    run = (await bench.sound.asks(conversation, "one", session=bench.sound.new_id())).run
    queued = (await bench.sound.asks(conversation, "two")).run
    patch = PatchSlots(session=run.session, patches=(put("x", number, 0),), by="alice", run=run.id, fence=run.fence)
    end = Finish(
        run=run.id, fence=run.fence, status="completed", outputs=bench.sound.talk(["an answer"], "assistant"),
        rows=(row("end"),), next=WORKER,
    )  # fmt: skip

    async def check(receipts: tuple[Receipt, ...]) -> None:
        finished = receipts[-1]
        assert isinstance(finished, Finished)
        assert finished.run.status == "completed"
        assert finished.next is not None
        assert finished.next.run.id == queued.id
        assert (await bench.sound.run(queued)).fence == finished.next.run.fence
        assert await bench.sound.reads(conversation) == ["one", "an answer", "two"]
        assert await bench.sound.desk(run.session) == {"x": number}

    return (patch, end), check


async def records(bench: Bench, number: int) -> Prepared:
    conversation = await bench.sound.opens_conversation()
    run = (await bench.sound.asks(conversation, "one")).run
    write = RecordSteps(run=run.id, fence=run.fence, steps=(step("a", "done"), step("b")))

    async def check(receipts: tuple[Receipt, ...]) -> None:
        assert [(found.key, found.status) for found in await bench.sound.steps(run)] == [("a", "done"), ("b", "intended")]

    return (write,), check


async def appends(bench: Bench, number: int) -> Prepared:
    conversation = await bench.sound.opens_conversation("one")

    async def check(receipts: tuple[Receipt, ...]) -> None:
        assert await bench.sound.reads(conversation) == ["one", "two", "three"]

    return (Append(branch=conversation, items=bench.sound.talk(["two", "three"])),), check


async def creates(bench: Bench, number: int) -> Prepared:
    """Under a key, and nothing that a lock could guard."""
    new = CreateConversation(id=bench.sound.new_id(), owner="alice", subject="someone", kind="managed")
    home = ids.key_home("acme", "alice", f"c{number}")
    claim = ClaimKey(operation="conversation", key=f"c{number}", fingerprint=b"", ref=new.id, home=home)

    async def check(receipts: tuple[Receipt, ...]) -> None:
        assert await bench.sound.reads(new.id) == []
        with pytest.raises(Known):
            await bench.alice.does(claim)

    return (claim, new), check


BATCHES = (accepts, finishes, records, appends, creates)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("prepare", BATCHES)
async def test_P1_P2_P8_P14_P15_cut_after_every_message_of_a_batch(
    bench: Bench, prepare: Callable[[Bench, int], Awaitable[Prepared]], way: Way, figure: Callable[[str], None]
) -> None:
    tried, landed = 0, 0
    for after in itertools.count(0, STRIDE):
        writes, check = await prepare(bench, after)
        batch = Batch(id=ids.new(HOME, 1), scope=bench.alice.scope, at=bench.sound.store.clock.wall_ms(), writes=writes)
        bench.wire.arm(Cut(way, after))
        try:
            receipts = await bench.alice.store.commit(batch)
        except StateroomError as error:
            raise AssertionError(f"{prepare.__name__}, {way} cut after {after}: {error!r}") from error
        fired = bench.wire.disarm()
        landed += bench.leaves(batch)
        assert bench.leaves(batch) == 1, after
        await check(receipts)
        tried += fired
        if not fired:
            break
    figure(f"PostgreSQL: {prepare.__name__} cut after each of {tried} messages ({way}): each landed once")
    assert tried
    assert landed == tried + 1


@pytest.mark.parametrize("prepare", BATCHES)
async def test_P1_P15_a_batch_that_comes_again_after_an_outage_learns_what_became_of_it(
    bench: Bench, prepare: Callable[[Bench, int], Awaitable[Prepared]], figure: Callable[[str], None]
) -> None:
    """Its connection was cut, and then the database stayed away for longer than anybody waits."""
    landed = tried = 0
    shared = bench.alice.store._shared  # type: ignore[attr-defined]
    for after in itertools.count(0, STRIDE):
        writes, check = await prepare(bench, after)
        batch = Batch(id=ids.new(HOME, 1), scope=bench.alice.scope, at=bench.sound.store.clock.wall_ms(), writes=writes)
        bench.wire.arm(Cut("answers", after), *[Cut("answers", 0)] * 100)
        shared.patience_s, receipts = 0.1, ()
        try:
            receipts = await bench.alice.store.commit(batch)
        except Unavailable:
            landed += bench.leaves(batch)
        fired, shared.patience_s = bench.wire.disarm(), 5.0
        if not receipts:  # else the cut met a notification that came after the answer
            receipts = await bench.alice.store.commit(batch)
        assert bench.leaves(batch) == 1, after
        await check(receipts)
        if not fired:
            break
        tried += 1
    figure(f"PostgreSQL: {prepare.__name__} cut at {tried} places and handed in again after an outage: {landed} had landed")
    assert landed
    assert landed < tried


async def test_P14_a_build_that_sends_again_what_was_not_acknowledged_is_found_out(
    bench: Bench, figure: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: it does not look whether it landed."""
    monkeypatch.setattr(Lane, "_look", Lane._look)  # as it was, afterwards
    break_it("blind retry")
    doubled, conversation = False, await bench.sound.opens_conversation()
    run = (await bench.sound.asks(conversation, "one")).run
    for after in range(60):
        head = (await bench.sound.run(run)).head
        bench.wire.arm(Cut("answers", after))
        await bench.alice.does(Log(run=run.id, fence=run.fence, rows=(row(),)))
        bench.wire.disarm()
        doubled = (await bench.sound.run(run)).head - head > 1
        if doubled:
            break
    figure(f"PostgreSQL: a build that sends again what was not acknowledged doubled an event (cut after {after}), as it must")
    assert doubled
