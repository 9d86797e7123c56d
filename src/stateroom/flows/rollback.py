"""Go back: a desk and the conversation it is bound to return to where they were, in one batch (P18).

The state goes back by a new version equal to an old one, the conversation by a branch that leaves the record where it was
then. Nothing is rewritten: what is undone becomes a checkpoint, and can be gone back to as well.
"""

from __future__ import annotations

from stateroom import given, ids
from stateroom.backends.base import Backend
from stateroom.batch import Batch, ClaimKey, Write
from stateroom.conversation.model import Branch, MoveBranch
from stateroom.errors import Busy, Conflict
from stateroom.flows.failpoint import Failpoints
from stateroom.ids import NIL
from stateroom.principal import Scope
from stateroom.session import rules
from stateroom.session.access import NOBODY, Acting
from stateroom.session.model import Checkpoint, RollBack, Session
from stateroom.session.receipts import RolledBack

_TRIES = 8  # somebody appends just now: look again


class Rollbacks:
    """`to` takes a desk back, and its conversation with it."""

    def __init__(self, backend: Backend, failpoints: Failpoints) -> None:
        self._backend, self._failpoints = backend, failpoints

    async def to(
        self,
        scope: Scope,
        session: bytes,
        to: str | int,
        *,
        expected_version: int | None = None,
        acting: Acting = NOBODY,
        claim: ClaimKey | None = None,
    ) -> RolledBack:
        """Back to a checkpoint (its name) or a version. The conversation goes back to where it was at that checkpoint, or at
        the last one up to that version; it stays where it is when none tells. Busy while a turn is active or waits."""
        given.place(to)
        given.whole_or_none(expected_version, "expected_version")
        for tries_left in range(_TRIES - 1, -1, -1):
            head = await self._backend.session(scope, session)
            writes = await self._writes(scope, head, to, expected_version=expected_version, acting=acting)
            now = self._backend.clock.wall_ms()
            all_: tuple[Write, ...] = writes if claim is None else (claim, *writes)
            try:
                receipts = await self._backend.commit(Batch(id=ids.new(ids.home(session), now), scope=scope, at=now, writes=all_))
            except Conflict as quicker:
                if quicker.reason not in ("tail_conflict", "branch_moved") or not tries_left:
                    raise
                continue
            await self._failpoints.hit("rollback.landed")
            rolled = receipts[-1]
            assert isinstance(rolled, RolledBack)
            return rolled
        raise AssertionError("the last try raises or returns")

    async def _writes(
        self, scope: Scope, head: Session, to: str | int, *, expected_version: int | None, acting: Acting
    ) -> tuple[MoveBranch | RollBack, ...]:
        mark = await self._backend.checkpoint_at(scope, head.id, to)
        if mark is None and isinstance(to, str):
            raise rules.no_checkpoint(to)
        at = None if head.conversation == NIL else await self._backend.branch(scope, head.conversation)
        back = RollBack(
            session=head.id, by=scope.principal, checkpoint=to if isinstance(to, str) else "",
            version=to if isinstance(to, int) else None, expected_version=expected_version,
            branch=at.id if at is not None else NIL, seq=at.tail if at is not None else 0,
            agent=acting.agent, hold=acting.hold,
        )  # fmt: skip
        if at is None:
            return (back,)
        if at.active_run != NIL or at.queued:
            raise Busy("A turn is active or waiting on this conversation.", code="conversation_busy", run=at.active_run)
        if mark is None or mark.branch == NIL or (mark.branch, mark.seq) == (at.id, at.tail):
            return (back,)
        return self._move(head, at, mark), back

    def _move(self, head: Session, at: Branch, mark: Checkpoint) -> MoveBranch:
        made = ids.new(ids.home(head.conversation), self._backend.clock.wall_ms())
        return MoveBranch(
            id=made, conversation=head.conversation, parent=mark.branch, up_to=mark.seq, expected=at.id, expected_tail=at.tail
        )
