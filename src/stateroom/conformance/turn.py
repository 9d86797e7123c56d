"""R1, R3, R5, R6: how turns are accepted, queued, claimed and finished, and where they go."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from stateroom.batch import ClaimKey, KeyClaimed
from stateroom.conformance.kit import WORKER, Actor, put, refusal, row, turn_key
from stateroom.conformance.suite import Suite
from stateroom.errors import Busy, Conflict, IllegalMove, Known, NotFound
from stateroom.ids import NIL
from stateroom.principal import operator
from stateroom.run.model import Accepted, AcceptTurn, Claim, DeleteRun, Finish, Finished, Lease, Run, Status
from stateroom.session.model import OpenSession, PatchSlots


async def ask_once(actor: Actor, conversation: bytes, key: str) -> Accepted | Known:
    try:
        return await actor.asks(conversation, "hello", key=turn_key(key))
    except Known as known:
        return known


class TurnPromises(Suite):
    # ── keys ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_R1_P14_twenty_accepts_with_one_key_make_one_run(self, alice: Actor, beside: Actor) -> None:
        conversation = await alice.opens_conversation()
        acts = [ask_once(actor, conversation, "k") for actor in (alice, beside) for _ in range(10)]
        await self.one_won(alice, conversation, await asyncio.gather(*acts))

    async def test_R1_P14_threads_with_one_key_make_one_run(self, alice: Actor, place: Path) -> None:
        conversation = await alice.opens_conversation()
        outcomes = await self.in_threads(place, lambda actor: ask_once(actor, conversation, "k"), count=6)
        await self.one_won(alice, conversation, outcomes)

    async def one_won(self, alice: Actor, conversation: bytes, outcomes: list[Accepted | Known]) -> None:
        (won,) = [outcome for outcome in outcomes if isinstance(outcome, Accepted)]
        assert {outcome.ref for outcome in outcomes if isinstance(outcome, Known)} == {won.run.id}
        assert await alice.reads(conversation) == ["hello"]
        key = turn_key("k")
        kept = await alice.store.key(alice.scope, key.operation, key.key, key.home)
        assert kept is not None
        assert (kept.ref, kept.fingerprint, kept.at) == (won.run.id, b"same", self.clock.wall_ms())

    async def test_R1_P14_a_known_key_tells_what_was_asked_and_writes_nothing(self, alice: Actor) -> None:
        conversation = await alice.opens_conversation()
        first = await alice.asks(conversation, "hello", key=turn_key("k", fingerprint=b"first"))
        turn = alice.turn("other", conversation=conversation, key=turn_key("k", fingerprint=b"second"))
        known = await refusal(alice.does(turn))
        assert isinstance(known, Known)
        assert (known.ref, known.fingerprint) == (first.run.id, b"first")
        assert isinstance(await refusal(alice.store.run(alice.scope, turn.run)), NotFound)
        assert await alice.reads(conversation) == ["hello"]

    async def test_R1_P14_a_key_is_known_whatever_became_of_its_run(self, alice: Actor) -> None:
        conversation = await alice.opens_conversation()
        run = (await alice.asks(conversation, "hello", key=turn_key("k"))).run
        await alice.answers(run)
        await alice.does(DeleteRun(run=run.id))
        known = await refusal(alice.asks(conversation, "hello", key=turn_key("k")))
        assert isinstance(known, Known)
        assert known.ref == run.id

    async def test_R1_a_key_belongs_to_its_principal_and_operation(self, alice: Actor) -> None:
        conversation = await alice.opens_conversation()
        await alice.asks(conversation, "hello", key=turn_key("k"))
        claim = ClaimKey(operation="other", key="k", fingerprint=b"", ref=alice.new_id(), home=turn_key("k").home)
        assert await alice.does(claim) == (KeyClaimed(),)
        known = await refusal(alice.does(claim))
        assert isinstance(known, Known)
        assert known.ref == claim.ref

    async def test_R1_P14_a_known_key_tells_which_version_of_a_desk_it_made(self, alice: Actor) -> None:
        session = alice.new_id()
        await alice.does(OpenSession(id=session, owner="alice", subject="alice"))
        claim = ClaimKey(operation="other", key="k", fingerprint=b"", ref=session, home=turn_key("k").home)
        once = [PatchSlots(session=session, patches=(put(name, 1),), by="alice") for name in ("a", "b")]
        await alice.does(claim, *once)
        await alice.does(once[0])
        known = await refusal(alice.does(claim, *once))
        assert isinstance(known, Known)
        assert (known.ref, known.version) == (session, 2)
        assert (await alice.store.session(alice.scope, session)).version == 3

    async def test_R1_a_retry_without_a_key_takes_an_old_row_over(self, alice: Actor) -> None:
        conversation = await alice.opens_conversation()
        first = await alice.asks(conversation, "hello", key=turn_key("k"))
        await alice.answers(first.run)
        self.clock.advance(1_000)
        since = self.clock.wall_ms()
        fresh = turn_key("k", renew_before=since - 1_000)
        assert isinstance(await refusal(alice.asks(conversation, "hello", key=fresh)), Known)
        stale = turn_key("k", renew_before=since - 999)
        second = await alice.asks(conversation, "hello", key=stale)
        known = await refusal(alice.asks(conversation, "hello", key=stale))
        assert isinstance(known, Known)
        assert known.ref == second.run.id

    # ── a turn that starts at once ──────────────────────────────────────────────────────────────────────────────────

    async def test_an_accepted_turn_has_its_input_in_the_record_and_a_lease(self, alice: Actor) -> None:
        conversation = await alice.opens_conversation("before")
        accepted = await alice.asks(conversation, "hello", claimed_rows=(row("started", 2),), options=b'{"a":1}')
        run = accepted.run
        assert (run.status, run.fence, run.attempt) == ("in_progress", 1, 1)
        assert (run.lease_owner, run.lease_until) == (WORKER.owner, alice.store.now() + WORKER.ms)
        assert (run.in_lo, run.in_hi, run.out_hi, run.head) == (1, 2, 0, 2)
        assert (run.conversation, run.branch, run.options) == (conversation, conversation, b'{"a":1}')
        assert (run.created_at, run.started_at, run.finished_at) == (self.clock.wall_ms(), self.clock.wall_ms(), 0)
        assert await alice.run(run) == run
        assert (await alice.store.branch(alice.scope, conversation)).active_run == run.id
        assert [(item.run, item.seq) for item in await alice.items(conversation)] == [(NIL, 1), (run.id, 2)]

    async def test_R5_outputs_status_usage_and_log_end_appear_together(self, alice: Actor) -> None:
        conversation = await alice.opens_conversation()
        run = (await alice.asks(conversation, "hello", claimed_rows=(row("started"),))).run
        self.clock.advance(5)
        finished = await alice.answers(run, "hi", "there", usage=b'{"total":3}', rows=(row("ended", 3),))
        ended = finished.run
        assert (ended.status, ended.usage, ended.finished_at) == ("completed", b'{"total":3}', self.clock.wall_ms())
        assert (ended.in_lo, ended.in_hi, ended.out_hi, ended.head, ended.lease_owner) == (0, 1, 3, 4, "")
        assert await alice.run(run) == ended
        assert [(entry.kind, entry.first, entry.count) for entry in await alice.log(run)] == [("started", 1, 1), ("ended", 2, 3)]
        assert await alice.reads(conversation) == ["hello", "hi", "there"]
        branch = await alice.store.branch(alice.scope, conversation)
        assert (branch.active_run, branch.last_run) == (NIL, run.id)

    @pytest.mark.parametrize("status", ["failed", "cancelled", "expired"])
    async def test_R5_input_of_a_turn_that_ended_badly_is_marked(self, alice: Actor, status: Status) -> None:
        conversation = await alice.opens_conversation("before")
        accepted = await alice.asks(conversation, "hello")
        await alice.answers(accepted.run, "half", status=status, error=b'{"code":"x"}')
        assert await alice.marks(conversation) == [("before", ""), ("hello", "failed"), ("half", "")]
        assert (await alice.store.branch(alice.scope, conversation)).revision > accepted.revision
        assert (await alice.run(accepted.run)).error == b'{"code":"x"}'

    # ── the queue ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_R3_turns_start_in_the_order_they_were_accepted(self, alice: Actor, beside: Actor) -> None:
        conversation = await alice.opens_conversation()
        first = await alice.asks(conversation, "one")
        waiting = [(await actor.asks(conversation, text)).run for actor, text in ((beside, "two"), (alice, "three"))]
        assert [run.status for run in waiting] == ["queued", "queued"]
        assert await alice.reads(conversation) == ["one"]
        assert [draft.body for draft in await alice.store.inbox(alice.scope, waiting[0].id)] == [alice.says("two").body]
        error = await refusal(alice.claims(waiting[0]))
        assert (type(error), error.reason) == (Conflict, "not_next")
        await alice.answers(first.run, "1")
        assert (await refusal(alice.claims(waiting[1]))).reason == "not_next"
        for run, answer in zip(waiting, "23", strict=True):
            claimed = (await alice.claims(run)).run
            assert (claimed.status, claimed.fence, claimed.attempt) == ("in_progress", 1, 1)
            assert await alice.store.inbox(alice.scope, run.id) == []
            await alice.answers(claimed, answer)
        assert await alice.reads(conversation) == ["one", "1", "two", "2", "three", "3"]

    async def test_R3_of_racing_accepts_one_is_active_and_the_rest_wait(self, alice: Actor, beside: Actor) -> None:
        conversation = await alice.opens_conversation()
        acts = [actor.asks(conversation, f"{n}") for actor in (alice, beside) for n in range(5)]
        runs = [accepted.run for accepted in await asyncio.gather(*acts)]
        assert sorted(run.status for run in runs) == ["in_progress"] + 9 * ["queued"]
        branch = await alice.store.branch(alice.scope, conversation)
        assert [run.id for run in runs if run.status == "in_progress"] == [branch.active_run]
        assert branch.queued == 9

    async def test_R3_finish_claims_the_next_turn_in_the_same_batch(self, alice: Actor) -> None:
        conversation = await alice.opens_conversation()
        first = await alice.asks(conversation, "one")
        second = await alice.asks(conversation, "two", queued_rows=(row("queued"),))
        finished = await alice.answers(first.run, "1", next=WORKER, next_rows=(row("started"),))
        assert finished.next is not None
        run = finished.next.run
        assert (run.id, run.status, run.fence, run.in_lo, run.in_hi, run.head) == (second.run.id, "in_progress", 1, 2, 3, 2)
        assert await alice.run(run) == run
        branch = await alice.store.branch(alice.scope, conversation)
        assert (branch.active_run, branch.queued) == (run.id, 0)
        assert await alice.reads(conversation) == ["one", "1", "two"]

    async def test_R3_finish_leaves_a_next_turn_that_this_worker_cannot_run(self, alice: Actor) -> None:
        conversation = await alice.opens_conversation()
        first = await alice.asks(conversation, "one")
        second = await alice.asks(conversation, "two", agent="poet")
        lease = Lease("worker-1", 1_000, agents=frozenset({"clerk"}))
        assert (await alice.answers(first.run, next=lease)).next is None
        assert (await alice.run(second.run)).status == "queued"

    async def test_R8_finish_leaves_a_next_turn_that_its_scope_cannot_see(self, alice: Actor) -> None:
        conversation = await alice.opens_conversation()
        first = await alice.asks(conversation, "one")
        second = await Actor(alice.store, operator("acme", "olga")).asks(conversation, "two")
        assert (await alice.answers(first.run, next=WORKER)).next is None
        assert (await alice.store.run(operator("acme"), second.run.id)).status == "queued"

    async def test_a_full_queue_and_a_strict_policy_say_no(self, alice: Actor) -> None:
        conversation = await alice.opens_conversation()
        first = await alice.asks(conversation, "one")
        error = await refusal(alice.asks(conversation, "two", policy="reject"))
        assert (type(error), error.reason, error.facts) == (Busy, "conversation_busy", {"run": first.run.id})
        for _ in range(2):
            await alice.asks(conversation, "waits", queue_max=2)
        error = await refusal(alice.asks(conversation, "too many", queue_max=2))
        assert (type(error), error.reason) == (Busy, "queue_full")
        assert (await alice.store.branch(alice.scope, conversation)).queued == 2

    async def test_R6_a_turn_without_a_worker_waits_and_is_durable(self, alice: Actor, beside: Actor) -> None:
        conversation = await alice.opens_conversation()
        run = (await alice.asks(conversation, "later", claim=None)).run
        assert run.status == "queued"
        assert len(await beside.store.inbox(beside.scope, run.id)) == 1
        assert (await beside.claims(run)).run.in_hi == 1
        assert isinstance(await refusal(alice.gets(Accepted, Claim(run=run.id, lease=WORKER))), Conflict)

    @pytest.mark.parametrize("status", ["failed", "cancelled", "expired"])
    async def test_R6_input_that_never_ran_is_kept_and_marked(self, alice: Actor, status: Status) -> None:
        conversation = await alice.opens_conversation()
        active = (await alice.asks(conversation, "one")).run
        waiting = (await alice.asks(conversation, "never")).run
        ended = (await alice.ends(waiting, status)).run
        assert (ended.status, ended.in_lo, ended.in_hi, ended.out_hi, ended.started_at) == (status, 1, 2, 2, 0)
        assert await alice.store.inbox(alice.scope, waiting.id) == []
        await alice.answers(active, "1")
        assert await alice.marks(conversation) == [("one", ""), ("never", "not_run"), ("1", "")]
        branch = await alice.store.branch(alice.scope, conversation)
        assert (branch.queued, branch.last_run) == (0, active.id)

    # ── previous responses ──────────────────────────────────────────────────────────────────────────────────────────

    async def answered(self, alice: Actor, previous: Run | None = None, text: str = "q", **fields: object) -> Run:
        if previous is None:
            accepted = await alice.asks(await alice.opens_conversation(kind="chain"), text)
        else:
            accepted = await alice.follows(previous, text, **fields)
        return (await alice.answers(accepted.run, text.upper())).run

    async def test_the_newest_response_is_extended_and_an_older_one_forks(self, alice: Actor) -> None:
        first = await self.answered(alice, text="a")
        second = await self.answered(alice, first, "b")
        assert (second.branch, second.previous) == (first.branch, first.id)
        forked = await alice.follows(first, "c")
        assert forked.forked
        assert forked.run.branch not in (first.branch, NIL)
        assert (forked.run.conversation, forked.run.in_lo) == (first.conversation, first.out_hi)
        await alice.answers(forked.run, "C")
        assert await alice.reads(forked.run.branch) == ["a", "A", "c", "C"]
        assert await alice.reads(first.branch) == ["a", "A", "b", "B"]
        third = await self.answered(alice, forked.run, "d")
        assert third.branch == forked.run.branch

    async def test_a_turn_that_forks_may_end_in_its_own_batch(self, alice: Actor) -> None:
        conversation = await alice.opens_conversation()
        first = (await alice.answers((await alice.asks(conversation, "one")).run, "two")).run
        await alice.answers((await alice.follows(first, "three")).run, "four")
        turn = alice.turn("other three", previous=first.id, fork=alice.new_id())
        end = Finish(run=turn.run, fence=1, status="completed", outputs=alice.talk(["other four"], "assistant"))
        accepted, finished = await alice.does(turn, end)
        assert isinstance(accepted, Accepted)
        assert isinstance(finished, Finished)
        assert accepted.forked
        assert await alice.reads(finished.run.branch) == ["one", "two", "other three", "other four"]
        assert await alice.reads(conversation) == ["one", "two", "three", "four"]

    async def test_a_turn_on_a_previous_response_never_queues(self, alice: Actor) -> None:
        first = await self.answered(alice, text="a")
        active = await alice.follows(first, "b")
        beside = await alice.follows(first, "c", policy="reject")
        assert (active.forked, beside.forked, beside.run.status) == (False, True, "in_progress")
        assert await alice.reads(beside.run.branch) == ["a", "A", "c"]

    async def test_after_a_failed_turn_the_last_good_response_is_still_the_newest(self, alice: Actor) -> None:
        first = await self.answered(alice, text="a")
        failed = await alice.follows(first, "b")
        await alice.answers(failed.run, status="failed")
        again = await alice.follows(first, "c")
        assert (again.forked, again.run.branch) == (False, first.branch)
        assert await alice.marks(first.branch) == [("a", ""), ("A", ""), ("b", "failed"), ("c", "")]

    async def test_after_an_append_the_last_response_is_no_longer_the_newest(self, alice: Actor) -> None:
        first = await self.answered(alice, text="a")
        await alice.appends(first.branch)
        assert (await alice.store.branch(alice.scope, first.branch)).last_run == first.id
        await alice.appends(first.branch, "aside")
        assert (await alice.follows(first, "b")).forked

    async def test_a_response_that_is_not_there_or_has_not_ended_cannot_be_continued(self, alice: Actor) -> None:
        active = (await alice.asks(await alice.opens_conversation(), "a")).run
        error = await refusal(alice.follows(active, "b"))
        assert (type(error), error.reason) == (Conflict, "previous_response_in_progress")
        await alice.answers(active)
        await alice.does(DeleteRun(run=active.id))
        error = await refusal(alice.follows(active, "b"))
        assert (type(error), error.facts) == (NotFound, {"facts_kind": "response"})

    async def test_a_turn_can_go_to_a_branch(self, alice: Actor) -> None:
        conversation = await alice.opens_conversation("one", "two")
        fork = await alice.forks(conversation, 1)
        run = (await alice.asks(conversation, "other", branch=fork)).run
        assert (run.conversation, run.branch) == (conversation, fork)
        assert await alice.reads(fork) == ["one", "other"]
        stranger = await alice.opens_conversation()
        assert isinstance(await refusal(alice.asks(stranger, "lost", branch=fork)), NotFound)

    # ── turns that are not stored ───────────────────────────────────────────────────────────────────────────────────

    async def test_a_turn_that_is_not_stored_leaves_nothing_in_any_record(self, alice: Actor) -> None:
        turn = alice.turn("secret", stored=False)
        run = (await alice.gets(Accepted, turn)).run
        assert (run.status, run.fence, run.branch, run.conversation, run.session) == ("in_progress", 1, NIL, NIL, NIL)
        ended = (await alice.answers(run, "answer")).run
        assert (ended.status, ended.in_hi, ended.out_hi) == ("completed", 0, 0)
        assert await alice.store.inbox(alice.scope, run.id) == []
        assert await alice.store.conversations(alice.scope, after=NIL, limit=10) == []
        assert (await refusal(alice.follows(ended, "b"))).facts == {"facts_kind": "response"}
        error = await refusal(alice.does(alice.turn("later", stored=False, claim=None)))
        assert (type(error), error.reason) == (IllegalMove, "not_stored")

    async def test_a_turn_that_is_not_stored_reads_a_branch_and_does_not_occupy_it(self, alice: Actor) -> None:
        conversation = await alice.opens_conversation("one")
        active = (await alice.asks(conversation, "two")).run
        aside = (await alice.asks(conversation, "aside", stored=False, policy="reject")).run
        assert (aside.status, aside.branch, aside.conversation) == ("in_progress", conversation, conversation)
        assert (aside.in_lo, aside.in_hi, aside.out_hi) == (2, 2, 2)
        await alice.answers(aside, "unseen", status="failed")
        branch = await alice.store.branch(alice.scope, conversation)
        assert (branch.active_run, branch.tail, branch.last_run) == (active.id, 2, NIL)
        assert await alice.marks(conversation) == [("one", ""), ("two", "")]

    async def test_a_turn_that_is_not_stored_sees_the_past_of_its_previous_response(self, alice: Actor) -> None:
        first = await self.answered(alice, text="a")
        await self.answered(alice, first, "b")
        aside = await alice.follows(first, "aside", stored=False)
        assert (aside.forked, aside.run.branch) == (False, first.branch)
        assert (aside.run.in_lo, aside.run.in_hi, aside.run.out_hi) == (first.out_hi,) * 3

    async def test_a_turn_needs_a_place_unless_it_is_not_stored(self, alice: Actor) -> None:
        turn = AcceptTurn(run=alice.new_id(), agent="clerk", owner="alice", subject="someone")
        assert isinstance(await refusal(alice.does(turn)), NotFound)
