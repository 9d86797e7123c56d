"""S19: what becomes of ephemeral sessions when what lay on them is lost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from stateroom.backends.base import Backend
from stateroom.conformance.kit import ACME, WORKER, Actor, put, refusal, turn_key
from stateroom.conformance.suite import Suite
from stateroom.errors import Gone
from stateroom.ids import NIL
from stateroom.run.model import Claim, Claimed, Finish
from stateroom.session.model import (
    CompactPast,
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
from stateroom.session.receipts import Aged

READS: dict[str, Callable[[Backend, bytes], Awaitable[Any]]] = {
    "session": lambda store, id_: store.session(ACME, id_),
    "slots": lambda store, id_: store.slots(ACME, id_),
    "past": lambda store, id_: store.past(ACME, id_, "size", 10),
    "told": lambda store, id_: store.told(ACME, id_, after=0, limit=10),
    "slots_at": lambda store, id_: store.slots_at(ACME, id_, 1),
    "checkpoints": lambda store, id_: store.checkpoints(ACME, id_, 10),
    "checkpoint_at": lambda store, id_: store.checkpoint_at(ACME, id_, "first"),
    "remains": lambda store, id_: store.remains(ACME, id_, "slot", after=("", -1, -1, -1), limit=10),
    "entries": lambda store, id_: store.entries(ACME, id_, "tail", as_of=None, limit=10),
    "document": lambda store, id_: store.document(ACME, id_, "text"),
}


class EphemeralPromises(Suite):
    async def brief(self, alice: Actor, *, conversation: bytes = NIL, agent: str = "", ttl_ms: int = 0) -> bytes:
        """An ephemeral desk."""
        id_ = alice.new_id()
        write = OpenSession(
            id=id_,
            owner="alice",
            subject="someone",
            conversation=conversation,
            agent=agent,
            durability="ephemeral",
            ttl_ms=ttl_ms,
        )
        await alice.does(write)
        return id_

    def every_write(self, session: bytes, alice: Actor) -> tuple[Any, ...]:
        return (
            PatchSlots(session=session, patches=(put("size", 1),), by="alice"),
            RollBack(session=session, by="alice", version=1),
            MakeCheckpoint(session=session, name="second", by="alice"),
            ForkSession(id=alice.new_id(), parent=session, owner="alice"),
            TouchSession(session=session),
            CompactPast(session=session, before=1),
            HoldDesk(session=session, holder="a", ms=1000),
            SetAccess(session=session, agent="a", read=("*",), write=()),
        )

    async def test_S19_what_is_lost_is_said_by_every_read(self, place: Path) -> None:
        async with self.handle(place) as store:
            alice = Actor(store)
            session, untouched, durable = await self.brief(alice), await self.brief(alice), await alice.opens_session()
            await alice.sets(session, size=42)
            await alice.does(MakeCheckpoint(session=session, name="first", by="alice"))
            await alice.sets(durable, size=43)
        await self.lose(place)
        async with self.handle(place) as store:
            for name, read in READS.items():
                for id_ in (session, untouched):
                    error = await refusal(read(store, id_))
                    assert (type(error), error.reason) == (Gone, "state_lost"), name
            assert (await store.head(ACME, session)).status == "lost"
            listed = {row.id: row.status for row in await store.sessions(ACME, after=NIL, limit=10)}
            assert listed == {session: "lost", untouched: "lost", durable: "active"}
            assert await Actor(store).desk(durable) == {"size": 43}, "what is durable is not touched by it"

    async def test_S19_what_is_lost_is_said_by_every_write_until_it_is_ended(self, place: Path) -> None:
        async with self.handle(place) as store:
            session = await self.brief(Actor(store))
            await Actor(store).sets(session, size=42)
        await self.lose(place)
        async with self.handle(place) as store:
            alice = Actor(store)
            for write in self.every_write(session, alice):
                error = await refusal(alice.does(write))
                assert (type(error), error.reason) == (Gone, "state_lost"), write
            await alice.does(EndSession(session=session))
            assert (await refusal(alice.desk(session))).reason == "session_ended"
            again = await self.brief(alice)
            await alice.sets(again, size=1)
            assert await alice.desk(again) == {"size": 1}

    async def test_S19_a_turn_is_not_begun_on_a_desk_that_is_lost(self, place: Path) -> None:
        """And what was recorded beside it is all there."""
        async with self.handle(place) as store:
            alice = Actor(store)
            conversation = await alice.opens_conversation()
            session = await self.brief(alice, conversation=conversation, agent="clerk")
            run = (await alice.asks(conversation, "hello")).run
            assert run.session == session
            patch = PatchSlots(session=session, patches=(put("size", 1),), by="alice", run=run.id, fence=run.fence)
            await alice.does(patch, Finish(run=run.id, fence=run.fence, status="completed"))
        await self.lose(place)
        async with self.handle(place) as store:
            alice = Actor(store)
            assert await alice.reads(conversation) == ["hello"]
            error = await refusal(alice.asks(conversation, "again", key=turn_key("k"), session=alice.new_id()))
            assert (type(error), error.reason) == (Gone, "state_lost")
            assert await alice.reads(conversation) == ["hello"], "nothing of a refused turn is left"
            await alice.does(EndSession(session=session))
            again = (await alice.asks(conversation, "again", key=turn_key("k"), session=alice.new_id())).run
            assert again.session not in (NIL, session), "there is another desk now"

    async def test_S19_a_turn_under_way_is_told_at_its_claim_and_at_its_end(self, place: Path) -> None:
        async with self.handle(place) as store:
            alice = Actor(store)
            conversation = await alice.opens_conversation()
            session = await self.brief(alice, conversation=conversation, agent="clerk")
            await alice.sets(session, size=42)
            active = (await alice.asks(conversation, "hello")).run
            waiting = (await alice.asks(conversation, "and then")).run
        await self.lose(place)
        async with self.handle(place) as store:
            alice = Actor(store)
            error = await refusal(alice.patches(session, put("size", 1), run=active.id, fence=active.fence))
            assert error.reason == "state_lost"
            await alice.answers(active, "hi")
            claimed = await alice.gets(Claimed, Claim(run=waiting.id, lease=WORKER))
            assert claimed.session_version > 0, "its worker has to look, and learns that it is lost"
            await alice.answers(claimed.run, "hi again")

    async def test_S19_P23_a_lost_desk_says_so_for_another_time_to_live_and_then_it_goes(self, place: Path) -> None:
        """When it would have expired is lost as well."""
        async with self.handle(place) as store:
            alice = Actor(store)
            conversation = await alice.opens_conversation()
            session = await self.brief(alice, conversation=conversation, agent="clerk", ttl_ms=1000)
            for _ in range(4):
                self.clock.advance(500)
                await alice.sets(session, size=42)
        await self.lose(place)
        async with self.handle(place) as store:
            alice = Actor(store)
            self.clock.advance(5000)
            assert (await refusal(alice.desk(session))).reason == "state_lost"
            assert (await refusal(alice.asks(conversation, "hello"))).reason == "state_lost"
            assert await alice.due("expire", store.now()) == [session]
            aged = await alice.gets(Aged, Expire(session=session))
            assert (aged.status, aged.expires_at) == ("lost", store.now() + 1000)
            assert await alice.due("expire", store.now()) == []
            assert (await refusal(alice.does(PurgeSession(session=session)))).reason == "session_not_expiring"
            self.clock.advance(999)
            assert (await refusal(alice.desk(session))).reason == "state_lost"
            self.clock.advance(1)
            assert (await refusal(alice.desk(session))).reason == "session_expired"
            assert (await alice.asks(conversation, "hello", session=alice.new_id())).run.session != session
            await alice.does(Expire(session=session), PurgeSession(session=session))
            assert (await store.head(ACME, session)).status == "expired"

    async def test_S19_a_desk_that_expired_before_it_was_lost_has_nothing_to_put_away(self, place: Path) -> None:
        async with self.handle(place) as store:
            alice = Actor(store)
            session = await self.brief(alice, ttl_ms=1000)
            await alice.sets(session, size=42)
            self.clock.advance(1000)
            await alice.does(Expire(session=session))
        await self.lose(place)
        async with self.handle(place) as store:
            alice = Actor(store)
            assert (await refusal(READS["remains"](store, session))).reason == "state_lost"
            await alice.does(PurgeSession(session=session))
            assert (await refusal(alice.desk(session))).reason == "session_expired"

    async def test_S19_forks_are_lost_with_what_they_stand_on(self, place: Path) -> None:
        async with self.handle(place) as store:
            alice = Actor(store)
            session, fork = await self.brief(alice), alice.new_id()
            await alice.sets(session, size=42)
            await alice.does(ForkSession(id=fork, parent=session, owner="alice"))
            await alice.sets(fork, size=43)
            assert (await store.session(ACME, fork)).durability == "ephemeral"
        await self.lose(place)
        async with self.handle(place) as store:
            assert {(await refusal(Actor(store).desk(id_))).reason for id_ in (session, fork)} == {"state_lost"}

    @pytest.mark.parametrize("beside", [False, True])
    async def test_S19_nothing_is_lost_when_a_store_is_merely_opened_again(self, place: Path, beside: bool) -> None:
        async with self.handle(place) as store:
            alice = Actor(store)
            session = await self.brief(alice)
            write = PatchSlots(session=session, patches=(put("size", 42),), by="alice")
            mixed = OpenSession(id=alice.new_id(), owner="alice", subject="someone")
            await alice.does(write, *([mixed] if beside else []))
            batch = alice.batch(write)
            await store.commit(batch)
            assert await store.landed(batch)
            assert (await refusal(store.commit(batch))).reason == "batch_landed"
        async with self.handle(place) as store:
            assert await store.landed(batch)
            head = await store.session(ACME, session)
            assert (head.version, head.status) == (2, "active")
            assert await Actor(store).desk(session) == {"size": 42}
