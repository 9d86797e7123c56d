"""Rules about steps, questions, answers, merged turns and compacted logs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import rule

from stateroom.backends.base import Backend
from stateroom.conversation.model import CreateConversation
from stateroom.ids import NIL
from stateroom.principal import Scope
from stateroom.run.model import Claim, Lease, Run
from stateroom.run.steps import Action, ActionQuery, Compact, Drain, Pause, RecordSteps, Resolve, Step
from tests.stateful.both import Both
from tests.stateful.drawing import ALICE, EVERYBODY, deadlines, fences, few, hold, outcome, policies, scopes, which

steps = st.lists(
    st.tuples(
        st.sampled_from("abc"), st.sampled_from(["intended", "done", "failed", "unknown"]), st.sampled_from(["once", "pure"])
    ),
    max_size=3,
)
questions = st.lists(
    st.tuples(
        st.sampled_from(["ask", "pay", "nap"]),
        st.sampled_from(["tool", "approval", "approval", "input", "timer", "handoff"]),
        st.sampled_from(["deny", "expire", "fail"]),
        deadlines,
    ),
    max_size=2,
)

answers = st.tuples(
    st.sampled_from([b"{}", b"{}", b'{"n":1}']),
    st.sampled_from([b"d", b"d", b"d", b"other"]),
    st.booleans(),
    st.sampled_from([0, 0, 1, 1_000, 40_000]),
)


class Waiting(Both):
    """What runs do while they work and wait."""

    def question(self, run: bytes, key: str, kind: Any = "input", *, policy: Any = "deny", late: int = 0) -> Action:
        until = self.ram.now() + late if late else 0
        queue = "support" if kind == "handoff" else ""
        made = Action(
            id=self.new_id(), run=run, key=key, kind=kind, name=key, digest=b"d", queue=queue, until=until, policy=policy
        )
        self.actions.append(made)
        return made

    def asked(self, n: int) -> Action:
        """A question that somebody may have asked."""
        return self.actions[-1 - n % len(self.actions)] if self.actions else self.question(self.pick(self.runs, n), "never")

    # ── ordinary life ───────────────────────────────────────────────────────────────────────────────────────────────

    def at_work(self, n: int) -> bytes:
        """A run of alice's that is worked on, asked now if there is none."""
        pool = self.runs_that(lambda run: run.status == "in_progress" and run.stored and run.owner == "alice")
        if pool:
            return self.pick(pool, n % 5)
        conversation = CreateConversation(id=self.new_id(), owner="alice", subject="s")
        turn = self.turn(1, conversation=conversation.id, session=self.new_id())
        self.held.append(conversation)
        self.does(ALICE, turn)
        return turn.run

    @rule(
        n=which,
        kind=st.sampled_from(["approval", "approval", "timer", "input", "handoff"]),
        policy=st.sampled_from(["deny", "expire", "fail"]),
        late=deadlines,
        answers=st.lists(answers, max_size=4),
        go_on=st.booleans(),
    )
    def asks_and_is_answered(self, n: int, kind: Any, policy: Any, late: int, answers: Any, go_on: bool) -> None:
        run = self.at_work(n)
        question = self.question(run, f"q{self.made}", kind, policy=policy, late=late)
        more = (self.question(run, "more"),) if len(answers) == 4 else ()
        self.does(ALICE, Pause(run=run, fence=self.fence(run, 0), actions=(question, *more), rows=self.rows(1)))
        for said, digest, expired, ms in answers:
            self.clock.advance(ms)
            write = Resolve(run=run, action=question.id, resolution=said, digest=digest, expired=expired, rows=self.rows(1))
            self.does(EVERYBODY if ms == 1 else ALICE, write)
        if go_on:
            self.does(ALICE, Claim(run=run, lease=Lease("w1", 30_000)))
            for _ in range(2):
                self.does(ALICE, RecordSteps(run=run, fence=self.fence(run, 0), steps=(), uses=(question.id,)))

    @rule(
        n=which,
        turns=st.lists(st.tuples(policies, st.sampled_from(["clerk", "clerk", "poet"]), few, deadlines), min_size=1, max_size=3),
    )
    def texts_again(self, n: int, turns: Any) -> None:
        run = self.at_work(n)
        row = self.current(run)
        place = {"conversation": row.conversation, "branch": row.branch} if row is not None else {}
        for policy, agent, input, late in turns:
            at = self.ram.now() + late if late else 0
            rows = {"claimed_rows": self.rows(1), "queued_rows": self.rows(1), "dropped_rows": self.rows(1)}
            self.does(ALICE, self.turn(input, policy=policy, deadline_at=at, agent=agent, **place, **rows))
        step = Step(key="a", name="a", effect="once", status="done")
        self.does(ALICE, RecordSteps(run=run, fence=self.fence(run, 0), steps=(step,)))
        self.does(ALICE, Drain(run=run, fence=self.fence(run, 0), rows=self.rows(1)))

    # ── anything ────────────────────────────────────────────────────────────────────────────────────────────────────

    @rule(scope=scopes, n=which, off=fences, steps=steps, spends=st.none() | which, count=few, hold=hold)
    def records(self, scope: Scope, n: int, off: int, steps: Any, spends: int | None, count: int, hold: bool) -> None:
        run = self.pick(self.runs, n)
        write = RecordSteps(
            run=run,
            fence=self.fence(run, off),
            steps=tuple(
                Step(key=key, name=key, status=status, effect=effect, body=b"%d" % self.made) for key, status, effect in steps
            ),
            rows=self.rows(count),
            uses=(self.asked(spends).id,) if spends is not None else (),
        )
        self.does(scope, write, hold)

    @rule(scope=scopes, n=which, off=fences, questions=questions, hold=hold)
    def pauses(self, scope: Scope, n: int, off: int, questions: Any, hold: bool) -> None:
        run = self.pick(self.runs, n)
        asked = [self.question(run, key, kind, policy=policy, late=late) for key, kind, policy, late in questions]
        self.does(scope, Pause(run=run, fence=self.fence(run, off), actions=tuple(asked), rows=self.rows(1)), hold)

    @rule(
        scope=scopes,
        n=which,
        elsewhere=st.none() | which,
        said=st.sampled_from([b"{}", b"{}", b'{"n":1}']),
        digest=st.sampled_from([b"d"] * 4 + [b"other"]),
        expired=st.booleans(),
        hold=hold,
    )
    def resolves(
        self, scope: Scope, n: int, elsewhere: int | None, said: bytes, digest: bytes, expired: bool, hold: bool
    ) -> None:
        action = self.asked(n)
        run = action.run if elsewhere is None else self.pick(self.runs, elsewhere)
        write = Resolve(run=run, action=action.id, resolution=said, digest=digest, expired=expired, rows=self.rows(1))
        self.does(scope, write, hold)

    @rule(scope=scopes, n=which, off=fences, hold=hold)
    def drains(self, scope: Scope, n: int, off: int, hold: bool) -> None:
        run = self.pick(self.runs, n)
        self.does(scope, Drain(run=run, fence=self.fence(run, off), rows=self.rows(1)), hold)

    @rule(scope=scopes, n=which, count=few, hold=hold)
    def compacts(self, scope: Scope, n: int, count: int, hold: bool) -> None:
        self.does(scope, Compact(run=self.pick(self.runs, n), rows=self.rows(count)), hold)

    # ── what both say, and what must hold ───────────────────────────────────────────────────────────────────────────

    def waiting_reads(self, scope: Scope, run: bytes) -> Iterable[tuple[str, Callable[[Backend], Awaitable[Any]]]]:
        yield "steps", lambda store: store.steps(scope, run)
        yield "actions", lambda store: store.actions(scope, ActionQuery(run=run, pending=False))
        yield "pending actions", lambda store: store.actions(scope, ActionQuery(run=run, limit=1))
        yield "handoff queue", lambda store: store.actions(scope, ActionQuery(queue="support"))
        for action in self.actions[-2:]:
            yield "run of action", lambda store, of=action.id: outcome(store.run_of_action("acme", of))

    def waiting_holds(self, run: Run) -> None:
        asked = self.run(self.other.actions(EVERYBODY, ActionQuery(run=run.id)))
        assert (run.status == "requires_action") == bool(asked), "P9, P10: a run waits for something, or nothing is pending"
        assert not (run.lease_owner and run.status not in ("in_progress", "cancelling")), "R10: only work has a lease"
        assert run.merged_into == NIL or run.status == "completed", "P10: what was merged has ended"
