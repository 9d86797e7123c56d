"""Double texting with `rollback`, in ram: the active turn ends, and desk and conversation are as they were before it."""

from __future__ import annotations

from stateroom.backends.ram import conversation as record
from stateroom.backends.ram import desk_versions
from stateroom.backends.ram import run_rows as work
from stateroom.backends.ram.ending import end
from stateroom.backends.ram.store import Transaction
from stateroom.conversation.model import Branch
from stateroom.run import machine
from stateroom.run.model import AcceptTurn, Finish, Run
from stateroom.session import lifetime
from stateroom.session.model import RollBack


def undo(tx: Transaction, write: AcceptTurn, branch: Branch) -> tuple[Branch, bytes]:
    """The branch that the conversation goes on in, whose queue is the old one's, and the run that was undone. Its worker
    finds its fence stale; what it said stays on the branch that was left."""
    active = work.active_on(tx, branch)
    assert active is not None
    error = machine.rolled_back(write.run)
    end(tx, active, Finish(run=active.id, fence=None, status="cancelled", error=error, rows=write.dropped_rows))
    branch = record.see_branch(tx, branch.id)
    _undo_desk(tx, write, active, branch)
    made = record.fork_branch(tx, branch, active.in_lo, id=write.fork, owner=branch.owner)
    if branch.id == record.see_main(tx, branch.conversation).id:
        record.move_to(tx, branch.conversation, made)
    return work.hand_over(tx, record.see_branch(tx, branch.id), made), active.id


def _undo_desk(tx: Transaction, write: AcceptTurn, active: Run, branch: Branch) -> None:
    """The state is as it was when the run was claimed."""
    head = tx.tables.sessions.get((tx.tenant, active.session))
    if head is not None and lifetime.alive(head, tx.now) and head.version > active.desk_version:
        back = RollBack(
            session=head.id, by=write.owner, version=active.desk_version, run=write.run, branch=branch.id, seq=branch.tail
        )
        desk_versions.back(tx, head, back)
