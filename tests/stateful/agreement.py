"""A machine that sends the same batches to two backends and compares everything they say.

Both get the same ids and the same clock. Rules draw legal and illegal writes alike: what matters is that both backends do
the same with them, error codes and facts included. Invariants watch the promises on the way.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule
from msgspec.structs import replace

from stateroom.backends.base import Backend
from stateroom.batch import ClaimKey
from stateroom.conversation.model import (
    Append,
    CreateConversation,
    DeleteConversation,
    DeleteItem,
    Fork,
    ItemQuery,
    SetMetadata,
)
from stateroom.errors import StateroomError
from stateroom.ids import NIL
from stateroom.principal import Scope, own
from stateroom.run.model import (
    Cancel,
    Claim,
    DeleteRun,
    Finish,
    Heartbeat,
    Lease,
    Log,
    Requeue,
    Run,
    RunQuery,
    TurnKey,
)
from stateroom.session.model import Durability, EndSession, OpenSession, PatchSlots, SlotPatch
from tests.stateful.desks import Desks
from tests.stateful.drawing import (
    AGENTS,
    ALICE,
    EVERYBODY,
    deadlines,
    durabilities,
    ends,
    fences,
    few,
    hold,
    maybe_small,
    policies,
    scopes,
    unordered,
    which,
)


class Agreement(Desks):
    """Everything a store can be asked. Subclasses say what ram is compared with."""

    # ── ordinary life, so that the odd things happen to something ────────────────────────────────────────────────────

    @initialize(kind=st.sampled_from(["managed", "chain"]))
    def begins(self, kind: Any) -> None:
        self.does(ALICE, CreateConversation(id=self.new_id(), owner="alice", subject="s", kind=kind))
        self.asks(n=0, agent="clerk")

    @rule(n=which, agent=st.sampled_from(AGENTS))
    def asks(self, n: int, agent: str) -> None:
        self.does(ALICE, self.turn(2, agent=agent, session=self.new_id(), conversation=self.pick(self.conversations, n)))

    @rule(n=which, answered=st.booleans())
    def follows(self, n: int, answered: bool) -> None:
        turn = self.turn(1, previous=self.pick(self.runs_that(lambda run: run.ended), n))
        if answered:
            self.held.append(turn)
            self.does(ALICE, Finish(run=turn.run, fence=1, status="completed", outputs=self.drafts(1)))
        else:
            self.does(ALICE, turn)

    @rule(n=which, status=ends, next=st.booleans())
    def answers(self, n: int, status: Any, next: bool) -> None:
        run = self.pick(self.runs_that(lambda run: run.lease_owner != ""), n)
        outputs, lease = self.drafts(2), Lease("w1", 30_000) if next else None
        self.does(ALICE, Finish(run=run, fence=self.fence(run, 0), status=status, outputs=outputs, next=lease))

    @rule(n=which)
    def recovers(self, n: int) -> None:
        run = self.pick(self.runs_that(lambda run: run.lease_owner != ""), n)
        self.does(ALICE, Requeue(run=run, fence=self.fence(run, 0), owner_gone=True))

    # ── time ────────────────────────────────────────────────────────────────────────────────────────────────────────

    @rule(ms=st.sampled_from([1, 1_000, 31_000]), jump=st.sampled_from([0, 0, 0, 5_000, -5_000]))
    def passes(self, ms: int, jump: int) -> None:
        self.clock.advance(ms)
        self.clock.wall += jump

    # ── conversations ───────────────────────────────────────────────────────────────────────────────────────────────

    @rule(scope=scopes, kind=st.sampled_from(["managed", "chain"]), items=few)
    def creates(self, scope: Scope, kind: Any, items: int) -> None:
        new = CreateConversation(id=self.new_id(), owner=scope.principal, subject="s", kind=kind, agent="clerk")
        self.held.append(new)
        self.does(scope, Append(branch=new.id, items=self.drafts(items)))

    @rule(scope=scopes, n=which, items=few, expected=maybe_small, hold=hold)
    def appends(self, scope: Scope, n: int, items: int, expected: int | None, hold: bool) -> None:
        branch = self.pick(self.branches, n)
        self.does(scope, Append(branch=branch, items=self.drafts(items), expected_tail=expected), hold)

    @rule(scope=scopes, n=which, up_to=st.integers(0, 5), away=st.booleans(), hold=hold)
    def forks(self, scope: Scope, n: int, up_to: int, away: bool, hold: bool) -> None:
        parent, id_ = self.pick(self.branches, n), self.new_id()
        self.does(scope, Fork(id=id_, parent=parent, up_to=up_to, conversation=id_ if away else NIL), hold)

    @rule(scope=scopes, n=which, of=which, hold=hold)
    def deletes_item(self, scope: Scope, n: int, of: int, hold: bool) -> None:
        branch = self.pick(self.branches, n)
        query = ItemQuery(branch=branch, limit=100)
        found = self.compare("items", lambda store: store.items(EVERYBODY, query))
        shown = [item[1]["id"] for item in found] if isinstance(found, list) else []
        self.does(scope, DeleteItem(branch=branch, item=self.pick(shown, of)), hold)

    @precondition(lambda self: len(self.conversations) > 1)
    @rule(scope=scopes, n=which)
    def deletes_conversation(self, scope: Scope, n: int) -> None:
        self.does(scope, DeleteConversation(conversation=self.pick(self.conversations, n)))

    # ── sessions ────────────────────────────────────────────────────────────────────────────────────────────────────

    @rule(scope=scopes, n=which, free=st.booleans(), agent=st.sampled_from(AGENTS), hold=hold, durability=durabilities)
    def opens_session(self, scope: Scope, n: int, free: bool, agent: str, hold: bool, durability: Durability) -> None:
        id_, owner = self.new_id(), scope.principal
        conversation = NIL if free else self.pick(self.conversations, n)
        new = OpenSession(id=id_, owner=owner, subject="s", conversation=conversation, agent=agent, durability=durability)
        self.does(scope, new, hold)

    @precondition(lambda self: self.sessions)
    @rule(
        scope=scopes,
        n=which,
        changes=st.lists(
            st.tuples(st.sampled_from("abc"), st.booleans(), maybe_small),
            min_size=1,
            max_size=3,
            unique_by=lambda change: change[0],
        ),
        expected=st.sampled_from([None] * 4 + [1]),
        by_run=st.none() | st.tuples(which, fences),
        hold=hold,
    )
    def patches(self, scope: Scope, n: int, changes: Any, expected: Any, by_run: Any, hold: bool) -> None:
        patches = tuple(
            SlotPatch(name=name, body=b"%d" % self.made if keep else None, expected=version) for name, keep, version in changes
        )
        run = self.pick(self.runs, by_run[0]) if by_run else NIL
        write = PatchSlots(
            session=self.pick(self.sessions, n),
            patches=patches,
            by=scope.principal,
            expected_version=expected,
            run=run,
            fence=self.fence(run, by_run[1]) if by_run else 0,
        )
        self.does(scope, write, hold)

    @precondition(lambda self: self.sessions)
    @rule(scope=scopes, n=which)
    def ends_session(self, scope: Scope, n: int) -> None:
        self.does(scope, EndSession(session=self.pick(self.sessions, n)))

    # ── turns ───────────────────────────────────────────────────────────────────────────────────────────────────────

    @rule(
        scope=scopes,
        place=st.sampled_from(["conversation"] * 3 + ["branch", "previous", "previous", "nowhere"]),
        n=which,
        input=few,
        how=st.fixed_dictionaries(
            {
                "agent": st.sampled_from(AGENTS),
                "stored": st.sampled_from([True] * 5 + [False]),
                "policy": policies,
                "queue_max": st.integers(1, 3),
                "claim": st.sampled_from([Lease("w1", 30_000)] * 4 + [None]),
            }
        ),
        key=st.none() | st.tuples(st.sampled_from("kl"), st.booleans()),
        desk=st.booleans(),
        late=deadlines,
        hold=hold,
    )
    def accepts(
        self, scope: Scope, place: str, n: int, input: int, how: dict[str, Any], key: Any, desk: bool, late: int, hold: bool
    ) -> None:
        pools = {"conversation": self.conversations, "branch": self.branches, "previous": self.runs}
        where = {place: self.pick(pools[place], n)} if place in pools else {}
        renew = self.clock.wall_ms() - 1_000 if key and key[1] else 0
        write = self.turn(
            input,
            owner=scope.principal,
            session=self.new_id() if desk else NIL,
            key=TurnKey(operation="turn", key=key[0], fingerprint=b"f", home=7, renew_before=renew) if key else None,
            claimed_rows=self.rows(1),
            queued_rows=self.rows(2),
            dropped_rows=self.rows(1),
            deadline_at=self.ram.now() + late if late else 0,
            **where,
            **how,
        )
        self.does(scope, write, hold)

    @rule(scope=scopes, key=st.sampled_from("kl"), operation=st.sampled_from(["turn", "other"]), n=which)
    def describes_under_a_key(self, scope: Scope, key: str, operation: str, n: int) -> None:
        self.held.append(ClaimKey(operation=operation, key=key, fingerprint=b"g", ref=self.new_id(), home=7))
        self.does(scope, SetMetadata(conversation=self.pick(self.conversations, n), metadata=b'{"n":"%d"}' % self.made))

    @rule(scope=scopes, n=which, hold=hold)
    def claims(self, scope: Scope, n: int, hold: bool) -> None:
        self.does(scope, Claim(run=self.pick(self.runs, n), lease=Lease("w2", 30_000), rows=self.rows(1)), hold)

    @rule(scope=scopes, n=which, off=fences, ms=st.sampled_from([1, 60_000]), count=few, beat=st.booleans(), hold=hold)
    def works(self, scope: Scope, n: int, off: int, ms: int, count: int, beat: bool, hold: bool) -> None:
        run = self.pick(self.runs, n)
        fence = self.fence(run, off)
        if beat:
            self.does(scope, Heartbeat(run=run, fence=fence, lease=Lease("w1", ms)), hold)
        else:
            self.does(scope, Log(run=run, fence=fence, rows=self.rows(count)), hold)

    @rule(
        scope=scopes,
        n=which,
        off=st.none() | fences,
        status=ends,
        outputs=few,
        next=st.sampled_from([None, Lease("w1", 30_000), Lease("w1", 30_000, frozenset({"poet"}))]),
        keep=st.booleans(),
        compact_ms=st.sampled_from([0, 1_000]),
        hold=hold,
    )
    def finishes(
        self, scope: Scope, n: int, off: int | None, status: Any, outputs: int, next: Any, keep: bool, compact_ms: int, hold: bool
    ) -> None:
        run = self.pick(self.runs, n)
        write = Finish(
            run=run,
            fence=None if off is None else self.fence(run, off),
            status=status,
            outputs=self.drafts(outputs),
            usage=b'{"n":1}',
            error=b'{"code":"e"}',
            rows=self.rows(1),
            next=next,
            next_rows=self.rows(1),
            keep_input=keep,
            compact_ms=compact_ms,
        )
        self.does(scope, write, hold)

    @rule(scope=scopes, n=which, hold=hold)
    def cancels(self, scope: Scope, n: int, hold: bool) -> None:
        self.does(scope, Cancel(run=self.pick(self.runs, n), rows=self.rows(1)), hold)

    @rule(scope=scopes, n=which, off=fences, gone=st.booleans(), planned=st.booleans(), hold=hold)
    def requeues(self, scope: Scope, n: int, off: int, gone: bool, planned: bool, hold: bool) -> None:
        run = self.pick(self.runs, n)
        write = Requeue(run=run, fence=self.fence(run, off), owner_gone=gone, planned=planned, rows=self.rows(1))
        self.does(scope, write, hold)

    @rule(scope=scopes, n=which)
    def deletes_run(self, scope: Scope, n: int) -> None:
        self.does(scope, DeleteRun(run=self.pick(self.runs, n)))

    # ── what must hold after every step ─────────────────────────────────────────────────────────────────────────────

    @invariant()
    def both_say_the_same(self) -> None:
        for scope in (EVERYBODY, own("acme", "bob")):
            for name, read in self.reads(scope):
                self.compare(name, read)

    def reads(self, scope: Scope) -> Iterable[tuple[str, Callable[[Backend], Awaitable[Any]]]]:
        yield "conversations", lambda store: store.conversations(scope, after=NIL, limit=100)
        yield "sessions", lambda store: store.sessions(scope, after=NIL, limit=100)
        yield "runs", lambda store: store.runs(scope, RunQuery(limit=100))
        yield "heads", lambda store: store.heads(scope, self.runs)
        yield "key", lambda store: store.key(scope, "turn", "k", 7)
        for kind in ("lease", "deadline", "action", "compact", "expire"):
            yield "due", lambda store, of=kind: unordered(store.due(of, store.now() + 60_000, 100))
        yield "leased", lambda store: unordered(store.leased_by("w1", 100))
        yield "owners", lambda store: unordered(store.owners())
        for branch in self.branches[-4:]:
            yield "branch", lambda store, of=branch: store.branch(scope, of)
            yield "items", lambda store, of=branch: store.items(scope, ItemQuery(branch=of, limit=100))
            back = ItemQuery(branch=branch, limit=2, after=1, before=5, newest_first=True)
            yield "items backwards", lambda store, query=back: store.items(scope, query)
            yield "bound", lambda store, of=branch: store.bound(scope, of, "clerk")
        for session in self.sessions[-3:]:
            yield from self.desk_reads(scope, session)
        for run in self.runs[-3:]:
            yield "inbox", lambda store, of=run: store.inbox(scope, of)
            yield "log", lambda store, of=run: store.log(scope, of, after=2, limit=3)
            yield from self.waiting_reads(scope, run)

    @invariant()
    def promises_hold(self) -> None:
        rows = self.run(self.other.runs(EVERYBODY, RunQuery(limit=100)))
        for row in rows:
            old = self.seen.get(row.id)
            if old is not None:
                assert row.fence >= old.fence, "R2: fences only grow"
                assert (row.epoch, row.head) >= (old.epoch, old.head), "R4: the log only grows"
                assert not old.ended or replace(row, epoch=old.epoch, head=old.head) == old, "P10: terminal is final"
            self.seen[row.id] = row
            self.waiting_holds(row)
        for branch in self.branches[-4:]:
            self.branch_holds(branch, [row for row in rows if row.branch == branch and row.stored])

    def branch_holds(self, id_: bytes, runs: list[Run]) -> None:
        try:
            branch = self.run(self.other.branch(EVERYBODY, id_))
        except StateroomError:
            return
        if branch.id != id_:  # it went back, and goes on in another branch, which is looked at by its own name
            return
        items = self.run(self.other.items(EVERYBODY, ItemQuery(branch=id_, limit=1000)))
        assert len({item.seq for item in items}) == len(items) <= branch.tail, "C2: no seq twice"
        if branch.parent == NIL:
            assert len(items) + branch.deletions == branch.tail, "C2: seqs are dense"
        at_work = [run.id for run in runs if run.status in ("in_progress", "cancelling", "requires_action")]
        assert at_work == [id_ for id_ in (branch.active_run,) if id_ != NIL], "R3: one active run"
        assert branch.queued == sum(run.status == "queued" for run in runs)
