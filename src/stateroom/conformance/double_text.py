"""Double texting: what becomes of a turn while another is active on its branch, and of that other one (R3, P17)."""

from __future__ import annotations

import asyncio

import pytest

from stateroom.conformance.kit import OTHER_WORKER, WORKER, Actor, facts, refusal, row, turn_key
from stateroom.conformance.steps import step
from stateroom.conformance.suite import Suite
from stateroom.errors import Busy, Conflict, IllegalMove, Known
from stateroom.ids import NIL
from stateroom.limits import QUEUE_LOOK_MS
from stateroom.principal import operator, own
from stateroom.run.model import Accepted, Claimed, DoubleText, Run, RunQuery
from stateroom.wire import json

POLICIES: tuple[DoubleText, ...] = ("enqueue", "reject", "merge", "latest", "interrupt", "parallel")


class DoubleTextPromises(Suite):
    async def sends(self, actor: Actor, run: Run, text: str, *, policy: DoubleText, **fields: object) -> Accepted:
        """A turn on the conversation of `run`."""
        ends = (row("ended"),)
        return await actor.asks(run.conversation, text, policy=policy, fork=actor.new_id(), dropped_rows=ends, **fields)

    async def busy(self, alice: Actor, **fields: object) -> Run:
        return (await alice.asks(await alice.opens_conversation("before"), "one", **fields)).run

    async def asleep(self, alice: Actor) -> Run:
        """One that waits for an answer."""
        run = await self.busy(alice)
        return await alice.pauses(run, alice.question(run, until=alice.store.now() + 1_000))

    async def order(self, alice: Actor, conversation: bytes) -> list[str]:
        """The record when everything that waits has run, one after the other."""
        while True:
            rows = await alice.store.runs(alice.scope, RunQuery(conversation=conversation, status="queued", limit=100))
            if not rows:
                return await alice.reads(conversation)
            for run in rows:
                if isinstance(claimed := await claimed_or_refused(alice, run), Claimed):
                    await alice.answers(claimed.run, "ok")

    def superseded_by(self, old: Run, new: Run) -> bool:
        error = json.decode_trusted(old.error)
        return (error["code"], error["by"]) == ("superseded", new.id.hex())

    # ── nobody there ────────────────────────────────────────────────────────────────────────────────────────────────

    @pytest.mark.parametrize("policy", POLICIES)
    async def test_R3_on_an_idle_branch_every_turn_starts_at_once(self, alice: Actor, policy: DoubleText) -> None:
        done = await self.busy(alice)
        await alice.answers(done, "1")
        accepted = await self.sends(alice, done, "two", policy=policy)
        assert (accepted.run.status, accepted.forked, accepted.interrupted, accepted.run.merge) == (
            "in_progress", False, NIL, False,
        )  # fmt: skip
        assert await alice.reads(done.branch) == ["before", "one", "1", "two"]

    # ── reject, enqueue ─────────────────────────────────────────────────────────────────────────────────────────────

    async def test_R3_reject_names_the_active_run_and_writes_nothing(self, alice: Actor) -> None:
        for run in (await self.busy(alice), await self.asleep(alice), await alice.requeues(await self.busy(alice))):
            error = await refusal(self.sends(alice, run, "two", policy="reject"))
            assert facts(error) == (Busy, "conversation_busy", {"run": run.id})
            assert await alice.store.runs(alice.scope, RunQuery(conversation=run.conversation)) == [await alice.run(run)]

    async def test_R3_enqueue_keeps_the_order(self, alice: Actor) -> None:
        run = await self.busy(alice)
        for text in ("two", "three"):
            assert (await self.sends(alice, run, text, policy="enqueue")).run.status == "queued"
        await alice.answers(run, "1")
        assert await self.order(alice, run.conversation) == ["before", "one", "1", "two", "ok", "three", "ok"]

    # ── latest ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_R3_latest_drops_what_waits_and_leaves_the_active_one(self, alice: Actor) -> None:
        run = await self.busy(alice)
        waiting = [(await alice.asks(run.conversation, text)).run for text in ("two", "three")]
        newest = await self.sends(alice, run, "four", policy="latest", queue_max=2)
        assert (newest.run.status, newest.interrupted) == ("queued", NIL)
        for dropped in [await alice.run(one) for one in waiting]:
            assert (dropped.status, dropped.head) == ("cancelled", 1)
            assert self.superseded_by(dropped, newest.run)
            assert [entry.kind for entry in await alice.log(dropped)] == ["ended"]
        assert await alice.run(run) == run
        await alice.answers(run, "1")
        assert await self.order(alice, run.conversation) == ["before", "one", "two", "three", "1", "four", "ok"]
        marks = dict(await alice.marks(run.branch))
        assert (marks["two"], marks["three"], marks["four"]) == ("not_run", "not_run", "")

    async def test_R3_latest_starts_at_once_when_only_waiting_turns_were_in_its_way(self, alice: Actor) -> None:
        conversation = await alice.opens_conversation()
        waiting = (await alice.asks(conversation, "one", claim=None)).run
        newest = await self.sends(alice, waiting, "two", policy="latest")
        assert newest.run.status == "in_progress"
        branch = await alice.store.branch(alice.scope, conversation)
        assert (branch.active_run, branch.queued) == (newest.run.id, 0)
        assert await alice.marks(conversation) == [("one", "not_run"), ("two", "")]

    async def test_R3_latest_never_drops_what_had_begun(self, alice: Actor) -> None:
        lost = await alice.requeues(await self.busy(alice))
        newest = await self.sends(alice, lost, "two", policy="latest")
        assert (newest.run.status, (await alice.run(lost)).status) == ("queued", "queued")
        assert await self.order(alice, lost.conversation) == ["before", "one", "ok", "two", "ok"]

    # ── interrupt ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_R3_interrupt_asks_the_active_run_to_end_and_goes_first(self, alice: Actor, beside: Actor) -> None:
        run = await self.busy(alice)
        second = (await alice.asks(run.conversation, "two")).run
        newest = await self.sends(beside, run, "three", policy="interrupt")
        assert (newest.run.status, newest.interrupted) == ("queued", run.id)
        asked = await alice.run(run)
        assert (asked.status, asked.cancel_at) == ("cancelling", alice.store.now())
        assert self.superseded_by(asked, newest.run)
        finished = await alice.answers(run, "half", status="cancelled", keep_input=True, next=WORKER)
        assert finished.next is not None
        assert finished.next.run.id == newest.run.id, "before the one that waited longer"
        await alice.answers(finished.next.run, "3")
        assert (await alice.run(second)).status == "queued"
        assert await self.order(alice, run.conversation) == ["before", "one", "half", "three", "3", "two", "ok"]
        assert {mark for _, mark in await alice.marks(run.branch)} == {""}, "both messages stay in the window"
        assert (await alice.run(run)).status == "cancelled"

    async def test_R3_interrupt_goes_before_any_number_of_others(self, alice: Actor) -> None:
        run = await self.busy(alice)
        for text in ("a", "b"):
            await self.sends(alice, run, text, policy="enqueue")
        for text in ("x", "y"):
            await self.sends(alice, run, text, policy="interrupt")
        await alice.answers(run, status="cancelled", keep_input=True)
        order = [text for text in await self.order(alice, run.conversation) if text != "ok"]
        assert order == ["before", "one", "y", "x", "a", "b"]

    async def test_R10_interrupt_ends_a_waiting_run_at_once_and_starts(self, alice: Actor) -> None:
        run = await self.asleep(alice)
        second = (await alice.asks(run.conversation, "two")).run
        newest = await self.sends(alice, run, "three", policy="interrupt")
        assert (newest.run.status, newest.run.fence, newest.interrupted) == ("in_progress", 1, NIL)
        ended = await alice.run(run)
        assert (ended.status, ended.head) == ("cancelled", 1)
        assert self.superseded_by(ended, newest.run)
        assert [action.status for action in await alice.actions(run)] == ["closed"]
        assert await alice.due("action", alice.store.now() + 10_000) == []
        branch = await alice.store.branch(alice.scope, run.branch)
        assert (branch.active_run, branch.queued) == (newest.run.id, 1)
        await alice.answers(newest.run, "3")
        assert (await alice.claims(second)).run.status == "in_progress"
        assert await alice.marks(run.branch) == [("before", ""), ("one", ""), ("three", ""), ("3", ""), ("two", "")]

    async def test_R3_interrupt_ends_a_run_that_waits_to_go_on(self, alice: Actor) -> None:
        lost = await alice.requeues(await self.busy(alice))
        newest = await self.sends(alice, lost, "two", policy="interrupt")
        assert (newest.run.status, (await alice.run(lost)).status) == ("in_progress", "cancelled")
        assert await alice.marks(lost.branch) == [("before", ""), ("one", ""), ("two", "")]

    async def test_R3_interrupt_without_anything_active_waits_behind_the_others(self, alice: Actor) -> None:
        waiting = (await alice.asks(await alice.opens_conversation(), "one", claim=None)).run
        newest = await self.sends(alice, waiting, "two", policy="interrupt")
        assert (newest.run.status, newest.interrupted) == ("queued", NIL)
        assert await self.order(alice, waiting.conversation) == ["one", "ok", "two", "ok"]

    async def test_P14_the_same_interrupt_again_interrupts_nobody(self, alice: Actor) -> None:
        run = await self.busy(alice)
        newest = await self.sends(alice, run, "two", policy="interrupt", key=turn_key("k"))
        third = await self.sends(alice, run, "three", policy="enqueue")
        before = [await alice.run(one) for one in (run, newest.run, third.run)]
        for policy in POLICIES:
            known = await refusal(self.sends(alice, run, "two", policy=policy, key=turn_key("k")))
            assert isinstance(known, Known)
            assert known.ref == newest.run.id
        assert [await alice.run(one) for one in (run, newest.run, third.run)] == before

    async def test_R3_a_full_queue_interrupts_nobody(self, alice: Actor) -> None:
        run = await self.busy(alice)
        await self.sends(alice, run, "two", policy="enqueue")
        error = await refusal(self.sends(alice, run, "three", policy="interrupt", queue_max=1))
        assert (type(error), error.reason) == (Busy, "queue_full")
        assert await alice.run(run) == run

    async def test_R8_P28_nobody_interrupts_or_drops_what_they_do_not_see(self, alice: Actor) -> None:
        olga = Actor(alice.store, operator("acme", "olga"))
        hers = (await olga.asks(await alice.opens_conversation("before"), "hers")).run
        waiting = (await self.sends(olga, hers, "also hers", policy="enqueue")).run
        policies: tuple[DoubleText, ...] = ("interrupt", "latest")
        for policy in policies:
            accepted = await self.sends(alice, hers, policy, policy=policy)
            assert (accepted.run.status, accepted.interrupted) == ("queued", NIL)
        assert [(await olga.run(run)).status for run in (hers, waiting)] == ["in_progress", "queued"]

    async def test_R3_of_racing_interrupts_every_one_runs_or_waits(self, alice: Actor, beside: Actor) -> None:
        run = await self.busy(alice)
        acts = [self.sends(actor, run, f"{n}", policy="interrupt") for n in range(3) for actor in (alice, beside)]
        runs = [accepted.run for accepted in await asyncio.gather(*acts)]
        assert {one.status for one in runs} == {"queued"}
        assert (await alice.run(run)).status == "cancelling"
        await alice.answers(run, status="cancelled", keep_input=True)
        record = await self.order(alice, run.conversation)
        assert sorted(text for text in record if text != "ok") == sorted(["before", "one", *(f"{n}" for n in (0, 0, 1, 1, 2, 2))])

    # ── parallel ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_P17_parallel_forks_before_the_active_input(self, alice: Actor) -> None:
        for run in (await self.busy(alice), await self.asleep(alice), await alice.requeues(await self.busy(alice))):
            beside = await self.sends(alice, run, "aside", policy="parallel")
            assert (beside.run.status, beside.forked, beside.interrupted) == ("in_progress", True, NIL)
            assert (beside.run.conversation, beside.run.in_lo) == (run.conversation, 1)
            assert beside.run.branch not in (run.branch, NIL)
            assert await alice.reads(beside.run.branch) == ["before", "aside"], "no question without its answer"
            await alice.answers(beside.run, "2")
            assert await alice.reads(run.branch) == ["before", "one"]
            assert await alice.run(run) == run

    async def test_P17_parallel_forks_at_the_tail_when_nothing_has_begun(self, alice: Actor) -> None:
        waiting = (await alice.asks(await alice.opens_conversation("before"), "one", claim=None)).run
        beside = await self.sends(alice, waiting, "aside", policy="parallel")
        assert await alice.reads(beside.run.branch) == ["before", "aside"]

    async def test_R3_parallel_turns_go_beside_each_other_in_any_number(self, alice: Actor, beside: Actor) -> None:
        run = await self.busy(alice)
        acts = [self.sends(actor, run, f"{n}", policy="parallel", queue_max=1) for n in range(3) for actor in (alice, beside)]
        made = [accepted.run for accepted in await asyncio.gather(*acts)]
        assert {one.status for one in made} == {"in_progress"}
        assert len({run.branch, *(one.branch for one in made)}) == 7

    # ── merge ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_P17_merge_joins_the_active_run_at_its_next_step(self, alice: Actor, beside: Actor) -> None:
        run = await self.busy(alice)
        joining = [
            (await self.sends(beside, run, text, policy="merge", deadline_at=alice.store.now() + 5)).run
            for text in ("two", "three")
        ]
        assert [(one.status, one.merge) for one in joining] == 2 * [("queued", True)]
        assert (await alice.records(run, step("look"))).waiting == 2
        assert await alice.reads(run.branch) == ["before", "one"], "at a step only, never by itself"
        drained = await alice.drains(run)
        assert [json.decode_trusted(draft.body)["content"] for draft in drained.items] == ["two", "three"]
        branch = await alice.store.branch(alice.scope, run.branch)
        assert (drained.runs, drained.tail, drained.revision) == (tuple(one.id for one in joining), 4, branch.revision)
        assert (branch.tail, branch.queued, branch.active_run) == (4, 0, run.id)
        assert (await alice.records(run, step("look", "done"))).waiting == 0
        await alice.answers(run, "1, 2 and 3")
        assert await alice.marks(run.branch) == [(text, "") for text in ("before", "one", "two", "three", "1, 2 and 3")]

    async def test_P10_a_merged_run_has_ended_and_points_to_the_one_that_answers_it(self, alice: Actor) -> None:
        run = await self.busy(alice)
        joining = (
            await self.sends(alice, run, "two", policy="merge", deadline_at=alice.store.now() + 5, queued_rows=(row("queued"),))
        ).run
        self.clock.advance(1)
        await alice.drains(run)
        merged = await alice.run(joining)
        assert (merged.status, merged.merged_into, merged.finished_at) == ("completed", run.id, self.clock.wall_ms())
        assert (merged.in_lo, merged.in_hi, merged.out_hi, merged.fence) == (2, 3, 3, 0)
        assert [entry.kind for entry in await alice.log(merged)] == ["queued", "ended"]
        assert await alice.store.inbox(alice.scope, merged.id) == []
        assert [item.run for item in await alice.items(run.branch, run=merged.id)] == [merged.id]
        now = alice.store.now()
        assert await alice.due("deadline", now + 10_000) == []
        assert await alice.due("lease", now + 10 * WORKER.ms) == [run.id]
        assert isinstance(await refusal(alice.cancels(merged)), IllegalMove)
        assert (await alice.drains(run)).runs == (), "there is nothing more to take in"

    async def test_R3_what_was_not_taken_in_runs_by_itself(self, alice: Actor) -> None:
        run = await self.busy(alice)
        late = (await self.sends(alice, run, "two", policy="merge")).run
        finished = await alice.answers(run, "1", next=WORKER)
        assert finished.next is not None
        assert (finished.next.run.id, finished.next.run.merged_into) == (late.id, NIL)
        await alice.answers(finished.next.run, "2")
        assert await alice.reads(run.branch) == ["before", "one", "1", "two", "2"]

    async def test_R3_merging_keeps_the_order_of_turns(self, alice: Actor) -> None:
        run = await self.busy(alice)
        await self.sends(alice, run, "two", policy="merge")
        await self.sends(alice, run, "three", policy="enqueue")
        await self.sends(alice, run, "four", policy="merge")
        assert (await alice.records(run, step("look"))).waiting == 1
        assert len((await alice.drains(run)).runs) == 1
        await alice.answers(run, "12")
        third = (await alice.claims((await self.queued(alice, run))[0])).run
        assert len((await alice.drains(third)).runs) == 1
        await alice.answers(third, "34")
        assert await alice.reads(run.branch) == ["before", "one", "two", "12", "three", "four", "34"]

    async def queued(self, alice: Actor, run: Run) -> list[Run]:
        """What waits on the conversation of `run`, first to last."""
        rows = await alice.store.runs(alice.scope, RunQuery(conversation=run.conversation, status="queued"))
        return sorted(rows, key=lambda one: one.queue_no)

    async def test_R3_a_turn_for_another_agent_is_not_taken_in(self, alice: Actor) -> None:
        run = await self.busy(alice)
        await self.sends(alice, run, "two", policy="merge", agent="poet")
        assert (await alice.records(run, step("look"))).waiting == 0
        assert (await alice.drains(run)).runs == ()

    async def test_R8_P28_a_turn_that_its_worker_does_not_see_is_not_taken_in(self, alice: Actor) -> None:
        run = await self.busy(alice)
        olga = Actor(alice.store, operator("acme", "olga"))
        await self.sends(olga, run, "hers", policy="merge")
        assert (await alice.records(run, step("look"))).waiting == 0
        assert (await alice.drains(run)).runs == ()
        assert len((await olga.drains(run)).runs) == 1

    async def test_R10_a_turn_joins_a_run_that_waits_once_it_goes_on(self, alice: Actor) -> None:
        run = await self.asleep(alice)
        joining = (await self.sends(alice, run, "two", policy="merge")).run
        (action,) = await alice.actions(run)
        await alice.resolves(action)
        run = (await alice.claims(run, OTHER_WORKER)).run
        assert (await alice.drains(run)).runs == (joining.id,)
        assert await alice.reads(run.branch) == ["before", "one", "two"]

    async def test_P9_what_was_taken_in_stays_taken_in_when_the_worker_dies(self, alice: Actor) -> None:
        run = await self.busy(alice)
        joining = (await self.sends(alice, run, "two", policy="merge")).run
        await alice.drains(run)
        run = (await alice.claims(await alice.requeues(run))).run
        assert (await alice.drains(run)).runs == ()
        assert (await alice.run(joining)).merged_into == run.id
        assert await alice.reads(run.branch) == ["before", "one", "two"]

    async def test_P12_a_turn_that_waits_to_be_merged_can_be_cancelled(self, alice: Actor) -> None:
        run = await self.busy(alice)
        joining = (await self.sends(alice, run, "two", policy="merge")).run
        assert (await alice.cancels(joining)).status == "cancelled"
        assert (await alice.drains(run)).runs == ()
        assert await alice.marks(run.branch) == [("before", ""), ("one", ""), ("two", "not_run")]

    async def test_a_run_that_is_not_stored_takes_nobody_in(self, alice: Actor) -> None:
        run = await self.busy(alice)
        aside = (await alice.asks(run.conversation, "aside", stored=False)).run
        await self.sends(alice, run, "two", policy="merge")
        assert (await alice.records(aside, step("look"))).waiting == 0
        assert isinstance(await refusal(alice.drains(aside)), IllegalMove)

    # ── what waits ──────────────────────────────────────────────────────────────────────────────────────────────────

    @pytest.mark.parametrize("policy", ["enqueue", "merge", "latest", "interrupt"])
    async def test_P9_whatever_waits_is_looked_after_soon(self, alice: Actor, policy: DoubleText) -> None:
        run = await self.busy(alice)
        waiting = (await self.sends(alice, run, "two", policy=policy)).run
        assert await alice.due("lease", alice.store.now() + QUEUE_LOOK_MS) == [waiting.id]
        assert len(await alice.store.inbox(alice.scope, waiting.id)) == 1

    @pytest.mark.parametrize("policy", POLICIES)
    async def test_P28_a_stranger_texts_nobody_twice(self, alice: Actor, policy: DoubleText) -> None:
        run = await self.busy(alice)
        for scope in (operator("other"), own("acme", "bob")):
            error = await refusal(self.sends(Actor(alice.store, scope), run, "x", policy=policy))
            assert facts(error)[1:] == ("not_found", {"facts_kind": "conversation"})
        assert await alice.run(run) == run


async def claimed_or_refused(alice: Actor, run: Run) -> Claimed | Conflict:
    try:
        return await alice.claims(run)
    except Conflict as refused:
        return refused
