"""R2 to R7: fences, leases, recovery, the log, cancelling, and the end of runs."""

from __future__ import annotations

import asyncio

import pytest

from stateroom.conformance.kit import OTHER_WORKER, WORKER, Actor, facts, refusal, row
from stateroom.conformance.suite import Suite
from stateroom.conversation.model import DeleteConversation
from stateroom.errors import Conflict, IllegalMove, NotFound, StaleFence, StateroomError
from stateroom.ids import NIL
from stateroom.limits import LEASE_MS, QUEUE_LOOK_MS
from stateroom.run.model import (
    TERMINAL,
    Accepted,
    Beaten,
    Claim,
    DeleteRun,
    Finish,
    Heartbeat,
    Log,
    Recorded,
    Requeue,
    Run,
    RunQuery,
    Status,
)


class RunPromises(Suite):
    async def working(self, alice: Actor, *before: str) -> Run:
        return (await alice.asks(await alice.opens_conversation(*before), "hello")).run

    # ── fences and leases ───────────────────────────────────────────────────────────────────────────────────────────

    async def test_R2_P8_a_stale_fence_writes_nothing(self, alice: Actor, beside: Actor) -> None:
        old = await self.working(alice)
        new = (await beside.claims(await beside.requeues(old), OTHER_WORKER)).run
        assert new.fence > old.fence
        for write in (
            Heartbeat(run=old.id, fence=old.fence, lease=WORKER),
            Log(run=old.id, fence=old.fence, rows=(row("late"),)),
            Finish(run=old.id, fence=old.fence, status="completed", outputs=(alice.says("late"),)),
            Requeue(run=old.id, fence=old.fence, owner_gone=True),
        ):
            error = await refusal(alice.does(write))
            assert facts(error) == (StaleFence, "stale_fence", {"fence": new.fence, "status": "in_progress"})
        assert await alice.run(old) == new
        assert await alice.reads(old.branch) == ["hello"]
        assert await alice.log(old) == []

    async def test_R2_P8_nobody_writes_under_a_fence_that_was_never_given(self, alice: Actor) -> None:
        run = await self.working(alice)
        for fence in (0, 2, 99):
            beat = alice.does(Heartbeat(run=run.id, fence=fence, lease=WORKER))
            assert isinstance(await refusal(beat), StaleFence)

    async def test_R7_a_heartbeat_prolongs_a_lease_and_never_shortens_it(self, alice: Actor) -> None:
        run = await self.working(alice)
        self.clock.advance(10_000)
        beat = await alice.gets(Beaten, Heartbeat(run=run.id, fence=1, lease=WORKER))
        assert beat == Beaten(lease_until=run.lease_until + 10_000, cancel=False)
        short = Heartbeat(run=run.id, fence=1, lease=type(WORKER)(WORKER.owner, 1))
        assert (await alice.gets(Beaten, short)).lease_until == beat.lease_until
        assert (await alice.run(run)).lease_until == beat.lease_until

    async def test_R7_P13_wall_jumps_do_not_reach_leases(self, alice: Actor) -> None:
        run = await self.working(alice)
        for jump in (3_600_000, -7_200_000):
            self.clock.wall += jump
            error = await refusal(alice.does(Requeue(run=run.id, fence=run.fence)))
            assert facts(error) == (Conflict, "lease_alive", {"lease_until": run.lease_until})
            assert await alice.due("lease", alice.store.now()) == []

    async def test_R7_P13_store_time_never_goes_back(self, alice: Actor, beside: Actor) -> None:
        seen = [alice.store.now()]
        for wall, boot in ((5, 5), (-1_000, 5), (10**9, 0), (-(10**9), 1)):
            self.clock.wall += wall
            self.clock.boot += boot
            seen += [alice.store.now(), beside.store.now()]
        assert seen == sorted(seen)
        assert seen[-1] - seen[0] == 11

    async def test_R7_every_run_that_may_need_recovery_is_due_and_ended_ones_are_not(self, alice: Actor) -> None:
        active = await self.working(alice)
        waiting = (await alice.asks(active.conversation, "two")).run
        aside = (await alice.gets(Accepted, alice.turn("aside", stored=False))).run
        now = alice.store.now()
        assert await alice.due("lease", now + QUEUE_LOOK_MS - 1) == []
        assert await alice.due("lease", now + LEASE_MS - 1) == [waiting.id], "looked after sooner, should nobody hand on to it"
        assert set(await alice.due("lease", now + LEASE_MS)) == {active.id, waiting.id, aside.id}
        assert len(await alice.store.due("lease", now + LEASE_MS, 2)) == 2
        await alice.ends(waiting, "cancelled")
        await alice.answers(aside)
        assert await alice.due("lease", now + LEASE_MS) == [active.id]
        await alice.requeues(active)
        assert await alice.due("lease", now + LEASE_MS) == [active.id]
        claimed = (await alice.claims(active)).run
        self.clock.advance(1_000)
        beat = await alice.gets(Beaten, Heartbeat(run=active.id, fence=claimed.fence, lease=WORKER))
        assert await alice.due("lease", beat.lease_until) == [active.id]
        await alice.answers(claimed)
        assert await alice.due("lease", now + 10 * LEASE_MS) == []

    async def test_R7_leases_can_be_found_by_their_owner(self, alice: Actor) -> None:
        run = await self.working(alice)
        assert await alice.store.owners() == [WORKER.owner]
        (line,) = await alice.store.leased_by(WORKER.owner, 10)
        assert (line.tenant, line.id, line.at) == ("acme", run.id, run.lease_until)
        assert await alice.store.leased_by("nobody", 10) == []
        await alice.answers(run)
        assert (await alice.store.owners(), await alice.store.leased_by(WORKER.owner, 10)) == ([], [])

    # ── recovery ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_P9_a_run_whose_lease_ended_goes_back_to_the_head_of_its_queue(self, alice: Actor) -> None:
        run = await self.working(alice, "before")
        waiting = (await alice.asks(run.conversation, "two")).run
        error = await refusal(alice.does(Requeue(run=run.id, fence=run.fence)))
        assert error.reason == "lease_alive"
        self.clock.advance(WORKER.ms)
        again = await alice.requeues(run, owner_gone=False, rows=(row("attempt_lost"),))
        assert [entry.kind for entry in await alice.log(run)] == ["attempt_lost"]
        assert (again.status, again.attempt, again.lease_owner, again.lease_until) == ("queued", 2, "", 0)
        assert again.fence > run.fence
        branch = await alice.store.branch(alice.scope, run.branch)
        assert (branch.active_run, branch.queued) == (NIL, 2)
        assert (await refusal(alice.claims(waiting))).reason == "not_next"
        second = (await alice.claims(run, OTHER_WORKER)).run
        assert (second.attempt, second.in_lo, second.in_hi) == (2, 1, 2)
        assert await alice.reads(run.branch) == ["before", "hello"], "its input is there once"
        finished = await alice.answers(second, "hi", next=WORKER)
        assert finished.next is not None
        assert finished.next.run.id == waiting.id
        assert await alice.reads(run.branch) == ["before", "hello", "hi", "two"]

    async def test_P9_a_run_can_be_requeued_more_than_once_and_stays_first(self, alice: Actor) -> None:
        run = await self.working(alice)
        waiting = [(await alice.asks(run.conversation, text)).run for text in ("two", "three")]
        for attempt in (2, 3):
            run = (await alice.claims(await alice.requeues(run))).run
            assert run.attempt == attempt
        first = (await alice.answers(run, next=WORKER)).next
        assert first is not None
        back = await alice.requeues(first.run)
        order = []
        for run in (back, waiting[1]):
            order.append((await alice.claims(run)).run)
            await alice.answers(order[-1])
        assert await alice.reads(run.branch) == ["hello", "two", "three"]

    async def test_of_two_recoveries_one_wins(self, alice: Actor, beside: Actor) -> None:
        run = await self.working(alice)
        acts = [actor.requeues(run) for actor in (alice, beside)]
        done = await asyncio.gather(*acts, return_exceptions=True)
        assert {type(outcome) for outcome in done} == {Run, StaleFence}
        assert (await alice.run(run)).attempt == 2

    async def test_a_requeued_run_that_ends_keeps_its_input_where_it_is(self, alice: Actor) -> None:
        run = await alice.requeues(await self.working(alice))
        await alice.appends(run.branch, "aside")
        ended = (await alice.ends(run, "failed")).run
        assert (ended.in_lo, ended.in_hi, ended.out_hi) == (0, 1, 2)
        assert await alice.marks(run.branch) == [("hello", "failed"), ("aside", "")]

    async def test_a_run_that_is_not_stored_or_to_be_cancelled_is_not_requeued(self, alice: Actor) -> None:
        aside = (await alice.gets(Accepted, alice.turn("aside", stored=False))).run
        cancelling = await alice.cancels(await self.working(alice))
        for run in (aside, cancelling):
            assert isinstance(await refusal(alice.requeues(run)), IllegalMove)
            assert await alice.run(run) == run

    # ── the log ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_R4_P3_wire_numbers_are_dense_from_one(self, alice: Actor, beside: Actor) -> None:
        accepted = await alice.asks(await alice.opens_conversation(), "hello", claimed_rows=(row("a"), row("b", 2)))
        run = accepted.run
        recorded = await alice.gets(Recorded, Log(run=run.id, fence=1, rows=(row("c", 5, b"delta"), row("d"))))
        assert recorded == Recorded(first=4, head=9, cancel=False)
        await alice.answers(run, rows=(row("e"),))
        entries = await beside.log(run)
        assert [(entry.kind, entry.first, entry.count) for entry in entries] == [
            ("a", 1, 1), ("b", 2, 2), ("c", 4, 5), ("d", 9, 1), ("e", 10, 1),
        ]  # fmt: skip
        assert entries[2].body == b"delta"
        assert (await beside.run(run)).head == 10
        assert await beside.store.heads(beside.scope, [run.id, alice.new_id()]) == {run.id: (10, True)}

    async def test_R4_a_log_is_read_from_any_cursor(self, alice: Actor) -> None:
        run = await self.working(alice)
        await alice.does(Log(run=run.id, fence=1, rows=tuple(row(kind, count=3) for kind in "abcd")))
        firsts = {after: [entry.kind for entry in await alice.log(run, after=after)] for after in (0, 2, 3, 4, 11, 12)}
        assert firsts == {0: [*"abcd"], 2: [*"abcd"], 3: [*"bcd"], 4: [*"bcd"], 11: ["d"], 12: []}
        assert [entry.kind for entry in await alice.log(run, after=3, limit=2)] == ["b", "c"]

    # ── cancelling ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_P12_a_queued_run_ends_at_once(self, alice: Actor) -> None:
        active = await self.working(alice)
        waiting = (await alice.asks(active.conversation, "never")).run
        ended = await alice.cancels(waiting)
        assert (ended.status, ended.head) == ("cancelled", 1)
        assert [entry.kind for entry in await alice.log(waiting)] == ["ended"]
        assert await alice.marks(active.branch) == [("hello", ""), ("never", "not_run")]
        assert (await alice.store.branch(alice.scope, active.branch)).queued == 0

    async def test_P12_a_run_at_work_is_asked_to_end_and_its_worker_told(self, alice: Actor) -> None:
        run = await self.working(alice)
        asked = await alice.cancels(run)
        assert (asked.status, asked.cancel_at, asked.head) == ("cancelling", alice.store.now(), 0)
        self.clock.advance(10)
        assert await alice.cancels(run) == asked, "asking twice is asking once"
        assert (await alice.gets(Beaten, Heartbeat(run=run.id, fence=1, lease=WORKER))).cancel
        assert (await alice.gets(Recorded, Log(run=run.id, fence=1, rows=(row(),)))).cancel
        ended = (await alice.answers(run, "half", status="cancelled")).run
        assert ended.status == "cancelled"
        assert await alice.marks(run.branch) == [("hello", "failed"), ("half", "")]

    async def test_P12_a_requeued_run_can_be_cancelled(self, alice: Actor) -> None:
        run = await alice.requeues(await self.working(alice))
        assert (await alice.cancels(run)).status == "cancelled"
        assert await alice.marks(run.branch) == [("hello", "failed")]
        assert (await alice.store.branch(alice.scope, run.branch)).queued == 0

    @pytest.mark.parametrize("status", ["completed", "incomplete", "failed", "cancelled", "expired"])
    async def test_P10_terminal_is_final(self, alice: Actor, status: Status) -> None:
        run = await self.working(alice)
        ended = (await alice.answers(run, "hi", status=status)).run
        assert ended.ended
        refused: list[tuple[StateroomError, type[StateroomError]]] = []
        for other in sorted(TERMINAL):
            refused.append((await refusal(alice.ends(run, other)), IllegalMove))  # type: ignore[arg-type]
            refused.append((await refusal(alice.answers(run, "again", status=other)), StaleFence))  # type: ignore[arg-type]
        refused.append((await refusal(alice.cancels(run)), IllegalMove))
        refused.append((await refusal(alice.claims(run)), IllegalMove))
        refused.append((await refusal(alice.does(Log(run=run.id, fence=1, rows=(row(),)))), StaleFence))
        refused.append((await refusal(alice.requeues(run)), StaleFence))
        assert [type(error) for error, _ in refused] == [kind for _, kind in refused]
        assert await alice.run(run) == ended
        assert await alice.reads(run.branch) == ["hello", "hi"]

    async def test_P10_a_run_ends_in_a_terminal_status_only(self, alice: Actor) -> None:
        run = await self.working(alice)
        for status in ("queued", "in_progress", "requires_action", "cancelling"):
            assert isinstance(await refusal(alice.answers(run, status=status)), IllegalMove)
        assert await alice.run(run) == run

    async def test_P11_moves_that_the_machine_does_not_know_are_refused(self, alice: Actor) -> None:
        active = await self.working(alice)
        waiting = (await alice.asks(active.conversation, "two")).run
        assert facts(await refusal(alice.ends(waiting, "completed"))) == (
            IllegalMove, "illegal_move", {"status": "queued", "move": "complete"},
        )  # fmt: skip
        assert isinstance(await refusal(alice.does(Claim(run=active.id, lease=WORKER))), IllegalMove)
        assert isinstance(await refusal(alice.requeues(waiting)), StaleFence)

    # ── lists and deletion ──────────────────────────────────────────────────────────────────────────────────────────

    async def test_runs_are_listed_newest_first_by_conversation_and_status(self, alice: Actor) -> None:
        conversation = await alice.opens_conversation()
        made = []
        for text in "abc":
            made.append((await alice.asks(conversation, text)).run.id)
            self.clock.advance(1)
        other = (await self.working(alice)).id

        async def listed(**query: object) -> list[bytes]:
            return [run.id for run in await alice.store.runs(alice.scope, RunQuery(**query))]  # type: ignore[arg-type]

        assert await listed() == [other, *reversed(made)]
        assert await listed(limit=2) == [other, made[2]]
        assert await listed(after=made[2]) == [made[1], made[0]]
        assert await listed(conversation=conversation, status="queued") == [made[2], made[1]]
        assert await listed(conversation=alice.new_id()) == []

    async def test_a_deleted_run_is_gone_and_its_items_stay_in_the_conversation(self, alice: Actor) -> None:
        run = await self.working(alice)
        error = await refusal(alice.does(DeleteRun(run=run.id)))
        assert (type(error), error.reason) == (Conflict, "run_active")
        await alice.answers(run, "hi", rows=(row(),))
        await alice.does(DeleteRun(run=run.id))
        for act in (alice.run(run), alice.log(run), alice.store.inbox(alice.scope, run.id), alice.does(DeleteRun(run=run.id))):
            assert isinstance(await refusal(act), NotFound)
        assert await alice.store.runs(alice.scope, RunQuery()) == []
        assert await alice.store.heads(alice.scope, [run.id]) == {}
        assert await alice.reads(run.branch) == ["hello", "hi"]

    async def chain(self, alice: Actor, *texts: str) -> list[Run]:
        """Answered turns, each following the one before."""
        run = (await alice.asks(await alice.opens_conversation(kind="chain"), texts[0])).run
        runs = [(await alice.answers(run, texts[0].upper())).run]
        for text in texts[1:]:
            run = (await alice.follows(runs[-1], text)).run
            runs.append((await alice.answers(run, text.upper())).run)
        return runs

    async def test_items_of_a_chain_go_with_its_newest_response(self, alice: Actor) -> None:
        _, newest = await self.chain(alice, "a", "b")
        revision = (await alice.store.branch(alice.scope, newest.branch)).revision
        await alice.does(DeleteRun(run=newest.id))
        assert await alice.reads(newest.branch) == ["a", "A"]
        assert (await alice.store.branch(alice.scope, newest.branch)).revision > revision

    async def test_a_run_goes_with_its_conversation(self, alice: Actor) -> None:
        _, newest = await self.chain(alice, "a", "b")
        await alice.does(DeleteConversation(conversation=newest.conversation))
        assert isinstance(await refusal(alice.run(newest)), NotFound)
        assert isinstance(await refusal(alice.log(newest)), NotFound)

    async def test_items_of_a_chain_stay_while_a_later_response_shows_them(self, alice: Actor) -> None:
        first, second = await self.chain(alice, "a", "b")
        await alice.does(DeleteRun(run=first.id))
        assert await alice.reads(second.branch) == ["a", "A", "b", "B"]

    async def test_items_of_a_chain_stay_while_a_fork_shows_them(self, alice: Actor) -> None:
        first, second = await self.chain(alice, "a", "b")
        fork = await alice.forks(first.branch, 3)
        await alice.does(DeleteRun(run=second.id))
        assert await alice.reads(first.branch) == ["a", "A", "b", "B"]
        assert await alice.reads(fork) == ["a", "A", "b"]
