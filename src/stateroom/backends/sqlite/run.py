"""A run's life in SQLite: heartbeat, log, finish, cancel, requeue, delete."""

from __future__ import annotations

from msgspec.structs import replace

from stateroom import ids, limits
from stateroom.backends.sqlite import conversation as conversations
from stateroom.backends.sqlite import session as sessions
from stateroom.backends.sqlite.accept import first_queued, take
from stateroom.backends.sqlite.run_read import inbox, run, run_row
from stateroom.backends.sqlite.run_rows import clear_due, log, save, save_branch
from stateroom.backends.sqlite.tx import Tx
from stateroom.conversation.model import Branch, Changed, ItemQuery
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
from stateroom.session.model import Patched, PatchSlots

# ── work ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def heartbeat(tx: Tx, write: Heartbeat) -> Beaten:
    row = run(tx, write.run)
    machine.check_fence(row, write.fence)
    clear_due(tx, row)
    row = replace(row, lease_until=max(row.lease_until, tx.now + write.lease.ms))
    tx.run("insert into due(kind, at, tenant, id) values ('lease', ?, ?, ?)", (row.lease_until, tx.tenant, row.id))
    save(tx, row, due_at=row.lease_until)
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
        if waiting is not None and (not write.next.agents or waiting.agent in write.next.agents):
            following = take(tx, waiting, branch, lease=write.next, rows=write.next_rows)
    return Finished(run=row, next=following)


def end(tx: Tx, row: Run, write: Finish) -> tuple[Run, Branch | None]:
    """Outputs, status, usage, the log's end: what every end of a run does."""
    owns = row.stored and row.branch != NIL
    branch = conversations.branch(tx, row.branch) if owns else None
    clear_due(tx, row)
    if branch is not None:
        never_ran = row.status == "queued" and row.in_hi == 0
        if never_ran:
            row, branch = append_unrun(tx, row, branch)
        row, branch = release(tx, row, branch, write, never_ran=never_ran)
    row = replace(
        row, status=write.status, usage=write.usage, error=write.error, finished_at=tx.at, lease_owner="", lease_until=0
    )
    row = log(tx, row, write.rows)
    save(tx, row, due_at=0)
    if branch is not None:
        save_branch(tx, branch)
    tx.touched.add(row.id)
    return row, branch


def append_unrun(tx: Tx, row: Run, branch: Branch) -> tuple[Run, Branch]:
    """Input of a turn that never ran joins the record, marked."""
    tail = conversations.insert_items(tx, branch.id, branch.tail, inbox(tx, row.id), run=row.id, mark="not_run")
    tx.run("delete from inbox where tenant = ? and home = ? and run = ?", (tx.tenant, ids.home(row.id), row.id))
    return replace(row, in_lo=branch.tail, in_hi=tail), replace(branch, tail=tail)


def release(tx: Tx, row: Run, branch: Branch, write: Finish, *, never_ran: bool) -> tuple[Run, Branch]:
    """The outputs join the record and the branch is free for the next turn."""
    tail = conversations.insert_items(tx, branch.id, branch.tail, write.outputs, run=row.id)
    mark = machine.marks_input(write.status)
    if mark and not never_ran:
        tx.run(
            "update item set mark = ? where tenant = ? and home = ? and branch = ? and seq > ? and seq <= ? and run = ?",
            (mark, tx.tenant, ids.home(branch.id), branch.id, row.in_lo, row.in_hi, row.id),
        )
    tx.touched.add(branch.id)
    return replace(row, out_hi=tail), replace(
        branch,
        tail=tail,
        active_run=NIL if branch.active_run == row.id else branch.active_run,
        queued=branch.queued - (1 if row.status == "queued" else 0),
        last_run=branch.last_run if mark else row.id,
        revision=branch.revision + (1 if mark and not never_ran else 0),
    )


# ── cancel, recovery, delete ────────────────────────────────────────────────────────────────────────────────────────


def cancel(tx: Tx, write: Cancel) -> Cancelled:
    row = run(tx, write.run)
    target = machine.advance(row.status, "cancel")
    if target == "cancelled":
        row, _ = end(tx, row, Finish(run=row.id, fence=None, status="cancelled", rows=write.rows))
        return Cancelled(run=row)
    row = tx.runs[row.id] = replace(row, status=target, cancel_at=row.cancel_at or tx.now)
    tx.run(
        "update run set status = ?, cancel_at = ? where tenant = ? and home = ? and id = ?",
        (row.status, row.cancel_at, tx.tenant, ids.home(row.id), row.id),
    )
    tx.touched.add(row.id)
    return Cancelled(run=row)


def requeue(tx: Tx, write: Requeue) -> Requeued:
    row = run(tx, write.run)
    machine.check_requeue(row, now=tx.now, fence=write.fence, owner_gone=write.owner_gone)
    status = machine.advance(row.status, "requeue")
    if not row.stored or row.branch == NIL:
        raise IllegalMove("A run that is not stored cannot be tried again.", status=row.status, move="requeue")
    branch = conversations.branch(tx, row.branch)
    clear_due(tx, row)
    head = tx.one(
        "select ifnull((select min(queue_no) - 1 from run where tenant = ?1 and home = ?2 and branch = ?3 and status = 'queued'),"
        " (select queue_no from branch where tenant = ?1 and home = ?2 and id = ?3))",
        (tx.tenant, ids.home(branch.id), branch.id),
    )
    assert head is not None
    row = replace(
        row, status=status, attempt=row.attempt + 1, fence=row.fence + 1, lease_owner="", lease_until=0, queue_no=head[0]
    )
    row = log(tx, row, write.rows)
    due_at = tx.now  # whoever sweeps next may take it, should this worker die before it does
    tx.run("insert into due(kind, at, tenant, id) values ('lease', ?, ?, ?)", (due_at, tx.tenant, row.id))
    save(tx, row, due_at=due_at)
    save_branch(tx, replace(branch, active_run=NIL, queued=branch.queued + 1))
    tx.touched |= {row.id, branch.id}
    return Requeued(run=row)


def delete(tx: Tx, write: DeleteRun) -> Changed:
    row = run(tx, write.run)
    if not row.ended:
        raise Conflict("The run has not ended; cancel it first.", code="run_active", status=row.status)
    if row.stored and row.branch != NIL:
        bury_chain(tx, row)
    for table in ("run_log", "inbox"):
        tx.run(f"delete from {table} where tenant = ? and home = ? and run = ?", (tx.tenant, ids.home(row.id), row.id))
    tx.run("delete from run where tenant = ? and home = ? and id = ?", (tx.tenant, ids.home(row.id), row.id))
    del tx.runs[row.id]
    tx.touched.add(row.id)
    return Changed()


def bury_chain(tx: Tx, row: Run) -> None:
    """In a bare chain a deleted response takes its items along, unless a later response shows them."""
    home = ids.home(row.branch)
    kind = tx.one("select kind from conversation where tenant = ? and home = ? and id = ?", (tx.tenant, home, row.conversation))
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


def patch_slots(tx: Tx, write: PatchSlots) -> Patched:
    """A patch under a run's fence first shows that the lease is still held."""
    if write.fence:
        machine.check_fence(run(tx, write.run), write.fence)
    return sessions.patch(tx, write)
