"""A run's life in SQLite: heartbeat, log, finish, cancel, requeue, delete."""

from __future__ import annotations

from msgspec.structs import replace

from stateroom import ids, limits
from stateroom.backends.sql import conversation as conversations
from stateroom.backends.sql import desk_life, desk_versions
from stateroom.backends.sql import session as sessions
from stateroom.backends.sql.accept import take
from stateroom.backends.sql.ending import cancel_row, end, requeue_row
from stateroom.backends.sql.run_read import first_queued, run, run_row
from stateroom.backends.sql.run_rows import clear_compaction, clear_due, log, save
from stateroom.backends.sql.tx import Tx
from stateroom.conversation.model import Changed, ItemQuery
from stateroom.errors import Conflict, IllegalMove
from stateroom.ids import NIL
from stateroom.run import machine
from stateroom.run.model import (
    Beaten,
    Cancel,
    Cancelled,
    DeleteRun,
    Finish,
    Finished,
    Heartbeat,
    Log,
    Recorded,
    Requeue,
    Requeued,
    Run,
)
from stateroom.session.model import MarkTurn, PatchSlots, RollBack
from stateroom.session.receipts import Noted, Patched, RolledBack

# ── work ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def heartbeat(tx: Tx, write: Heartbeat) -> Beaten:
    row = run(tx, write.run)
    machine.check_fence(row, write.fence)
    clear_due(tx, row)
    row = replace(row, lease_until=max(row.lease_until, tx.now + write.lease.ms))
    tx.run("insert into due(kind, at, tenant, id) values ('lease', ?, ?, ?)", (row.lease_until, tx.tenant, row.id))
    save(tx, row, due_at=row.lease_until)
    if row.session != NIL:
        desk_life.keep_alive(tx, row.session)
    return Beaten(lease_until=row.lease_until, cancel=row.status == "cancelling")


def record(tx: Tx, write: Log) -> Recorded:
    row = run(tx, write.run)
    machine.check_fence(row, write.fence)
    first = row.head + 1
    row = log(tx, row, write.rows)
    tx.runs[row.id] = row
    tx.run("update run set head = ? where tenant = ? and home = ? and id = ?", (row.head, tx.tenant, ids.home(row.id), row.id))
    tx.touched.add(row.id)
    return Recorded(first=first, head=row.head, cancel=row.status == "cancelling")


def finish(tx: Tx, write: Finish) -> Finished:
    row = run(tx, write.run)
    if write.fence is not None:
        machine.check_fence(row, write.fence)
    status = machine.ending(row, write.status)
    row, branch = end(tx, row, write)
    following = None
    if branch is not None and write.next is not None and status and branch.active_run == NIL and branch.queued:
        waiting = run_row(tx, first_queued(tx, branch.id))
        wanted = waiting is not None and (not write.next.agents or waiting.agent in write.next.agents)
        if waiting is not None and wanted and tx.scope.may_see(waiting.owner):
            following = take(tx, waiting, branch, lease=write.next, rows=write.next_rows)
    return Finished(run=row, next=following)


# ── cancel, recovery, delete ────────────────────────────────────────────────────────────────────────────────────────


def cancel(tx: Tx, write: Cancel) -> Cancelled:
    return Cancelled(run=cancel_row(tx, run(tx, write.run), rows=write.rows))


def requeue(tx: Tx, write: Requeue) -> Requeued:
    row = run(tx, write.run)
    machine.check_requeue(row, now=tx.now, fence=write.fence, owner_gone=write.owner_gone)
    status = machine.advance(row.status, "requeue")
    if not row.stored or row.branch == NIL:
        raise IllegalMove("A run that is not stored cannot be tried again.", status=row.status, move="requeue")
    clear_due(tx, row)
    row = replace(
        row, status=status, attempt=row.attempt + (not write.planned), fence=row.fence + 1, lease_owner="", lease_until=0
    )
    return Requeued(run=requeue_row(tx, row, rows=write.rows))


def delete(tx: Tx, write: DeleteRun) -> Changed:
    row = run(tx, write.run)
    if not row.ended:
        raise Conflict("The run has not ended; cancel it first.", code="run_active", status=row.status)
    clear_compaction(tx, row)
    for table in ("run_log", "inbox", "step", "action"):
        tx.run(f"delete from {table} where tenant = ? and home = ? and run = ?", (tx.tenant, ids.home(row.id), row.id))
    tx.run("delete from run where tenant = ? and home = ? and id = ?", (tx.tenant, ids.home(row.id), row.id))
    del tx.runs[row.id]
    if row.stored and row.branch != NIL:
        bury_chain(tx, row)
    tx.touched.add(row.id)
    return Changed()


def bury_chain(tx: Tx, row: Run) -> None:
    """In a bare chain a deleted response takes its items along, unless a later response shows them."""
    home = ids.home(row.branch)
    kind = tx.one(
        "select kind from conversation where tenant = ? and home = ? and id = ? and gone = 0", (tx.tenant, home, row.conversation)
    )
    if kind is None or kind[0] != "chain":
        return
    branch = conversations.branch(tx, row.branch)
    later = conversations.items_of(tx, branch, ItemQuery(branch=branch.id, limit=1, after=row.out_hi))
    fork = tx.one(
        "select 1 from branch where tenant = ? and home = ? and parent = ? and up_to > ? and gone = 0 limit 1",
        (tx.tenant, home, branch.id, row.in_lo),
    )
    if not later and not fork:
        query = ItemQuery(branch=branch.id, limit=limits.READ_ITEMS_MAX, after=row.in_lo, before=row.out_hi + 1, run=row.id)
        conversations.bury(tx, branch, conversations.items_of(tx, branch, query))
        bury_leftovers(tx, branch.id)


def bury_leftovers(tx: Tx, branch_id: bytes) -> None:
    """Items of responses that were deleted earlier and stayed because a later response, now gone, showed them."""
    while True:
        branch = conversations.branch(tx, branch_id)
        last = conversations.items_of(tx, branch, ItemQuery(branch=branch_id, limit=1, newest_first=True))
        if not last or last[0].run == NIL or last[0].branch != branch_id or run_row(tx, last[0].run) is not None:
            return
        query = ItemQuery(branch=branch_id, limit=limits.READ_ITEMS_MAX, run=last[0].run)
        conversations.bury(tx, branch, conversations.items_of(tx, branch, query))


def patch_slots(tx: Tx, write: PatchSlots) -> Patched:
    """A patch under a run's fence first shows that the lease is still held."""
    if write.fence:
        machine.check_fence(run(tx, write.run), write.fence)
    return sessions.patch(tx, write)


def mark_turn(tx: Tx, write: MarkTurn) -> Noted:
    """After the run's end, in its batch: how far the conversation had come is the run's to say."""
    return desk_versions.mark_turn(tx, write, run(tx, write.run))


def roll_back(tx: Tx, write: RollBack) -> RolledBack:
    """As a patch."""
    if write.fence:
        machine.check_fence(run(tx, write.run), write.fence)
    return desk_versions.roll_back(tx, write)
