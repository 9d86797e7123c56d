"""S14: how long desks live (P13, P23)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from stateroom.conformance.desk_versions import forks_desk, goes_back, marks
from stateroom.conformance.kit import Actor, put, refusal
from stateroom.conformance.suite import Suite
from stateroom.errors import AlreadyExists, Conflict, Gone, InvalidInput, StateroomError
from stateroom.ids import NIL
from stateroom.session.model import (
    CompactPast,
    EndSession,
    Expire,
    NewEntry,
    OpenSession,
    PatchSlots,
    PurgeSession,
    Slot,
    SlotPatch,
    TouchSession,
)
from stateroom.session.receipts import Aged

LONG = 10**9


class ExpiryPromises(Suite):
    async def opened(self, alice: Actor, *, ttl_ms: int = 1000, **fields: Any) -> bytes:
        """A desk with a time to live."""
        id_ = alice.new_id()
        await alice.does(OpenSession(id=id_, owner=alice.scope.principal, subject="someone", ttl_ms=ttl_ms, **fields))
        return id_

    async def expires(self, alice: Actor, session: bytes) -> Aged:
        return await alice.gets(Aged, Expire(session=session, retry_ms=500))

    async def every_way_in(self, alice: Actor, session: bytes) -> list[StateroomError]:
        """How each thing that can be asked of a desk is refused."""
        store, scope = alice.store, alice.scope
        ways: tuple[Callable[[], Awaitable[Any]], ...] = (
            lambda: store.session(scope, session),
            lambda: store.slots(scope, session),
            lambda: store.past(scope, session, "size", 1),
            lambda: store.told(scope, session, after=0, limit=9),
            lambda: store.slots_at(scope, session, 0),
            lambda: store.checkpoints(scope, session, 1),
            lambda: store.entries(scope, session, "size", as_of=None, limit=1),
            lambda: store.document(scope, session, "size"),
            lambda: alice.sets(session, size=1),
            lambda: alice.does(TouchSession(session=session)),
            lambda: alice.does(EndSession(session=session)),
            lambda: alice.does(CompactPast(session=session, before=1)),
            lambda: marks(alice, session, "x"),
            lambda: goes_back(alice, session, version=0),
            lambda: forks_desk(alice, session),
        )
        return [await refusal(way()) for way in ways]

    async def test_S14_P23_expired_is_gone_at_once_whether_it_was_swept_or_not(self, alice: Actor, beside: Actor) -> None:
        session, other = await self.opened(alice), await self.opened(alice, ttl_ms=2000)
        await alice.sets(session, size=43)
        self.clock.advance(999)
        assert await beside.desk(session) == {"size": 43}
        self.clock.advance(1)
        for look in ("before the sweep", "expiring", "purged"):
            errors = await self.every_way_in(beside, session)
            assert {(type(error), error.reason) for error in errors} == {(Gone, "session_expired")}, look
            assert [row.id for row in await alice.store.sessions(alice.scope, after=NIL, limit=10)] == [other]
            if look == "before the sweep":
                assert (await self.expires(alice, session)).status == "expiring"
            elif look == "expiring":
                await alice.does(PurgeSession(session=session))

    async def test_S14_an_interaction_renews_and_a_read_does_not(self, alice: Actor) -> None:
        session, read_only = await self.opened(alice), await self.opened(alice)
        self.clock.advance(900)
        await alice.sets(session, size=43)
        assert await alice.desk(read_only) == {}
        self.clock.advance(900)
        await alice.does(TouchSession(session=session))
        self.clock.advance(900)
        await goes_back(alice, session, version=0)
        self.clock.advance(900)
        await alice.sets(session, size=44)
        assert (await alice.store.session(alice.scope, session)).expires_at == alice.store.now() + 1000
        assert await alice.desk(session) == {"size": 44}
        assert isinstance(await refusal(alice.desk(read_only)), Gone)

    async def test_S14_a_turn_is_an_interaction(self, alice: Actor) -> None:
        conversation = await alice.opens_conversation()
        session = await self.opened(alice, conversation=conversation, agent="clerk")
        self.clock.advance(900)
        run = (await alice.asks(conversation, "hello", session=alice.new_id())).run
        assert run.session == session
        self.clock.advance(900)
        assert (await alice.store.session(alice.scope, session)).expires_at == alice.store.now() + 100

    async def test_S14_nothing_renews_beyond_the_maximum(self, alice: Actor) -> None:
        session = await self.opened(alice, max_ms=2500)
        for _ in range(4):
            self.clock.advance(600)
            await alice.sets(session, n=1)
        head = await alice.store.session(alice.scope, session)
        assert head.expires_at == head.dies_at == alice.store.now() + 100
        fork = await forks_desk(alice, session)
        self.clock.advance(100)
        for desk in (session, fork):
            assert isinstance(await refusal(alice.desk(desk)), Gone)

    async def test_S14_P13_jumps_of_the_wall_neither_expire_nor_revive(self, alice: Actor, beside: Actor) -> None:
        session = await self.opened(alice)
        self.clock.wall += 86_400_000
        assert await beside.desk(session) == {}
        assert (await self.expires(alice, session)).status == "active"
        self.clock.advance(1000)
        self.clock.wall -= 2 * 86_400_000
        assert isinstance(await refusal(beside.desk(session)), Gone)
        assert (await self.expires(alice, session)).status == "expiring"

    async def test_S14_a_desk_is_due_when_its_time_comes(self, alice: Actor) -> None:
        session, now = await self.opened(alice), alice.store.now()
        await self.opened(alice, ttl_ms=0)
        assert await alice.due("expire", now + 999) == []
        assert await alice.due("expire", now + LONG) == [session]
        self.clock.advance(600)
        await alice.sets(session, size=43)
        aged = await self.expires(alice, session)
        assert (aged.status, aged.expires_at) == ("active", now + 1600)
        assert await alice.due("expire", now + 1599) == []
        self.clock.advance(1000)
        assert await alice.due("expire", alice.store.now()) == [session]
        assert (await self.expires(alice, session)).status == "expiring"
        assert await alice.due("expire", alice.store.now() + 499) == [], "somebody looks after it"
        assert await alice.due("expire", alice.store.now() + 500) == [session], "should they die, somebody else does"
        await alice.does(PurgeSession(session=session))
        assert await alice.due("expire", now + LONG) == []

    async def test_S14_what_was_ended_is_not_due(self, alice: Actor) -> None:
        session = await self.opened(alice)
        await alice.does(EndSession(session=session))
        assert await alice.due("expire", alice.store.now() + LONG) == []
        assert (await self.expires(alice, session)).status == "ended"
        assert await alice.due("expire", alice.store.now() + LONG) == []

    async def test_S7_S14_an_expired_desk_makes_room_for_another(self, alice: Actor) -> None:
        conversation = await alice.opens_conversation()
        session = await self.opened(alice, conversation=conversation, agent="clerk")
        assert isinstance(await refusal(self.opened(alice, conversation=conversation, agent="clerk")), AlreadyExists)
        self.clock.advance(1000)
        assert await alice.store.bound(alice.scope, conversation, "clerk") is None
        offered = alice.new_id()
        assert (await alice.asks(conversation, "hello", session=offered)).run.session == offered
        assert (await self.expires(alice, session)).status == "expiring"
        bound = await alice.store.bound(alice.scope, conversation, "clerk")
        assert bound is not None
        assert bound.id == offered

    @pytest.mark.parametrize("archive", ["", "cold/1"])
    async def test_P23_a_purge_leaves_nothing_but_the_head(self, alice: Actor, place: Path, archive: str) -> None:
        before = self.rows(place)
        session = await self.opened(alice)
        window = SlotPatch(name="tail", kind="window", body=b'{"seconds": 30}')
        for patch in (put("size", 43), put("size", 44), window):
            await alice.patches(session, patch)
        entry = (NewEntry(b"seen"),)
        await alice.patches(session, SlotPatch(name="tail", kind="window", op="append", body=b"", entries=entry))
        schema = '{"type": "integer"}'
        await alice.patches(session, SlotPatch(name="n", body=b"1", schema=schema))
        await marks(alice, session, "now")
        assert isinstance(await refusal(alice.does(PurgeSession(session=session))), Conflict)
        self.clock.advance(1000)
        await self.expires(alice, session)
        aged = await alice.gets(Aged, PurgeSession(session=session, archive=archive))
        assert aged.status == ("archived" if archive else "expired")
        assert (await refusal(alice.desk(session))).reason == ("session_archived" if archive else "session_expired")
        after = self.rows(place)
        left = {name for name in after if after[name] != before[name]}
        assert left <= {"session", "sessions", "leaf", "leaves", "tenant", "sqlite_sequence"}

    async def test_P23_where_a_desk_is_put_is_recorded_first_and_only_the_last_place_counts(self, alice: Actor) -> None:
        session = await self.opened(alice)
        await alice.does(Expire(session=session, archive="early"))
        assert (await alice.store.head(alice.scope, session)).archive == "", "it lives"
        self.clock.advance(1000)
        for archive, instead in (("a", ""), ("b", "a"), ("c", "b a")):
            refused = await refusal(alice.does(Expire(session=session, archive=archive, instead="of another")))
            assert (type(refused), refused.reason) == (Conflict, "archive_elsewhere")
            await alice.does(Expire(session=session, archive=archive, instead=instead))
        assert (await alice.store.head(alice.scope, session)).archive == "c b"
        assert (await refusal(alice.does(PurgeSession(session=session, archive="b")))).reason == "archive_elsewhere"
        await alice.does(PurgeSession(session=session, archive="c"))
        head = await alice.store.head(alice.scope, session)
        assert (head.status, head.archive) == ("archived", "c")

    async def test_S13_P23_a_purge_spares_what_a_fork_shows(self, alice: Actor, place: Path) -> None:
        before = self.rows(place)
        session = await self.opened(alice)
        await alice.sets(session, size=43)
        fork = await forks_desk(alice, session, ttl_ms=5000)
        self.clock.advance(1000)
        await self.expires(alice, session)
        await alice.does(PurgeSession(session=session))
        assert await alice.desk(fork) == {"size": 43}
        await alice.sets(fork, size=44)
        self.clock.advance(5000)
        await self.expires(alice, fork)
        await alice.does(PurgeSession(session=fork))
        after = self.rows(place)
        left = {name for name in after if after[name] != before[name]}
        assert left <= {"session", "sessions", "leaf", "leaves", "tenant", "sqlite_sequence"}, "with the last fork all of it goes"

    async def test_P23_what_is_ended_by_word_is_gone_with_what_was_said_of_it(self, alice: Actor) -> None:
        session = await self.opened(alice, ttl_ms=0)
        await alice.sets(session, size=43)
        fork = await forks_desk(alice, session, ttl_ms=0)
        await alice.does(EndSession(session=session))
        assert await alice.desk(fork) == {"size": 43}, "a fork stands on it"
        await alice.does(EndSession(session=fork))
        for ended in (session, fork):
            assert (await alice.store.head(alice.scope, ended)).metadata == b"{}"
            assert await alice.store.remains(alice.scope, ended, "slot", after=("", -1, -1, -1), limit=10) == []

    async def test_S13_P23_with_the_last_fork_goes_what_only_it_showed(self, alice: Actor) -> None:
        session = await self.opened(alice, ttl_ms=0)
        for n in range(1, 7):
            await alice.sets(session, size=n)
        forks = [await forks_desk(alice, session, version=3, ttl_ms=ttl) for ttl in (1000, 2000)]
        left = []
        for fork in forks:
            await alice.does(CompactPast(session=session, before=6))
            left.append([slot.version for slot in await alice.store.past(alice.scope, session, "size", 9)])
            assert await alice.desk(forks[-1]) == {"size": 3}
            self.clock.advance(1000)
            await self.expires(alice, fork)
            await alice.does(PurgeSession(session=fork))
        await alice.does(CompactPast(session=session, before=6))
        assert left == [[3], [3]]
        assert await alice.store.past(alice.scope, session, "size", 9) == []
        assert await alice.desk(session) == {"size": 6}

    async def test_S13_P23_a_parent_that_is_still_to_be_put_away_keeps_what_its_last_fork_no_longer_needs(
        self, alice: Actor
    ) -> None:
        session = await self.opened(alice)
        await alice.sets(session, size=43)
        fork = await forks_desk(alice, session)
        self.clock.advance(1000)
        await self.expires(alice, session)
        await self.expires(alice, fork)
        await alice.does(PurgeSession(session=fork, archive="cold/fork"))
        page = await alice.store.remains(alice.scope, session, "slot", after=("", -1, -1, -1), limit=10)
        assert [(slot.name, slot.body) for slot in page if isinstance(slot, Slot)] == [("size", b"43")]
        await alice.does(PurgeSession(session=session, archive="cold/session"))

    async def test_P31_a_lifetime_has_bounds(self, alice: Actor) -> None:
        for fields in ({"ttl_ms": -1}, {"ttl_ms": 10**12}, {"max_ms": -1}):
            assert isinstance(await refusal(self.opened(alice, **fields)), InvalidInput)
        with pytest.raises(Gone):
            session = await self.opened(alice)
            self.clock.advance(1000)
            await alice.does(PatchSlots(session=session, patches=(put("a", 1),), by="alice"))
