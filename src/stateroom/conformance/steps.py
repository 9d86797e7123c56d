"""R9: steps of a run, their order and their finality; approvals are spent once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from stateroom.conformance.kit import OTHER_WORKER, Actor, facts, put, refusal, row
from stateroom.conformance.suite import Suite
from stateroom.errors import Conflict, NotFound, StaleFence
from stateroom.run.model import Cancel, DeleteRun, Run
from stateroom.run.steps import ActionKind, Drain, Effect, Pause, RecordSteps, Step, Stepped, StepStatus
from stateroom.session.model import PatchSlots


def step(key: str, status: StepStatus = "intended", *, effect: Effect = "once", **fields: Any) -> Step:
    return Step(key=key, name=key, effect=effect, status=status, digest=b"d" * 32, **fields)


class StepPromises(Suite):
    async def at_work(self, alice: Actor) -> Run:
        return (await alice.asks(await alice.opens_conversation(), "hello", session=alice.new_id())).run

    async def test_R9_P15_an_intent_becomes_a_result(self, alice: Actor, beside: Actor) -> None:
        run = await self.at_work(alice)
        assert await alice.records(run, step("pay")) == Stepped(cancel=False, waiting=0)
        intended = step("pay", at=self.clock.wall_ms())
        assert await beside.steps(run) == [intended]
        self.clock.advance(5)
        await alice.records(run, step("pay", "done", body=b'{"paid":80}'))
        assert await beside.steps(run) == [replace(intended, status="done", body=b'{"paid":80}', at=self.clock.wall_ms())]

    async def test_R9_P15_a_step_that_is_done_stays_done(self, alice: Actor) -> None:
        run = await self.at_work(alice)
        await alice.records(run, step("pay", "done", body=b"1"))
        before = await alice.steps(run)
        for again in ("intended", "done", "failed", "unknown"):
            error = await refusal(alice.records(run, step("other"), step("pay", again, body=b"2"), rows=(row(),)))
            assert facts(error) == (Conflict, "step_done", {"step": "pay"})
        assert await alice.steps(run) == before, "nothing of the batch was written"
        assert await alice.log(run) == []

    @pytest.mark.parametrize("first", ["intended", "failed", "unknown"])
    async def test_R9_P15_what_is_not_done_may_be_tried_again(self, alice: Actor, first: StepStatus) -> None:
        run = await self.at_work(alice)
        await alice.records(run, step("pay", first, body=b"why"))
        await alice.records(run, step("pay", attempt=2))
        assert [(one.status, one.attempt, one.body) for one in await alice.steps(run)] == [("intended", 2, b"")]

    async def test_R9_steps_stand_in_the_order_they_were_first_recorded(self, alice: Actor) -> None:
        run = await self.at_work(alice)
        await alice.records(run, step("c"), step("a"))
        self.clock.wall -= 1_000  # time is no order
        await alice.records(run, step("c", "done"), step("b"))
        await alice.records(run, step("a", "failed"))
        assert [(one.key, one.status) for one in await alice.steps(run)] == [("c", "done"), ("a", "failed"), ("b", "intended")]

    async def test_R9_steps_belong_to_their_run(self, alice: Actor) -> None:
        one, other = await self.at_work(alice), await self.at_work(alice)
        await alice.records(one, step("pay", "done"))
        await alice.records(other, step("pay"))
        assert [found.status for found in await alice.steps(one)] == ["done"]
        assert [found.status for found in await alice.steps(other)] == ["intended"]

    async def test_R9_steps_outlive_the_attempt_and_go_with_the_run(self, alice: Actor) -> None:
        run = await self.at_work(alice)
        await alice.records(run, step("pay", "done"))
        again = (await alice.claims(await alice.requeues(run), OTHER_WORKER)).run
        assert [found.key for found in await alice.steps(again)] == ["pay"]
        await alice.answers(again, "paid")
        assert [found.key for found in await alice.steps(again)] == ["pay"]
        await alice.does(DeleteRun(run=run.id))
        assert isinstance(await refusal(alice.steps(run)), NotFound)

    async def test_R2_P8_P15_a_stale_fence_records_nothing(self, alice: Actor, beside: Actor) -> None:
        old = await self.at_work(alice)
        await alice.records(old, step("pay"))
        new = (await beside.claims(await beside.requeues(old), OTHER_WORKER)).run
        await beside.asks(new.conversation, "join", policy="merge")
        before = await alice.steps(old)
        for write in (
            RecordSteps(run=old.id, fence=old.fence, steps=(step("pay", "done"),), rows=(row("late"),)),
            Pause(run=old.id, fence=old.fence, actions=(alice.question(old),)),
            Drain(run=old.id, fence=old.fence),
        ):
            error = await refusal(alice.does(write))
            assert facts(error) == (StaleFence, "stale_fence", {"fence": new.fence, "status": "in_progress"})
        assert (await alice.run(old), await alice.steps(old), await alice.actions(old)) == (new, before, [])
        assert await alice.reads(old.branch) == ["hello"]

    async def test_P10_an_ended_run_takes_no_steps(self, alice: Actor) -> None:
        run = await self.at_work(alice)
        await alice.answers(run, "hi")
        assert isinstance(await refusal(alice.records(run, step("late"))), StaleFence)
        assert isinstance(await refusal(alice.pauses(run, alice.question(run))), StaleFence)
        assert isinstance(await refusal(alice.drains(run)), StaleFence)

    async def test_P12_a_step_learns_that_somebody_asked_to_cancel(self, alice: Actor) -> None:
        run = await self.at_work(alice)
        await alice.does(Cancel(run=run.id))
        assert (await alice.records(run, step("pay"))).cancel

    async def test_P15_a_transactional_step_and_its_effect_land_together_or_not_at_all(self, alice: Actor) -> None:
        run = await self.at_work(alice)
        await alice.records(run, step("book"))
        patch = PatchSlots(session=run.session, patches=(put("seats", 1),), by="agent", run=run.id, fence=run.fence)
        done = RecordSteps(run=run.id, fence=run.fence, steps=(step("book", "done", effect="transactional"),))
        await alice.does(patch, done)
        assert await alice.desk(run.session) == {"seats": 1}
        twice = replace(patch, patches=(put("seats", 2),))
        assert (await refusal(alice.does(twice, done))).reason == "step_done"
        assert await alice.desk(run.session) == {"seats": 1}

    async def test_R4_steps_may_tell_the_log(self, alice: Actor) -> None:
        run = await self.at_work(alice)
        await alice.records(run, step("a"), rows=(row("x", 2), row("y")))
        await alice.records(run, step("a", "done"), rows=(row("z"),))
        assert [(entry.kind, entry.first) for entry in await alice.log(run)] == [("x", 1), ("y", 3), ("z", 4)]
        assert (await alice.run(run)).head == 4

    # ── approvals ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def approved(self, alice: Actor, kind: ActionKind = "approval") -> Run:
        """A run at work again after it asked."""
        run = await self.at_work(alice)
        await alice.pauses(run, alice.question(run, "pay?", kind, digest=b"80 euros"))
        (action,) = await alice.actions(run)
        await alice.resolves(action, b'{"approved":true}')
        return (await alice.claims(run)).run

    async def test_R9_P16_an_approval_is_spent_once(self, alice: Actor) -> None:
        run = await self.approved(alice)
        (action,) = await alice.actions(run)
        await alice.records(run, step("pay"), uses=(action.id,))
        assert [found.status for found in await alice.actions(run)] == ["used"]
        error = await refusal(alice.records(run, step("pay again"), uses=(action.id,), rows=(row(),)))
        assert facts(error) == (Conflict, "approval_used", {"status": "used"})
        assert [found.key for found in await alice.steps(run)] == ["pay"]
        assert await alice.log(run) == []

    async def test_R9_P16_one_batch_cannot_spend_an_approval_twice(self, alice: Actor) -> None:
        run = await self.approved(alice)
        (action,) = await alice.actions(run)
        assert (await refusal(alice.records(run, step("pay"), uses=(action.id, action.id)))).reason == "approval_used"
        assert [found.status for found in await alice.actions(run)] == ["resolved"]
        assert await alice.steps(run) == []

    async def test_R9_P16_of_racing_spenders_one_wins(self, alice: Actor, beside: Actor) -> None:
        run = await self.approved(alice)
        (action,) = await alice.actions(run)
        acts = [actor.records(run, step(f"pay {n}"), uses=(action.id,)) for n in range(5) for actor in (alice, beside)]
        done = await asyncio.gather(*acts, return_exceptions=True)
        assert sorted(type(outcome).__name__ for outcome in done) == 9 * ["Conflict"] + ["Stepped"]
        assert len(await alice.steps(run)) == 1

    async def test_R9_P16_only_an_approval_that_was_given_can_be_spent(self, alice: Actor) -> None:
        run = await self.approved(alice, kind="input")
        (action,) = await alice.actions(run)
        assert (await refusal(alice.records(run, step("pay"), uses=(action.id,)))).reason == "approval_used"
        expired = alice.question(run, "again?", "approval", until=alice.store.now() + 10)
        await alice.pauses(run, expired)
        self.clock.advance(10)
        await alice.resolves(expired, expired=True)
        run = (await alice.claims(run)).run
        error = await refusal(alice.records(run, step("pay"), uses=(expired.id,)))
        assert facts(error) == (Conflict, "approval_used", {"status": "expired"})

    async def test_P16_an_approval_of_another_run_is_not_there(self, alice: Actor) -> None:
        one, other = await self.approved(alice), await self.approved(alice)
        (action,) = await alice.actions(other)
        error = await refusal(alice.records(one, step("pay"), uses=(action.id,)))
        assert facts(error) == (NotFound, "not_found", {"facts_kind": "action"})
