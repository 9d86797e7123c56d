"""How runs end, wait again and give way in SQLite: what finish, cancel, recovery, answers and double texting share."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from stateroom import ids
from stateroom.backends.sql import conversation as conversations
from stateroom.backends.sql.action_rows import close_actions
from stateroom.backends.sql.run_read import inbox
from stateroom.backends.sql.run_rows import clear_deadline, clear_due, log, save, save_branch
from stateroom.backends.sql.tx import Tx
from stateroom.conversation.model import Branch
from stateroom.ids import NIL
from stateroom.run import machine
from stateroom.run.model import Finish, NewRow, Run


def end(tx: Tx, row: Run, write: Finish) -> tuple[Run, Branch | None]:
    """Outputs, status, usage, the log's end: what every end of a run does."""
    owns = row.stored and row.branch != NIL
    branch = conversations.branch(tx, row.branch) if owns else None
    clear_due(tx, row)
    if row.status == "requires_action":
        close_actions(tx, row.id)
    clear_deadline(tx, row)
    if branch is not None:
        never_ran = row.fence == 0
        if never_ran:
            row, branch = append_unrun(tx, row, branch)
        row, branch = release(tx, row, branch, write, never_ran=never_ran)
    row = replace(
        row, status=write.status, usage=write.usage, error=write.error, finished_at=tx.at, lease_owner="", lease_until=0
    )
    row = log(tx, row, write.rows)
    compact_at = tx.now + write.compact_ms if write.compact_ms else 0
    if compact_at:
        tx.run("insert into due(kind, at, tenant, id) values ('compact', ?, ?, ?)", (compact_at, tx.tenant, row.id))
    save(tx, row, due_at=compact_at)
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
    mark = "" if write.keep_input else machine.marks_input(write.status)
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
        last_run=row.id if write.status in ("completed", "incomplete") else branch.last_run,
        revision=branch.revision + (1 if mark and not never_ran else 0),
    )


def cancel_row(tx: Tx, row: Run, *, rows: Sequence[NewRow], error: bytes = b"", keep_input: bool = False) -> Run:
    """A run that nobody works on ends at once; one in progress is asked to."""
    target = machine.advance(row.status, "cancel")
    if target == "cancelled":
        write = Finish(run=row.id, fence=None, status=target, error=error, rows=tuple(rows), keep_input=keep_input)
        return end(tx, row, write)[0]
    row = tx.runs[row.id] = replace(row, status=target, cancel_at=row.cancel_at or tx.now, error=error or row.error)
    tx.run(
        "update run set status = ?, cancel_at = ?, error = ? where tenant = ? and home = ? and id = ?",
        (row.status, row.cancel_at, row.error, tx.tenant, ids.home(row.id), row.id),
    )
    tx.touched.add(row.id)
    return row


def requeue_row(tx: Tx, row: Run, *, rows: Sequence[NewRow]) -> Run:
    """A run that had its branch waits again, before all others. Due at once: whoever sweeps next may take it."""
    branch = conversations.branch(tx, row.branch)
    row = log(tx, replace(row, queue_no=first_number(tx, branch.id)), rows)
    tx.run("insert into due(kind, at, tenant, id) values ('lease', ?, ?, ?)", (tx.now, tx.tenant, row.id))
    save(tx, row, due_at=tx.now)
    save_branch(tx, replace(branch, active_run=NIL, queued=branch.queued + 1))
    tx.touched |= {row.id, branch.id}
    return row


def first_number(tx: Tx, branch_id: bytes) -> int:
    """A queue number before everybody who waits."""
    row = tx.one(
        "select coalesce((select min(queue_no) - 1 from run"
        " where tenant = ?1 and home = ?2 and branch = ?3 and status = 'queued'),"
        " (select queue_no from branch where tenant = ?1 and home = ?2 and id = ?3))",
        (tx.tenant, ids.home(branch_id), branch_id),
    )
    assert row is not None
    return int(row[0])
