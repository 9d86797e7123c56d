"""R10: what a run waits for, who may answer it and once, and what follows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from stateroom.conformance.kit import OTHER_WORKER, WORKER, Actor, facts, refusal, row
from stateroom.conformance.suite import Suite
from stateroom.errors import Conflict, Gone, IllegalMove, NotFound, StaleFence
from stateroom.ids import NIL
from stateroom.limits import LEASE_MS
from stateroom.principal import operator, own
from stateroom.run.model import DeleteRun, Finish, Heartbeat, Log, Requeue, Run, Status
from stateroom.run.steps import Action, ActionQuery, Pause, Policy

Question = Callable[[Run], Action]


def asks_for(actor: Actor, key: str = "ask", **fields: Any) -> Question:
    return lambda run: actor.question(run, key, **fields)


class ActionPromises(Suite):
    async def asking(self, alice: Actor, *questions: Question) -> tuple[Run, list[Action]]:
        """A run that waits, and for what; without questions for one input."""
        run = (await alice.asks(await alice.opens_conversation("before"), "hello")).run
        asked = [question(run) for question in questions] or [alice.question(run)]
        return await alice.pauses(run, *asked), asked

    async def statuses(self, alice: Actor, run: Run) -> list[tuple[str, str]]:
        return [(action.key, action.status) for action in await alice.actions(run)]

    # ── waiting ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_R10_a_paused_run_holds_no_lease_and_keeps_its_branch(self, alice: Actor, beside: Actor) -> None:
        run, _ = await self.asking(alice)
        assert (run.status, run.lease_owner, run.lease_until, run.fence, run.attempt) == ("requires_action", "", 0, 1, 1)
        assert await beside.run(run) == run
        assert (await alice.store.owners(), await alice.store.leased_by(WORKER.owner, 10)) == ([], [])
        assert await alice.due("lease", alice.store.now() + 10 * LEASE_MS) == []
        assert (await alice.store.branch(alice.scope, run.branch)).active_run == run.id

    async def test_R10_what_is_asked_is_kept_in_its_order(self, alice: Actor) -> None:
        run, asked = await self.asking(
            alice,
            asks_for(alice, "b", kind="approval", digest=b"d", body=b'{"why":1}', status="used", by="mallory"),
            asks_for(alice, "a", kind="handoff", queue="support", until=alice.store.now() + 5, policy="fail"),
        )
        at = self.clock.wall_ms()
        assert await alice.actions(run) == [replace(asked[0], at=at, status="pending", by=""), replace(asked[1], at=at)]
        assert await alice.store.actions(alice.scope, ActionQuery(run=run.id, limit=1)) == (await alice.actions(run))[:1]

    async def test_R10_P8_the_worker_that_asked_writes_nothing_any_more(self, alice: Actor) -> None:
        run, _ = await self.asking(alice)
        for write in (
            Heartbeat(run=run.id, fence=run.fence, lease=WORKER),
            Log(run=run.id, fence=run.fence, rows=(row(),)),
            Finish(run=run.id, fence=run.fence, status="completed"),
            Requeue(run=run.id, fence=run.fence, owner_gone=True),
            Pause(run=run.id, fence=run.fence, actions=(alice.question(run, "more"),)),
        ):
            assert isinstance(await refusal(alice.does(write)), StaleFence)
        assert await alice.run(run) == run

    async def test_R10_new_turns_queue_behind_a_waiting_run(self, alice: Actor) -> None:
        run, asked = await self.asking(alice)
        second = (await alice.asks(run.conversation, "two")).run
        assert second.status == "queued"
        assert (await refusal(alice.claims(second))).reason == "not_next"
        again = await alice.resolves(asked[0])
        assert (again.status, again.attempt, again.fence) == ("queued", 1, 1)
        assert (await refusal(alice.claims(second))).reason == "not_next", "the answered run goes on first"
        run = (await alice.claims(again, OTHER_WORKER)).run
        assert (run.fence, run.attempt, run.in_lo, run.in_hi) == (2, 1, 1, 2)
        finished = await alice.answers(run, "hi", next=WORKER)
        assert finished.next is not None
        assert finished.next.run.id == second.id
        assert await alice.reads(run.branch) == ["before", "hello", "hi", "two"], "its input is there once"

    async def test_R10_P9_an_answered_run_is_due_at_once(self, alice: Actor) -> None:
        run, asked = await self.asking(alice)
        await alice.resolves(asked[0])
        assert await alice.due("lease", alice.store.now()) == [run.id]

    async def test_R10_a_run_goes_on_when_everything_is_answered(self, alice: Actor) -> None:
        run, asked = await self.asking(alice, *(asks_for(alice, key) for key in "abc"))
        assert (await alice.resolves(asked[2])).status == "requires_action"
        assert (await alice.resolves(asked[0])).status == "requires_action"
        pending = await alice.store.actions(alice.scope, ActionQuery(run=run.id))
        assert [action.key for action in pending] == ["b"]
        assert (await alice.resolves(asked[1])).status == "queued"

    async def test_R10_a_run_may_ask_again_and_what_was_answered_stays_answered(self, alice: Actor) -> None:
        run, asked = await self.asking(alice)
        await alice.resolves(asked[0], b'{"n":1}')
        run = (await alice.claims(run)).run
        self.clock.wall -= 60_000  # time is no order
        run = await alice.pauses(run, alice.question(run, "ask", until=alice.store.now() + 5), alice.question(run, "more"))
        assert run.status == "requires_action"
        assert await self.statuses(alice, run) == [("ask", "resolved"), ("more", "pending")]
        assert (await alice.actions(run))[0].resolution == b'{"n":1}'
        assert await alice.due("action", alice.store.now() + 10) == [], "a question that was not asked expires never"

    async def test_P9_nobody_waits_for_nothing(self, alice: Actor) -> None:
        run, asked = await self.asking(alice)
        await alice.resolves(asked[0])
        run = (await alice.claims(run)).run
        for actions in ((), (alice.question(run, "ask"),)):
            assert isinstance(await refusal(alice.pauses(run, *actions)), IllegalMove)
        assert await alice.run(run) == run
        assert len(await alice.actions(run)) == 1

    async def test_P11_only_a_stored_run_at_work_can_wait(self, alice: Actor) -> None:
        aside = (await alice.asks(await alice.opens_conversation(), "aside", stored=False)).run
        cancelling = await alice.cancels((await alice.asks(await alice.opens_conversation(), "hello")).run)
        for run in (aside, cancelling):
            assert isinstance(await refusal(alice.pauses(run, alice.question(run))), IllegalMove)
            assert (await alice.run(run), await alice.actions(run)) == (run, [])
        waiting, _ = await self.asking(alice)
        assert facts(await refusal(alice.ends(waiting, "completed"))) == (
            IllegalMove, "illegal_move", {"status": "requires_action", "move": "complete"},
        )  # fmt: skip

    async def test_R4_a_pause_may_tell_the_log(self, alice: Actor) -> None:
        run = (await alice.asks(await alice.opens_conversation(), "hello")).run
        paused = await alice.pauses(run, alice.question(run), rows=(row("asked", 2),))
        assert (paused.head, [entry.kind for entry in await alice.log(run)]) == (2, ["asked"])

    async def test_B1_an_actions_id_is_given_once(self, alice: Actor) -> None:
        _, (known,) = await self.asking(alice)
        other = (await alice.asks(await alice.opens_conversation(), "hello")).run
        error = await refusal(alice.pauses(other, replace(alice.question(other), id=known.id)))
        assert error.reason == "already_exists"
        assert await alice.run(other) == other

    # ── answers ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_R10_P16_the_same_answer_again_is_the_same_and_another_is_refused(self, alice: Actor, beside: Actor) -> None:
        run, (action,) = await self.asking(alice)
        queued = await alice.resolves(action, b'{"size":43}')
        assert await beside.resolves(action, b'{"size":43}') == queued
        error = await refusal(beside.resolves(action, b'{"size":44}'))
        assert facts(error) == (Conflict, "action_resolved", {"by": "alice"})
        boss = Actor(alice.store, operator("acme", "olga"))
        error = await refusal(boss.resolves(action, b'{"size":43}'))
        assert facts(error) == (Conflict, "action_resolved", {"by": "alice"}), "the same words of somebody else"
        (kept,) = await alice.actions(run)
        assert (kept.status, kept.resolution, kept.by) == ("resolved", b'{"size":43}', "alice")
        assert (await alice.run(run)) == queued, "queued once"

    async def test_R10_P16_of_racing_answers_one_counts(self, alice: Actor, beside: Actor) -> None:
        run, (action,) = await self.asking(alice)
        acts = [actor.resolves(action, b'{"n":%d}' % n) for n in range(5) for actor in (alice, beside)]
        done = await asyncio.gather(*acts, return_exceptions=True)
        assert [type(outcome) for outcome in done].count(Run) == 2, "one answer, told twice by the same principal"
        assert [type(outcome) for outcome in done].count(Conflict) == 8
        branch = await alice.store.branch(alice.scope, run.branch)
        assert (branch.active_run, branch.queued) == (NIL, 1)

    async def test_P16_an_approval_counts_for_the_arguments_it_was_asked_with(self, alice: Actor) -> None:
        run, (action,) = await self.asking(alice, asks_for(alice, kind="approval", digest=b"80 euros"))
        for digest in (b"", b"8000 euros"):
            error = await refusal(alice.resolves(action, b'{"approved":true}', digest=digest))
            assert facts(error) == (Conflict, "digest_mismatch", {})
        assert await alice.run(run) == run
        assert (await alice.resolves(action, b'{"approved":true}')).status == "queued"

    async def test_an_answer_other_than_an_approval_needs_no_digest(self, alice: Actor) -> None:
        _, (action,) = await self.asking(alice, asks_for(alice, kind="tool", digest=b"arguments"))
        assert (await alice.resolves(action, digest=b"")).status == "queued"

    async def test_P10_P16_after_the_end_nobody_answers(self, alice: Actor) -> None:
        run, (action,) = await self.asking(alice)
        await alice.cancels(run)
        error = await refusal(alice.resolves(action))
        assert facts(error) == (Gone, "action_expired", {})

    async def test_P28_an_answer_finds_what_this_run_waits_for_and_nothing_else(self, alice: Actor) -> None:
        run, _ = await self.asking(alice)
        _, (other,) = await self.asking(alice)
        unknown = replace(other, id=alice.new_id())
        errors = [await refusal(alice.resolves(action, run=run.id)) for action in (other, unknown)]
        assert [facts(error) for error in errors] == 2 * [(NotFound, "not_found", {"facts_kind": "action"})]
        assert errors[0].message.replace(other.id.hex(), unknown.id.hex()) == errors[1].message

    async def test_R10_P28_strangers_neither_see_nor_answer(self, alice: Actor) -> None:
        run, (action,) = await self.asking(alice, asks_for(alice, kind="handoff", queue="support"))
        for scope in (operator("other"), own("other", "alice"), own("acme", "bob")):
            stranger = Actor(alice.store, scope)
            for act in (stranger.resolves(action), stranger.steps(run), stranger.actions(run)):
                assert facts(await refusal(act)) == (NotFound, "not_found", {"facts_kind": "run"})
            assert await alice.store.actions(scope, ActionQuery(queue="support")) == []
        assert await alice.run(run) == run
        assert (await Actor(alice.store, operator("acme", "olga")).resolves(action)).status == "queued"

    # ── expiry and timers ───────────────────────────────────────────────────────────────────────────────────────────

    async def test_R10_P13_an_action_expires_on_the_stores_clock_only(self, alice: Actor) -> None:
        run, (action,) = await self.asking(alice, asks_for(alice, until=alice.store.now() + 1_000))
        for jump in (3_600_000, -7_200_000):
            self.clock.wall += jump
            assert await alice.due("action", alice.store.now()) == []
            error = await refusal(alice.resolves(action, expired=True))
            assert facts(error) == (Conflict, "not_expired", {"status": "pending"})
        self.clock.advance(1_000)
        (line,) = await alice.store.due("action", alice.store.now(), 10)
        assert (line.kind, line.at, line.tenant, line.id) == ("action", action.until, "acme", action.id)
        assert await alice.store.run_of_action("acme", action.id) == run.id
        assert await alice.store.run_of_action("other", action.id) == NIL
        assert await alice.store.run_of_action("acme", alice.new_id()) == NIL

    async def test_P16_too_late_is_too_late_whether_or_not_anybody_swept(self, alice: Actor) -> None:
        run, (action,) = await self.asking(alice, asks_for(alice, until=alice.store.now() + 1_000))
        self.clock.advance(1_000)
        assert facts(await refusal(alice.resolves(action))) == (Gone, "action_expired", {})
        assert (await alice.resolves(action, expired=True)).status == "queued"
        assert facts(await refusal(alice.resolves(action))) == (Gone, "action_expired", {})
        assert facts(await refusal(alice.resolves(action, expired=True))) == (Conflict, "not_expired", {"status": "expired"})
        assert await self.statuses(alice, run) == [("ask", "expired")]

    async def test_R10_what_is_answered_is_not_due_any_more(self, alice: Actor) -> None:
        _, (action,) = await self.asking(alice, asks_for(alice, until=alice.store.now() + 1_000))
        await alice.resolves(action)
        assert await alice.due("action", alice.store.now() + 10_000) == []
        assert (await refusal(alice.resolves(action, expired=True))).reason == "not_expired"

    async def test_R10_an_action_without_a_time_never_expires(self, alice: Actor) -> None:
        _, (action,) = await self.asking(alice)
        self.clock.advance(10**10)
        assert await alice.due("action", alice.store.now()) == []
        assert (await refusal(alice.resolves(action, expired=True))).reason == "not_expired"

    async def test_R10_deny_goes_on_with_the_answer_that_nobody_answered(self, alice: Actor) -> None:
        until = alice.store.now() + 1_000
        run, asked = await self.asking(alice, asks_for(alice, "a", until=until), asks_for(alice, "b"))
        self.clock.advance(1_000)
        assert (await alice.resolves(asked[0], expired=True)).status == "requires_action", "b is still waited for"
        assert (await alice.resolves(asked[1], b'{"n":1}')).status == "queued"
        resolutions = [(action.status, action.resolution) for action in await alice.actions(run)]
        assert resolutions == [("expired", b'{"expired":true}'), ("resolved", b'{"n":1}')]
        assert (await alice.claims(run)).run.status == "in_progress"

    @pytest.mark.parametrize(("policy", "status"), [("expire", "expired"), ("fail", "failed")])
    async def test_R10_P10_expiry_may_end_the_run_with_everything_that_hangs_on_it(
        self, alice: Actor, policy: Policy, status: str
    ) -> None:
        until = alice.store.now() + 1_000
        run, (action, _) = await self.asking(
            alice,
            asks_for(alice, "a", until=until, policy=policy),
            asks_for(alice, "b", until=until + 1),
        )
        second = (await alice.asks(run.conversation, "two")).run
        self.clock.advance(1_000)
        ended = await alice.resolves(action, expired=True, rows=(row("ended"),))
        assert (ended.status, ended.head, ended.finished_at) == (status, 1, self.clock.wall_ms())
        assert ended.error == b'{"code":"action_expired","message":"Nobody answered in time."}'
        assert await alice.run(run) == ended
        assert await self.statuses(alice, run) == [("a", "expired"), ("b", "closed")]
        assert await alice.due("action", until + 10_000) == []
        assert await alice.marks(run.branch) == [("before", ""), ("hello", "failed")]
        assert (await alice.claims(second)).run.status == "in_progress"

    async def test_R10_a_timer_fires_and_the_run_goes_on(self, alice: Actor) -> None:
        run, (timer,) = await self.asking(
            alice, asks_for(alice, "nap", kind="timer", until=alice.store.now() + 1_000, policy="fail")
        )
        assert (await refusal(alice.resolves(timer, expired=True))).reason == "not_expired"
        self.clock.advance(1_000)
        assert (await alice.resolves(timer, expired=True)).status == "queued"
        assert await self.statuses(alice, run) == [("nap", "resolved")]
        assert await alice.due("action", alice.store.now() + 10_000) == []

    # ── ends ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_P12_a_waiting_run_is_cancelled_at_once_and_nothing_stays_open(self, alice: Actor) -> None:
        run, _ = await self.asking(alice, asks_for(alice, until=alice.store.now() + 1_000))
        ended = await alice.cancels(run)
        assert (ended.status, ended.head) == ("cancelled", 1)
        assert await self.statuses(alice, run) == [("ask", "closed")]
        assert await alice.due("action", alice.store.now() + 10_000) == []
        assert await alice.marks(run.branch) == [("before", ""), ("hello", "failed")]
        assert (await alice.store.branch(alice.scope, run.branch)).active_run == NIL

    @pytest.mark.parametrize("status", ["failed", "cancelled", "expired"])
    async def test_P10_no_end_leaves_anything_to_answer(self, alice: Actor, status: Status) -> None:
        run, (first, _) = await self.asking(alice, asks_for(alice, "a"), asks_for(alice, "b"))
        await alice.resolves(first)
        await alice.ends(run, status)
        assert await self.statuses(alice, run) == [("a", "resolved"), ("b", "closed")]
        assert await alice.store.actions(alice.scope, ActionQuery(run=run.id)) == []

    async def test_what_was_asked_goes_with_the_run(self, alice: Actor) -> None:
        run, (action,) = await self.asking(alice)
        await alice.cancels(run)
        await alice.does(DeleteRun(run=run.id))
        assert isinstance(await refusal(alice.actions(run)), NotFound)
        assert await alice.store.run_of_action("acme", action.id) == NIL

    # ── handoff queues ──────────────────────────────────────────────────────────────────────────────────────────────

    async def test_a_handoff_queue_shows_what_is_pending_oldest_first(self, alice: Actor) -> None:
        runs = []
        for queue in ("support", "sales", "support", "support"):
            run, _ = await self.asking(alice, asks_for(alice, "handoff", kind="handoff", queue=queue))
            runs.append(run)
            self.clock.advance(1)
        await self.asking(alice)

        async def lies_in(queue: str, limit: int = 10) -> list[bytes]:
            found = await alice.store.actions(alice.scope, ActionQuery(queue=queue, limit=limit))
            return [action.run for action in found]

        assert await lies_in("support") == [runs[0].id, runs[2].id, runs[3].id]
        assert await lies_in("support", limit=2) == [runs[0].id, runs[2].id]
        assert await lies_in("") == []
        (first,) = await alice.actions(runs[0])
        await alice.resolves(first)
        await alice.cancels(runs[3])
        assert await lies_in("support") == [runs[2].id]
