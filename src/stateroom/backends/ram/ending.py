"""How runs end, wait again and give way in ram: what finish, cancel, recovery, answers and double texting share."""

from __future__ import annotations

from msgspec.structs import replace

from stateroom.backends.ram import conversation as record
from stateroom.backends.ram.action_rows import close_actions
from stateroom.backends.ram.run_rows import enter, inbox_of, leave_queue, place_of, unwatch, wait, watch, write_rows
from stateroom.backends.ram.store import Transaction
from stateroom.conversation.model import Branch
from stateroom.ids import NIL
from stateroom.run import machine
from stateroom.run.model import Finish, NewRow, Run


def end(tx: Transaction, run: Run, write: Finish) -> Run:
    """Outputs, terminal status and the log's end appear together (R5); nothing is waited for or looked at any more."""
    if (branch := place_of(tx, run)) is not None:
        run, branch = _end_input(tx, run, branch, write)
        branch = record.extend(tx, branch, write.outputs, run=run.id)
        tx.put_branch(
            replace(
                branch,
                active_run=NIL if branch.active_run == run.id else branch.active_run,
                last_run=run.id if write.status in ("completed", "incomplete") else branch.last_run,
            )
        )
        run = replace(run, out_hi=branch.tail)
    close_actions(tx, run.id)
    unwatch(tx, run)
    if write.compact_ms:
        tx.tables.due.put((tx.tenant, run.id, "compact"), tx.now + write.compact_ms)
    run = replace(
        run, status=write.status, usage=write.usage, error=write.error, lease_owner="", lease_until=0, finished_at=tx.at
    )
    return write_rows(tx, run, write.rows)


def _end_input(tx: Transaction, run: Run, branch: Branch, write: Finish) -> tuple[Run, Branch]:
    """Input of a turn that never ran enters the record now, marked; input of one that ended badly is marked there."""
    if run.status == "queued":
        branch = leave_queue(tx, run, branch)
    if run.fence == 0:
        return enter(tx, run, branch, drafts=inbox_of(tx, run.id), mark="not_run")
    if machine.marks_input(write.status) and not write.keep_input:
        branch = record.mark_input(tx, branch, run.id, lo=run.in_lo, hi=run.in_hi, mark="failed")
    return run, branch


def cancel_run(tx: Transaction, run: Run, *, rows: tuple[NewRow, ...], error: bytes = b"", keep_input: bool = False) -> Run:
    """Nobody works on it: it ends. Somebody does: they are asked to end it, once."""
    status = machine.advance(run.status, "cancel")
    if status == "cancelled":
        return end(tx, run, Finish(run=run.id, fence=None, status=status, error=error, rows=rows, keep_input=keep_input))
    return tx.put_run(replace(run, status=status, cancel_at=run.cancel_at or tx.now, error=error or run.error))


def queue_again(tx: Transaction, run: Run, branch: Branch, rows: tuple[NewRow, ...]) -> Run:
    """A run that had its branch waits again, before all others. Due at once: whoever sweeps next may take it."""
    run, _ = wait(tx, run, replace(branch, active_run=NIL), first=True)
    return write_rows(tx, watch(tx, run, tx.now), rows)
