"""B1 to B5, C7, R8: batches, leaves, copy classes, and what a stranger can tell."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stateroom.backends.base import Backend
from stateroom.batch import Record, Write
from stateroom.conformance.kit import ACME, HOME, WORKER, Actor, facts, put, refusal, row
from stateroom.conformance.steps import step
from stateroom.conformance.suite import Suite
from stateroom.conversation.model import (
    Append,
    CreateConversation,
    DeleteConversation,
    DeleteItem,
    Fork,
    ItemQuery,
    SetMetadata,
)
from stateroom.copies import ALL
from stateroom.errors import AlreadyExists, Closed, LimitExceeded, NotFound, StateroomError
from stateroom.ids import NIL
from stateroom.limits import BATCH_WRITES_MAX
from stateroom.principal import Scope, operator, own
from stateroom.run.model import Cancel, Claim, DeleteRun, Finish, Heartbeat, Log, Requeue, RunQuery
from stateroom.run.steps import ActionQuery, Compact, Drain, Pause, RecordSteps, Resolve
from stateroom.session.model import (
    CompactPast,
    DropCheckpoint,
    EndSession,
    Expire,
    ForkSession,
    HoldDesk,
    MakeCheckpoint,
    OpenSession,
    PatchSlots,
    PurgeSession,
    RollBack,
    SetAccess,
    TouchSession,
)


class Ids(Record, frozen=True):
    """One of everything."""

    conversation: bytes
    fork: bytes
    item: bytes
    session: bytes
    run: bytes
    paused: bytes
    action: bytes

    def swap(self, name: str, other: bytes) -> Ids:
        return msgspec.structs.replace(self, **{name: other})


# (the id it is about, the read or write)
READS: list[tuple[str, Callable[[Backend, Scope, Ids], Awaitable[Any]]]] = [
    ("conversation", lambda store, scope, of: store.conversation(scope, of.conversation)),
    ("conversation", lambda store, scope, of: store.branch(scope, of.conversation)),
    ("fork", lambda store, scope, of: store.branch(scope, of.fork)),
    ("fork", lambda store, scope, of: store.items(scope, ItemQuery(branch=of.fork, limit=1))),
    ("conversation", lambda store, scope, of: store.item(scope, of.conversation, of.item)),
    ("conversation", lambda store, scope, of: store.conversations(scope, after=of.conversation, limit=1)),
    ("session", lambda store, scope, of: store.session(scope, of.session)),
    ("session", lambda store, scope, of: store.sessions(scope, after=of.session, limit=1)),
    ("session", lambda store, scope, of: store.slots(scope, of.session)),
    ("session", lambda store, scope, of: store.past(scope, of.session, "size", 1)),
    ("session", lambda store, scope, of: store.slots_at(scope, of.session, 1)),
    ("session", lambda store, scope, of: store.told(scope, of.session, after=0, limit=9)),
    ("session", lambda store, scope, of: store.checkpoints(scope, of.session, 1)),
    ("run", lambda store, scope, of: store.run(scope, of.run)),
    ("run", lambda store, scope, of: store.inbox(scope, of.run)),
    ("run", lambda store, scope, of: store.log(scope, of.run, after=0, limit=1)),
    ("run", lambda store, scope, of: store.steps(scope, of.run)),
    ("paused", lambda store, scope, of: store.actions(scope, ActionQuery(run=of.paused, pending=False))),
    ("paused", lambda store, scope, of: store.run(scope, of.paused)),
    ("run", lambda store, scope, of: store.runs(scope, RunQuery(after=of.run))),
]
WRITES: list[tuple[str, Callable[[Actor, Ids], Write]]] = [
    ("conversation", lambda me, of: SetMetadata(conversation=of.conversation, metadata=b"{}")),
    ("conversation", lambda me, of: Append(branch=of.conversation, items=me.talk(["x"]))),
    ("fork", lambda me, of: Append(branch=of.fork, items=me.talk(["x"]), expected_tail=77)),
    ("fork", lambda me, of: Fork(id=me.new_id(), parent=of.fork, up_to=99)),
    ("conversation", lambda me, of: DeleteItem(branch=of.conversation, item=of.item)),
    ("conversation", lambda me, of: DeleteConversation(conversation=of.conversation)),
    ("conversation", lambda me, of: OpenSession(id=me.new_id(), owner="x", subject="x", conversation=of.conversation, agent="z")),
    ("session", lambda me, of: PatchSlots(session=of.session, patches=(put("size", 1, expected=9),), by="x")),
    ("session", lambda me, of: ForkSession(id=me.new_id(), parent=of.session, owner="x", version=99)),
    ("session", lambda me, of: MakeCheckpoint(session=of.session, name="", by="x")),
    ("session", lambda me, of: DropCheckpoint(session=of.session, name="none")),
    ("session", lambda me, of: RollBack(session=of.session, by="x")),
    ("session", lambda me, of: CompactPast(session=of.session, before=1)),
    ("session", lambda me, of: TouchSession(session=of.session)),
    ("session", lambda me, of: SetAccess(session=of.session, agent="a", read=("a",))),
    ("session", lambda me, of: HoldDesk(session=of.session, holder="a", ms=1)),
    ("session", lambda me, of: Expire(session=of.session)),
    ("session", lambda me, of: PurgeSession(session=of.session)),
    ("session", lambda me, of: EndSession(session=of.session)),
    ("conversation", lambda me, of: me.turn("x", conversation=of.conversation, policy="reject")),
    ("fork", lambda me, of: me.turn("x", branch=of.fork, policy="reject")),
    ("conversation", lambda me, of: me.turn("x", conversation=of.conversation, stored=False)),
    ("run", lambda me, of: me.turn("x", previous=of.run, fork=me.new_id())),
    ("run", lambda me, of: Claim(run=of.run, lease=WORKER)),
    ("run", lambda me, of: Heartbeat(run=of.run, fence=99, lease=WORKER)),
    ("run", lambda me, of: Log(run=of.run, fence=99, rows=(row(),))),
    ("run", lambda me, of: Finish(run=of.run, fence=None, status="failed")),
    ("run", lambda me, of: Cancel(run=of.run)),
    ("run", lambda me, of: Requeue(run=of.run, fence=99)),
    ("run", lambda me, of: RecordSteps(run=of.run, fence=99, steps=(step("x"),))),
    ("run", lambda me, of: Pause(run=of.run, fence=99, actions=())),
    ("run", lambda me, of: Drain(run=of.run, fence=99)),
    ("run", lambda me, of: Compact(run=of.run, rows=())),
    ("paused", lambda me, of: Resolve(run=of.paused, action=of.action)),
    ("action", lambda me, of: Resolve(run=of.paused, action=of.action)),
    ("run", lambda me, of: DeleteRun(run=of.run)),
]
STRANGERS = {
    "another tenant's operator": operator("other"),
    "another tenant's alice": own("other", "alice"),
    "another owner": own("acme", "bob"),
    "nobody": Scope("acme", "nobody"),
}


async def one_of_everything(alice: Actor) -> Ids:
    """All that alice has, with a turn at work."""
    conversation = await alice.opens_conversation("one", "two")
    fork = await alice.forks(conversation, 1)
    (item, *_) = await alice.items(conversation)
    run = (await alice.asks(conversation, "hello", session=alice.new_id(), claimed_rows=(row(),))).run
    await alice.sets(run.session, size=43)
    await alice.records(run, step("look"))
    waiting = (await alice.asks(await alice.opens_conversation(), "pay")).run
    action = alice.question(waiting, kind="handoff", queue="support")
    await alice.pauses(waiting, action)
    return Ids(
        conversation=conversation, fork=fork, item=item.id, session=run.session, run=run.id, paused=waiting.id, action=action.id
    )


async def everything(alice: Actor, of: Ids) -> list[Any]:
    """What alice can read of it."""
    rows = [await read(alice.store, alice.scope, of) for _, read in READS]
    return [*rows, await alice.reads(of.conversation), await alice.desk(of.session)]


class Twin(Actor):
    """Somebody who has the same ids as the twin in another tenant."""

    def __init__(self, store: Backend, scope: Scope) -> None:
        super().__init__(store, scope)
        self._made = itertools.count(1)

    def new_id(self) -> bytes:
        return HOME.to_bytes(2, "big") + next(self._made).to_bytes(14, "big")


def fenced(write: Write, fence: int) -> Write:
    """The write under another fence, if it has one."""
    return msgspec.structs.replace(write, fence=fence) if getattr(write, "fence", None) else write


async def looked_after(actor: Actor) -> list[Any]:
    """What maintenance would look at for this tenant."""
    lines = [line for kind in ("lease", "action", "deadline") for line in await actor.store.due(kind, 1 << 50, 1000)]
    return [line for line in lines if line.tenant == actor.scope.tenant]


class StorePromises(Suite):
    # ── batches ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_B1_a_batch_lands_whole_or_not_at_all(self, alice: Actor) -> None:
        of = await one_of_everything(alice)
        before = await everything(alice, of)
        new = CreateConversation(id=alice.new_id(), owner="alice", subject="someone")
        action = alice.question(await alice.store.run(alice.scope, of.run))
        good: list[Write] = [
            new,
            Append(branch=of.conversation, items=alice.talk(["more"])),
            Fork(id=alice.new_id(), parent=of.conversation, up_to=2),
            DeleteItem(branch=of.conversation, item=of.item),
            PatchSlots(session=of.session, patches=(put("size", 44), put("colour", "red")), by="alice"),
            OpenSession(id=alice.new_id(), owner="alice", subject="someone", conversation=of.conversation, agent="z"),
            alice.turn("joins", conversation=of.conversation, policy="merge", deadline_at=1),
            alice.turn("queued", conversation=of.conversation),
            Log(run=of.run, fence=1, rows=(row(),)),
            RecordSteps(run=of.run, fence=1, steps=(step("look", "done"), step("act")), rows=(row(),)),
            Drain(run=of.run, fence=1, rows=(row(),)),
            Pause(run=of.run, fence=1, actions=(action,)),
            Resolve(run=of.run, action=action.id),
            Claim(run=of.run, lease=WORKER),
            Finish(run=of.run, fence=2, status="completed", outputs=alice.talk(["answer"]), next=WORKER, compact_ms=1),
            Compact(run=of.run, rows=(row(),)),
            DeleteRun(run=of.run),
            Resolve(run=of.paused, action=of.action),
        ]
        bad = Append(branch=of.conversation, items=alice.talk(["bad"]), expected_tail=77)
        for count in range(1, len(good) + 1):
            batch = alice.batch(*good[:count], bad)
            error = await refusal(alice.store.commit(batch))
            assert error.reason == "tail_conflict", error
            assert await everything(alice, of) == before
            assert not await alice.store.landed(batch)
            assert isinstance(await refusal(alice.store.conversation(alice.scope, new.id)), NotFound)
        assert len(await alice.does(*good)) == len(good)

    async def test_P31_a_batch_has_a_bound(self, alice: Actor) -> None:
        conversation = await alice.opens_conversation()
        appends = [Append(branch=conversation, items=alice.talk([f"{n}"])) for n in range(BATCH_WRITES_MAX + 1)]
        error = await refusal(alice.does(*appends))
        assert facts(error) == (LimitExceeded, "batch_too_large", {})
        assert await alice.reads(conversation) == []
        assert len(await alice.does(*appends[1:])) == BATCH_WRITES_MAX

    async def test_B1_receipts_come_in_the_order_of_the_writes(self, alice: Actor) -> None:
        conversation = await alice.opens_conversation()
        appends = [Append(branch=conversation, items=alice.talk([text])) for text in "abc"]
        receipts = await alice.does(*appends)
        assert [receipt.tail for receipt in receipts] == [1, 2, 3]  # type: ignore[attr-defined]

    async def test_B1_a_write_finds_what_those_before_it_in_its_batch_have_written(self, alice: Actor) -> None:
        conversation, session = alice.new_id(), alice.new_id()
        await alice.does(
            CreateConversation(id=conversation, owner="alice", subject="someone"),
            *(Append(branch=conversation, items=alice.talk([text])) for text in "abc"),
            OpenSession(id=session, owner="alice", subject="someone", conversation=conversation, agent="clerk"),
            *(PatchSlots(session=session, patches=(put("n", n, expected=n),), by="alice") for n in range(3)),
        )
        assert await alice.reads(conversation) == ["a", "b", "c"]
        assert (await alice.desk(session), (await alice.store.session(alice.scope, session)).version) == ({"n": 2}, 3)

    async def test_B1_an_id_is_given_once(self, alice: Actor) -> None:
        of = await one_of_everything(alice)
        before = await everything(alice, of)
        first = (await alice.items(of.conversation))[0]
        taken: list[Write] = [
            CreateConversation(id=of.conversation, owner="alice", subject="x"),
            CreateConversation(id=of.fork, owner="alice", subject="x"),
            OpenSession(id=of.session, owner="alice", subject="x"),
            Fork(id=of.fork, parent=of.conversation, up_to=1),
            Fork(id=of.conversation, parent=of.fork, up_to=1, conversation=of.conversation),
            alice.turn("x", run=of.run, conversation=of.conversation),
            Append(branch=of.fork, items=(msgspec.structs.replace(alice.says("x"), id=first.id),)),
        ]
        for write in taken:
            assert isinstance(await refusal(alice.does(write)), AlreadyExists), write
        assert await everything(alice, of) == before

    async def test_B1_a_deleted_conversations_id_is_not_given_again(self, alice: Actor) -> None:
        conversation = await alice.opens_conversation()
        await alice.does(DeleteConversation(conversation=conversation))
        again = CreateConversation(id=conversation, owner="alice", subject="x")
        assert isinstance(await refusal(alice.does(again)), AlreadyExists)

    async def test_B2_what_one_handle_was_told_the_other_reads(self, alice: Actor, beside: Actor) -> None:
        of = await one_of_everything(alice)
        assert await everything(beside, of) == await everything(alice, of)

    async def test_what_is_noted_of_a_store_every_handle_sees(self, alice: Actor, beside: Actor) -> None:
        assert await beside.store.noted("on_expiry") == ""
        for said in ("archive", "webhook", ""):
            await alice.store.note("on_expiry", said)
            assert await beside.store.noted("on_expiry") == said

    async def test_B3_P29_a_landed_batch_has_its_leaf_and_a_refused_one_has_none(self, alice: Actor, beside: Actor) -> None:
        conversation = await alice.opens_conversation()
        good = alice.batch(Append(branch=conversation, items=alice.talk(["x"])))
        bad = alice.batch(Append(branch=conversation, items=alice.talk(["y"]), expected_tail=9))
        assert not await alice.store.landed(good)
        await alice.store.commit(good)
        await refusal(alice.store.commit(bad))
        assert [await beside.store.landed(batch) for batch in (good, bad)] == [True, False]
        foreign = msgspec.structs.replace(good, scope=operator("other"))
        assert not await alice.store.landed(foreign)

    async def test_B3_a_batch_lands_once(self, alice: Actor, beside: Actor) -> None:
        conversation = await alice.opens_conversation()
        batch = alice.batch(Append(branch=conversation, items=()))
        await alice.store.commit(batch)
        assert isinstance(await refusal(beside.store.commit(batch)), AlreadyExists)

    async def test_B5_every_table_is_claimed_by_a_copy_class(self, alice: Actor, place: Path) -> None:
        await one_of_everything(alice)
        claimed = alice.store.copies
        assert set(self.rows(place)) <= set(claimed)
        assert set(claimed.values()) <= set(ALL)

    async def test_a_commit_is_hinted_at_on_every_topic_it_changed(self, alice: Actor) -> None:
        of = await one_of_everything(alice)
        wakeups = alice.store.wakeups

        async def woken(topic: bytes, *writes: Write) -> bool:
            seen = wakeups.generation(topic)
            waiter = asyncio.create_task(wakeups.wait(topic, seen, 5.0))
            await asyncio.sleep(0)
            await alice.does(*writes)
            await waiter
            return wakeups.generation(topic) != seen

        assert await woken(of.run, Log(run=of.run, fence=1, rows=(row(),)))
        assert await woken(of.conversation, Append(branch=of.conversation, items=alice.talk(["x"])))
        assert await woken(of.session, PatchSlots(session=of.session, patches=(put("n", 1),), by="x"))
        assert await woken(of.run, Finish(run=of.run, fence=1, status="completed"))

    async def test_a_closed_handle_takes_and_tells_nothing_and_the_other_goes_on(self, alice: Actor, place: Path) -> None:
        conversation = await alice.opens_conversation()
        async with self.handle(place) as handle:
            await handle.check()
            await Actor(handle).appends(conversation, "one")
        assert isinstance(await refusal(Actor(handle).appends(conversation, "two")), Closed)
        assert isinstance(await refusal(Actor(handle).reads(conversation)), Closed)
        assert isinstance(await refusal(handle.check()), Closed)
        assert await alice.reads(conversation) == ["one"]

    # ── strangers ───────────────────────────────────────────────────────────────────────────────────────────────────

    @pytest.mark.parametrize("stranger", STRANGERS.values(), ids=[name.replace(" ", "_") for name in STRANGERS])
    async def test_C7_R8_P28_a_foreign_id_answers_like_one_that_does_not_exist(self, alice: Actor, stranger: Scope) -> None:
        of = await one_of_everything(alice)
        before = await everything(alice, of)
        me = Actor(alice.store, stranger)
        for name, read in READS:
            await self.alike(name, of, lambda ids, read=read: read(me.store, stranger, ids))  # type: ignore[misc]
        for name, write in WRITES:
            await self.alike(name, of, lambda ids, write=write: me.does(write(me, ids)))  # type: ignore[misc]
        assert await everything(alice, of) == before

    async def alike(self, name: str, of: Ids, act: Callable[[Ids], Awaitable[Any]]) -> None:
        """The same refusal for an id of alice's and for one that nobody has, but for the id itself."""
        real: bytes = getattr(of, name)
        random = real[:8] + bytes(reversed(real[8:]))
        foreign, unknown = await refusal(act(of)), await refusal(act(of.swap(name, random)))
        assert isinstance(foreign, NotFound), (name, foreign)
        assert facts(foreign) == facts(unknown)
        assert foreign.message.replace(real.hex(), random.hex()) == unknown.message

    @pytest.mark.parametrize("stranger", STRANGERS.values(), ids=[name.replace(" ", "_") for name in STRANGERS])
    async def test_C7_R8_P28_lists_show_what_is_visible_only(self, alice: Actor, stranger: Scope) -> None:
        of = await one_of_everything(alice)
        store = alice.store
        assert await store.conversations(stranger, after=NIL, limit=9) == []
        assert await store.sessions(stranger, after=NIL, limit=9) == []
        assert await store.runs(stranger, RunQuery()) == []
        assert await store.runs(stranger, RunQuery(conversation=of.conversation)) == []
        assert await store.bound(stranger, of.conversation, "clerk") is None
        assert await store.heads(stranger, [of.run]) == {}
        assert await store.actions(stranger, ActionQuery(queue="support")) == []

    async def test_C7_R8_P28_an_operator_sees_the_tenant(self, alice: Actor) -> None:
        of = await one_of_everything(alice)
        assert await everything(Actor(alice.store, operator("acme")), of) == await everything(alice, of)

    async def test_P28_the_same_ids_in_two_tenants_do_not_meet(self, alice: Actor) -> None:
        """Whatever one of them does, the other's objects stay as they are, and stay looked after."""
        ours, theirs = Twin(alice.store, ACME), Twin(alice.store, own("other", "alice"))
        of = await one_of_everything(ours)
        before, due = await everything(ours, of), await looked_after(ours)
        assert await one_of_everything(theirs) == of
        for _, write in WRITES:
            for fence in (1, 99):
                with suppress(StateroomError):
                    await theirs.does(fenced(write(theirs, of), fence))
        assert isinstance(await refusal(theirs.store.run(theirs.scope, of.run)), NotFound)  # so much did they do
        assert await everything(ours, of) == before
        assert await looked_after(ours) == due
