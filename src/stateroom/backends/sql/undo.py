"""Double texting with `rollback`, in SQL: the active turn ends, and desk and conversation are as they were before it."""

from __future__ import annotations

from msgspec.structs import replace

from stateroom import ids
from stateroom.backends.sql import conversation as conversations
from stateroom.backends.sql import desk_versions
from stateroom.backends.sql.desk_rows import locked
from stateroom.backends.sql.ending import end
from stateroom.backends.sql.run_read import active_on, waiting_on
from stateroom.backends.sql.tx import Tx
from stateroom.conversation.model import Branch
from stateroom.ids import NIL
from stateroom.run import machine
from stateroom.run.model import AcceptTurn, Finish, Run
from stateroom.session import lifetime
from stateroom.session.model import RollBack


def undo(tx: Tx, write: AcceptTurn, branch: Branch) -> tuple[Branch, bytes]:
    """The branch that the conversation goes on in, whose queue is the old one's, and the run that was undone. Its worker
    finds its fence stale; what it said stays on the branch that was left."""
    active = active_on(tx, branch)
    assert active is not None
    error = machine.rolled_back(write.run)
    end(tx, active, Finish(run=active.id, fence=None, status="cancelled", error=error, rows=write.dropped_rows))
    branch = conversations.branch(tx, branch.id)
    undo_desk(tx, write, active, branch)
    made = conversations.insert_fork(tx, write.fork, branch, active.in_lo)
    if branch.id == conversations.main(tx, branch.conversation).id:
        conversations.move_to(tx, branch.conversation, made)
    return replace(made, queued=hand_over(tx, branch, made)), active.id


def undo_desk(tx: Tx, write: AcceptTurn, active: Run, branch: Branch) -> None:
    """The state is as it was when the run was claimed."""
    if active.session == NIL:
        return
    head = locked(tx, active.session)
    if lifetime.alive(head, tx.now) and head.version > active.desk_version:
        back = RollBack(
            session=head.id, by=write.owner, version=active.desk_version, run=write.run, branch=branch.id, seq=branch.tail
        )
        desk_versions.back(tx, head, back)


def hand_over(tx: Tx, old: Branch, made: Branch) -> int:
    """Turns that wait go where the conversation goes, in their order."""
    waiting = waiting_on(tx, old.id)
    home = ids.home(old.id)
    for row in waiting:
        tx.runs[row.id] = replace(row, branch=made.id)
        tx.run(
            "update run set branch = ? where tenant = ? and home = ? and id = ?", (made.id, tx.tenant, ids.home(row.id), row.id)
        )
    tx.run(
        "update branch set queue_no = (select b.queue_no from branch b where b.tenant = ?1 and b.home = ?2 and b.id = ?3)"
        " where tenant = ?1 and home = ?2 and id = ?4",
        (tx.tenant, home, old.id, made.id),
    )
    tx.run("update branch set queued = 0 where tenant = ? and home = ? and id = ?", (tx.tenant, home, old.id))
    return len(waiting)
