"""Conversations that are taken back, turns that undo others, and desks that come back (P18, P21, P23, P25)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from stateroom import limits
from stateroom.conformance.kit import WORKER, Actor, put, refusal
from stateroom.conformance.suite import Suite
from stateroom.conversation.model import Branch, Forked, MoveBranch
from stateroom.errors import AlreadyExists, Busy, Conflict, Gone, NotFound, StaleFence
from stateroom.run.model import Accepted, Heartbeat, Run
from stateroom.session import remains as r
from stateroom.session import versions
from stateroom.session.model import (
    EndSession,
    Expire,
    ForkSession,
    MakeCheckpoint,
    MarkTurn,
    OpenSession,
    PatchSlots,
    PurgeSession,
    Slot,
)
from stateroom.session.receipts import Aged, Marked, Noted
from stateroom.wire import json

TTL = 60_000


class GoingBackPromises(Suite):
    async def moves(self, actor: Actor, conversation: bytes, parent: bytes, *, up_to: int, **given: Any) -> Forked:
        now = await actor.store.branch(actor.scope, conversation)
        fields = {"expected": now.id, "expected_tail": now.tail, **given}
        write = MoveBranch(id=actor.new_id(), conversation=conversation, parent=parent, up_to=up_to, **fields)
        return await actor.gets(Forked, write)

    async def goes_on_in(self, actor: Actor, conversation: bytes) -> Branch:
        return await actor.store.branch(actor.scope, conversation)

    # ── conversations ───────────────────────────────────────────────────────────────────────────────────────────────

    async def test_P18_a_conversation_goes_on_from_where_it_was(self, alice: Actor, beside: Actor) -> None:
        conversation = await alice.opens_conversation("1", "2", "3")
        moved = await self.moves(alice, conversation, conversation, up_to=1)
        assert await beside.reads(conversation, current=True) == ["1"]
        assert (await self.goes_on_in(beside, conversation)).id == moved.id
        await beside.appends(conversation, "4")
        assert await alice.reads(conversation, current=True) == ["1", "4"]
        assert await alice.reads(conversation) == ["1", "2", "3"], "what was undone is there for who asks for it"
        await self.moves(alice, conversation, conversation, up_to=3)
        assert await alice.reads(conversation, current=True) == ["1", "2", "3"]
        await self.moves(alice, conversation, moved.id, up_to=2)
        assert await alice.reads(conversation, current=True) == ["1", "4"]

    async def test_P18_it_is_refused_when_the_conversation_went_on_meanwhile(self, alice: Actor) -> None:
        conversation = await alice.opens_conversation("1", "2")
        error = await refusal(self.moves(alice, conversation, conversation, up_to=1, expected_tail=1))
        assert (type(error), error.reason) == (Conflict, "tail_conflict")
        error = await refusal(self.moves(alice, conversation, conversation, up_to=1, expected=alice.new_id()))
        assert (type(error), error.reason) == (Conflict, "branch_moved")
        assert await alice.reads(conversation, current=True) == ["1", "2"]

    async def test_P18_it_is_refused_while_a_turn_is_active_or_waits(self, alice: Actor) -> None:
        conversation = await alice.opens_conversation("1")
        await alice.asks(conversation, "2")
        with pytest.raises(Busy):
            await self.moves(alice, conversation, conversation, up_to=1)

    async def test_P18_turns_go_on_where_the_conversation_does(self, alice: Actor) -> None:
        conversation = await alice.opens_conversation("1")
        old = (await alice.asks(conversation, "2")).run
        await alice.answers(old, "re 2")
        await self.moves(alice, conversation, conversation, up_to=1)
        turn = await alice.asks(conversation, "3")
        await alice.answers(turn.run, "re 3")
        assert await alice.reads(conversation, current=True) == ["1", "3", "re 3"]
        follows = await alice.follows(await alice.run(old), "4")
        assert follows.forked, "a branch that was left never changes again"
        assert await alice.reads(follows.run.branch) == ["1", "2", "re 2", "4"]

    async def test_P28_nobody_takes_a_foreign_conversation_back(self, alice: Actor) -> None:
        conversation = await alice.opens_conversation("1", "2")
        write = MoveBranch(
            id=alice.new_id(), conversation=conversation, parent=conversation, up_to=1, expected=conversation, expected_tail=2
        )
        other = Actor(alice.store, type(alice.scope)("other", alice.scope.principal, sees_all=True))
        with pytest.raises(NotFound):
            await other.gets(Forked, write)

    # ── checkpoints of turns ────────────────────────────────────────────────────────────────────────────────────────

    async def ended(self, alice: Actor, conversation: bytes, text: str) -> Run:
        run = (await alice.asks(conversation, text, session=alice.new_id())).run
        await alice.does(PatchSlots(session=run.session, patches=(put("last", text),), by="alice"))
        return (await alice.answers(run, f"re {text}")).run

    async def test_P18_a_turn_marks_where_desk_and_conversation_are(self, alice: Actor) -> None:
        conversation = await alice.opens_conversation()
        run = await self.ended(alice, conversation, "1")
        for _ in range(2):
            await alice.gets(Noted, MarkTurn(session=run.session, run=run.id, by="alice", agent="a"))
        name = versions.turn_name(run.id)
        mark = await alice.store.checkpoint_at(alice.scope, run.session, name)
        assert mark is not None
        assert (mark.version, mark.branch, mark.seq, mark.kind, mark.run) == (1, conversation, 2, "turn", run.id)
        assert await alice.store.checkpoint_at(alice.scope, run.session, 5) == mark
        assert await alice.store.checkpoint_at(alice.scope, run.session, 0) is None
        assert await alice.store.checkpoint_at(alice.scope, run.session, "other") is None

    async def test_P18_a_desk_that_is_gone_gets_no_mark_and_the_turn_ends(self, alice: Actor) -> None:
        conversation = await alice.opens_conversation()
        run = await self.ended(alice, conversation, "1")
        await alice.does(EndSession(session=run.session))
        await alice.gets(Noted, MarkTurn(session=run.session, run=run.id, by="alice", agent="a"))

    async def test_P18_a_name_tells_how_far_the_conversation_had_come_before_the_active_turn(self, alice: Actor) -> None:
        conversation = await alice.opens_conversation()
        run = await self.ended(alice, conversation, "1")
        await alice.asks(conversation, "2")
        mark = await alice.gets(Marked, MakeCheckpoint(session=run.session, name="here", by="alice"))
        assert (mark.checkpoint.branch, mark.checkpoint.seq) == (conversation, 2)

    # ── a turn that undoes another ──────────────────────────────────────────────────────────────────────────────────

    async def test_P8_P18_rollback_undoes_the_active_turn_in_the_same_breath(self, alice: Actor, beside: Actor) -> None:
        conversation = await alice.opens_conversation()
        first = await self.ended(alice, conversation, "1")
        active = (await alice.asks(conversation, "2")).run
        waits = (await alice.asks(conversation, "3")).run
        await alice.does(PatchSlots(session=active.session, patches=(put("last", "2"),), by="alice"))
        new = await beside.asks(conversation, "4", policy="rollback", fork=beside.new_id())
        assert (new.run.status, new.interrupted, new.forked) == ("in_progress", active.id, True)
        undone = await alice.run(active)
        assert (undone.status, json.decode(undone.error)["code"]) == ("cancelled", "rolled_back")
        assert await alice.desk(first.session) == {"last": "1"}
        assert new.session_version == (await alice.store.session(alice.scope, first.session)).version
        assert await alice.reads(conversation, current=True) == ["1", "re 1", "4"]
        with pytest.raises(StaleFence):
            await alice.answers(active, "too late")
        finished = await alice.answers(new.run, "re 4", next=WORKER)
        assert finished.next is not None
        assert finished.next.run.id == waits.id, "who waited goes where the conversation goes"
        await alice.answers(finished.next.run, "re 3")
        assert await alice.reads(conversation, current=True) == ["1", "re 1", "4", "re 4", "3", "re 3"]

    async def test_P18_rollback_of_nothing_waits_its_turn_like_any(self, alice: Actor) -> None:
        conversation = await alice.opens_conversation()
        turn = await alice.asks(conversation, "1", policy="rollback")
        assert (turn.run.status, turn.forked) == ("in_progress", False)

    # ── lives ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def mortal(self, alice: Actor, **given: Any) -> bytes:
        made = alice.new_id()
        await alice.does(OpenSession(id=made, owner=alice.scope.principal, subject="s", ttl_ms=TTL, **given))
        return made

    async def test_P23_a_heartbeat_keeps_the_desk_alive(self, alice: Actor) -> None:
        conversation = await alice.opens_conversation()
        turn = alice.turn("1", conversation=conversation)
        desk = await self.mortal(alice, conversation=conversation, agent=turn.agent)
        run = (await alice.gets(Accepted, turn)).run
        assert run.session == desk
        for _ in range(3):
            self.clock.advance(TTL - 1)
            await alice.does(Heartbeat(run=run.id, fence=run.fence, lease=WORKER))
        assert (await alice.store.session(alice.scope, desk)).status == "active"
        self.clock.advance(TTL)
        with pytest.raises(Gone):
            await alice.store.session(alice.scope, desk)

    async def everything(self, alice: Actor, desk: bytes) -> dict[r.Part, list[r.Remnant]]:
        found: dict[r.Part, list[r.Remnant]] = {}
        for part in r.PARTS:
            after, found[part] = r.FIRST, []
            while page := await alice.store.remains(alice.scope, desk, part, after=after, limit=2):
                found[part] += page
                after = r.key(page[-1])
        return found

    async def test_P23_what_was_read_of_an_expiring_desk_brings_it_back(self, alice: Actor, place: Path) -> None:
        desk = await self.mortal(alice)
        for number in range(5):
            await alice.sets(desk, a=number, **{f"b{number}": number})
        await alice.does(MakeCheckpoint(session=desk, name="one", by="alice", version=1))
        before = await alice.store.slots(alice.scope, desk)
        self.clock.advance(TTL)
        aged = await alice.gets(Aged, Expire(session=desk))
        assert aged.status == "expiring"
        head, kept = await alice.store.head(alice.scope, desk), await self.everything(alice, desk)
        assert (len(kept["slot"]), len(kept["past"]), len(kept["checkpoint"])) == (6, 4, 1)
        await alice.does(PurgeSession(session=desk, archive="there"))
        assert (await alice.store.head(alice.scope, desk)).archive == "there"
        assert [rows for rows in (await self.everything(alice, desk)).values() if rows] == []
        for _ in range(2):  # a try that was cut short is begun anew
            assert not (await alice.gets(r.Restoring, r.BeginRestore(head=head))).whole
            for part in r.PARTS:
                for remnant in kept[part]:
                    await alice.does(r.PutRemnants(session=desk, remnants=(remnant,)))
            with pytest.raises(Gone):
                await alice.store.slots(alice.scope, desk)
        await alice.gets(Aged, r.Revive(head=head))
        assert await alice.store.slots(alice.scope, desk) == before
        assert await self.everything(alice, desk) == kept
        assert (await alice.store.session(alice.scope, desk)).expires_at == alice.store.now() + TTL
        assert await alice.sets(desk, a=9) == head.version + 1

    async def test_P23_a_desk_that_lives_is_not_overwritten(self, alice: Actor) -> None:
        desk = await self.mortal(alice)
        head = await alice.store.head(alice.scope, desk)
        assert type(await refusal(alice.does(r.BeginRestore(head=head)))) is AlreadyExists
        for write in (r.PutRemnants(session=desk, remnants=()), r.Revive(head=head)):
            assert (await refusal(alice.does(write))).reason == "session_not_archived"

    async def test_P23_a_desk_that_never_came_whole_is_cleared_away(self, alice: Actor) -> None:
        desk = await self.mortal(alice)
        await alice.sets(desk, a=1)
        head, slots = await alice.store.head(alice.scope, desk), await alice.store.slots(alice.scope, desk)
        made = alice.new_id()
        await alice.does(r.BeginRestore(head=replace(head, id=made, lineage=made)))
        await alice.does(r.PutRemnants(session=made, remnants=tuple(slots)))
        assert await alice.due("expire", alice.store.now() + limits.RESTORE_MS) != []
        self.clock.advance(limits.RESTORE_MS)
        await alice.does(Expire(session=made), PurgeSession(session=made))
        assert (await alice.store.head(alice.scope, made)).status == "expired"
        assert [rows for rows in (await self.everything(alice, made)).values() if rows] == []

    async def test_P25_a_fork_remains_as_if_it_stood_alone(self, alice: Actor) -> None:
        desk = await self.mortal(alice)
        await alice.sets(desk, a=1, b=1)
        await alice.sets(desk, b=2)
        fork = alice.new_id()
        await alice.does(ForkSession(id=fork, parent=desk, owner=alice.scope.principal))
        await alice.sets(fork, b=3)
        kept = await self.everything(alice, fork)
        now = {row.name: row.body for row in kept["slot"] if isinstance(row, Slot)}
        past = [(row.slot.name, row.slot.version) for row in kept["past"] if isinstance(row, r.PastSlot)]
        assert (now, past) == ({"a": b"1", "b": b"3"}, [("b", 2)])
