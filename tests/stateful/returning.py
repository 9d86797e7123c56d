"""Going back and coming back: conversations and desks that are taken back, turns that undo others, desks that are put away and
restored. Rules of their own, so that they do not thin out what the others come to."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import rule

from stateroom.conversation.model import MoveBranch
from stateroom.principal import Scope, operator
from stateroom.session.model import Expire, ForkSession, MakeCheckpoint, OpenSession, PatchSlots, PurgeSession, RollBack, Session
from stateroom.session.remains import FIRST, PARTS, BeginRestore, PutRemnants, Revive
from tests.stateful.agreement import Agreement
from tests.stateful.desks import operations, versions
from tests.stateful.drawing import ALICE, EVERYBODY, few, hold, outcome, scopes, which

SYSTEM = operator("acme", "system")
steps_back = st.lists(st.sampled_from(["begin", "begin", "put", "put", "revive", "revive"]), max_size=6)


class Returning(Agreement):
    """Everything a store can be asked, and this."""

    @rule(
        scope=scopes, n=which, onto=st.none() | which, up_to=st.integers(0, 5), late=st.sampled_from([0] * 8 + [1]),
        desk=st.none() | st.tuples(which, st.integers(0, 4)), hold=hold,
    )  # fmt: skip
    def takes_back(self, scope: Scope, n: int, onto: Any, up_to: int, late: int, desk: Any, hold: bool) -> None:
        """A conversation goes on where it was, by itself or together with a desk."""
        conversation = self.pick(self.conversations, n)
        now = self.run(outcome(self.ram.branch(EVERYBODY, conversation)))
        at, tail = (now[1]["id"], now[1]["tail"]) if now[0] == "Branch" else (conversation, 0)
        parent, reach = (at, min(up_to, tail)) if onto is None else (self.pick(self.branches, onto), up_to)
        write = MoveBranch(
            id=self.new_id(), conversation=conversation, parent=parent, up_to=reach, expected=at, expected_tail=tail + late
        )
        if desk is None or not self.sessions:
            self.does(scope, write, hold)
            return
        self.held.append(write)
        session = self.pick(self.sessions, desk[0])
        self.does(scope, RollBack(session=session, by=scope.principal, version=desk[1], branch=at, seq=tail), hold)

    @rule(n=which, input=few, agent=st.sampled_from(["clerk", "clerk", "poet"]))
    def undoes(self, n: int, input: int, agent: str) -> None:
        """A turn that takes the place of the active one: desk and conversation are as they were before it."""
        row = self.current(self.at_work(n))
        place = {"conversation": row.conversation, "branch": row.branch} if row is not None else {}
        rows = {"claimed_rows": self.rows(1), "queued_rows": self.rows(1), "dropped_rows": self.rows(1)}
        if row is not None and self.sessions:
            patch = PatchSlots(session=row.session, patches=(operations(self.made)[0],), by="alice")
            self.does(ALICE, patch)
        self.does(ALICE, self.turn(input, policy="rollback", agent=agent, **place, **rows))

    @rule(n=which, chosen=st.lists(st.integers(0, 8), max_size=4), forked=st.none() | versions, back=steps_back, who=scopes)
    def is_put_away_and_comes_back(self, n: int, chosen: list[int], forked: Any, back: list[str], who: Scope) -> None:
        id_ = self.new_id()
        self.held = []  # what is refused with it would leave nothing to put away
        self.does(ALICE, OpenSession(id=id_, owner="alice", subject="s", ttl_ms=2_000))
        for k in chosen:
            self.does(ALICE, PatchSlots(session=id_, patches=(operations(self.made)[k],), by="alice"))
        self.does(ALICE, MakeCheckpoint(session=id_, name="good", by="alice"))
        if forked is not None:
            self.does(ALICE, ForkSession(id=self.new_id(), parent=id_, owner="alice", version=forked, ttl_ms=0))
        self.clock.advance(3_000)
        self.does(SYSTEM, Expire(session=id_))
        head, kept = self.remains_of(id_)
        self.does(SYSTEM, PurgeSession(session=id_, archive="cold"))
        for what in back:
            match what:
                case "begin":
                    self.does(who, BeginRestore(head=head))
                case "put":
                    self.does(who, PutRemnants(session=id_, remnants=tuple(kept)))
                case _:
                    self.does(who, Revive(head=head))
        self.remains_of(id_)

    def remains_of(self, id_: bytes) -> tuple[Session, list[Any]]:
        """The head of a desk and everything on it, which both tell alike."""
        kept = list[Any]()
        self.compare("head", lambda store: store.head(SYSTEM, id_))
        for part in PARTS:
            self.compare(part, lambda store, of=part: store.remains(SYSTEM, id_, of, after=FIRST, limit=100))
            kept += self.run(self.ram.remains(SYSTEM, id_, part, after=FIRST, limit=100))
        return self.run(self.ram.head(SYSTEM, id_)), kept
