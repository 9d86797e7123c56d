"""Deadlines of runs, and what becomes of the log of one that ended long ago (P4, P6, P10, P13)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from stateroom.conformance.kit import Actor, facts, refusal, row, turn_key
from stateroom.conformance.suite import Suite
from stateroom.errors import Conflict, IllegalMove, NotFound, StaleFence
from stateroom.run.model import Accepted, DeleteRun, Log, Run
from stateroom.run.steps import Compact

ALWAYS = 10**9


class LifetimePromises(Suite):
    async def begun(self, alice: Actor, **fields: object) -> Run:
        return (await alice.asks(await alice.opens_conversation(), "hello", **fields)).run

    async def in_status(self, alice: Actor, status: str) -> Run:
        """A run with a deadline in 1,000 ms."""
        conversation, at = await alice.opens_conversation(), alice.store.now() + 1_000
        if status == "queued":
            await alice.asks(conversation, "first")
        run = (await alice.asks(conversation, "hello", deadline_at=at)).run
        if status == "requires_action":
            await alice.pauses(run, alice.question(run))
        if status == "cancelling":
            await alice.cancels(run)
        return await alice.run(run)

    # ── deadlines ───────────────────────────────────────────────────────────────────────────────────────────────────

    @pytest.mark.parametrize("status", ["queued", "in_progress", "requires_action", "cancelling"])
    async def test_P9_P12_a_deadline_ends_a_run_in_every_state(self, alice: Actor, status: str) -> None:
        run = await self.in_status(alice, status)
        assert (run.status, run.deadline_at) == (status, alice.store.now() + 1_000)
        assert await alice.due("deadline", run.deadline_at - 1) == []
        (line,) = await alice.store.due("deadline", run.deadline_at, 10)
        assert (line.at, line.tenant, line.id) == (run.deadline_at, "acme", run.id)
        ended = (await alice.ends(run, "expired", rows=(row("ended"),))).run
        assert (ended.status, ended.head, ended.lease_owner) == ("expired", 1, "")
        assert await alice.due("deadline", run.deadline_at + ALWAYS) == []
        assert {action.status for action in await alice.actions(run)} <= {"closed"}
        if status in ("in_progress", "cancelling"):
            assert isinstance(await refusal(alice.answers(run, "late")), StaleFence)

    async def test_P10_whatever_ends_a_run_ends_its_deadline(self, alice: Actor) -> None:
        answered, cancelled = await self.in_status(alice, "in_progress"), await self.in_status(alice, "requires_action")
        aside = (await alice.gets(Accepted, alice.turn("aside", stored=False, deadline_at=alice.store.now() + 1_000))).run
        assert set(await alice.due("deadline", answered.deadline_at)) == {answered.id, cancelled.id, aside.id}
        await alice.answers(answered, "hi")
        await alice.cancels(cancelled)
        await alice.answers(aside)
        assert await alice.due("deadline", answered.deadline_at) == []

    async def test_P9_a_deadline_outlives_attempts_and_pauses(self, alice: Actor) -> None:
        run = await self.in_status(alice, "requires_action")
        (action,) = await alice.actions(run)
        await alice.resolves(action)
        run = await alice.requeues((await alice.claims(run)).run)
        assert await alice.due("deadline", run.deadline_at) == [run.id]

    async def test_P13_wall_jumps_do_not_reach_deadlines(self, alice: Actor) -> None:
        run = await self.in_status(alice, "in_progress")
        self.clock.wall += 86_400_000
        assert await alice.due("deadline", alice.store.now()) == []
        self.clock.advance(1_000)
        self.clock.wall -= 2 * 86_400_000
        assert await alice.due("deadline", alice.store.now()) == [run.id]

    async def test_a_run_without_a_deadline_has_none(self, alice: Actor) -> None:
        run = await self.begun(alice)
        assert run.deadline_at == 0
        assert await alice.due("deadline", alice.store.now() + ALWAYS) == []

    async def test_P14_a_run_tells_the_key_its_caller_gave(self, alice: Actor) -> None:
        keys = (turn_key("mine"), turn_key("made up", renew_before=1))
        runs = [await self.begun(alice, key=key) for key in keys]
        assert [run.key for run in runs] == ["mine", ""], "one that was made up for a retry is nobody's"

    # ── compaction ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def told(self, alice: Actor, *, compact_ms: int = 1_000) -> Run:
        """An answered run with a log of some length."""
        run = await self.begun(alice, claimed_rows=(row("opened", 2),))
        await alice.does(Log(run=run.id, fence=run.fence, rows=tuple(row("delta", body=b"%d" % n) for n in range(5))))
        return (await alice.answers(run, "hi", rows=(row("end"),), compact_ms=compact_ms)).run

    async def compacts(self, alice: Actor, run: Run, *kinds: str) -> Run:
        await alice.does(Compact(run=run.id, rows=tuple(row(kind, 2) for kind in kinds)))
        return await alice.run(run)

    async def test_P10_an_ended_runs_log_is_due_to_be_compacted_when_it_was_asked(self, alice: Actor) -> None:
        run = await self.told(alice)
        await self.told(alice, compact_ms=0)
        at = alice.store.now() + 1_000
        assert await alice.due("compact", at - 1) == []
        lines = await alice.store.due("compact", at + ALWAYS, 10)
        assert [(line.at, line.tenant, line.id) for line in lines] == [(at, "acme", run.id)]

    async def test_P6_compaction_starts_another_epoch_with_a_dense_log(self, alice: Actor, beside: Actor) -> None:
        run = await self.told(alice)
        assert (run.epoch, run.head) == (0, 8)
        after = await self.compacts(alice, run, "opened", "end")
        assert (after.epoch, after.head) == (1, 4)
        assert after == replace(run, epoch=1, head=4), "nothing else of the run changed"
        entries = await beside.log(run)
        assert [(entry.kind, entry.first, entry.count, entry.body) for entry in entries] == [
            ("opened", 1, 2, b""), ("end", 3, 2, b""),
        ]  # fmt: skip
        assert await beside.store.heads(beside.scope, [run.id]) == {run.id: (4, True)}
        assert await alice.due("compact", alice.store.now() + ALWAYS) == []
        assert await alice.reads(run.branch) == ["hello", "hi"]

    async def test_P6_every_compaction_is_an_epoch_of_its_own(self, alice: Actor) -> None:
        run = await self.told(alice)
        await self.compacts(alice, run, "a", "b")
        assert (await self.compacts(alice, run)).epoch == 2
        assert await alice.log(run) == []

    async def test_P4_a_log_that_is_still_written_is_not_compacted(self, alice: Actor) -> None:
        run = await self.begun(alice, claimed_rows=(row("opened", 2),))
        waiting = await alice.pauses(await self.begun(alice), alice.question(run))
        for active in (run, waiting):
            error = await refusal(self.compacts(alice, active, "end"))
            assert facts(error) == (Conflict, "run_active", {"status": active.status})
        assert [entry.kind for entry in await alice.log(run)] == ["opened"]

    async def test_P10_a_compacted_run_is_as_final_as_before(self, alice: Actor) -> None:
        run = await self.compacts(alice, await self.told(alice), "end")
        assert isinstance(await refusal(alice.cancels(run)), IllegalMove)
        assert isinstance(await refusal(alice.does(Log(run=run.id, fence=run.fence, rows=(row(),)))), StaleFence)
        assert await alice.run(run) == run

    async def test_a_deleted_run_is_not_due_any_more(self, alice: Actor) -> None:
        run = await self.told(alice)
        await alice.does(DeleteRun(run=run.id))
        assert await alice.due("compact", alice.store.now() + ALWAYS) == []
        assert isinstance(await refusal(self.compacts(alice, run, "end")), NotFound)
