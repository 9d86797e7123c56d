"""Runs in ram: reads, and one function per write. Every decision is the machine's."""

from __future__ import annotations

from bisect import bisect_right

from msgspec.structs import replace

from stateroom import ids, limits
from stateroom.backends.ram import conversation as record
from stateroom.backends.ram.store import Queue, Reader, Transaction
from stateroom.batch import Draft, KeyRow
from stateroom.conversation.model import Branch, Changed, Mark
from stateroom.errors import Conflict, IllegalMove
from stateroom.ids import NIL
from stateroom.run import machine
from stateroom.run.model import (
    Beaten,
    Cancel,
    Cancelled,
    Claim,
    Claimed,
    DeleteRun,
    Finish,
    Finished,
    Heartbeat,
    Lease,
    Log,
    LogRow,
    NewRow,
    Recorded,
    Requeue,
    Requeued,
    Run,
    RunQuery,
    Status,
)

# ── reads ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def see_run(reader: Reader, run: bytes, kind: str = "run") -> Run:
    row = reader.tables.runs.get((reader.tenant, run))
    if row is None or not reader.scope.may_see(row.owner):
        raise ids.missing(kind, run)
    return row


def runs(reader: Reader, query: RunQuery) -> list[Run]:
    seen = sorted(reader.visible(reader.tables.runs), key=lambda row: (row.created_at, row.id), reverse=True)
    if query.after != NIL:
        seen = seen[seen.index(see_run(reader, query.after)) + 1 :]
    wanted = [row for row in seen if query.conversation in (NIL, row.conversation) and query.status in (None, row.status)]
    return wanted[: query.limit]


def key(reader: Reader, operation: str, key: str) -> KeyRow | None:
    return reader.tables.keys.get((reader.tenant, reader.scope.principal, operation, key))


def inbox(reader: Reader, run: bytes) -> list[Draft]:
    see_run(reader, run)
    return list(_inbox(reader, run))


def log(reader: Reader, run: bytes, *, after: int, limit: int) -> list[LogRow]:
    see_run(reader, run)
    rows = reader.tables.log.get((reader.tenant, run)) or ()
    start = bisect_right(rows, after, key=lambda row: row.first + row.count - 1)
    return list(rows[start : start + limit])


def heads(reader: Reader, wanted: list[bytes]) -> dict[bytes, tuple[int, bool]]:
    found = (reader.tables.runs.get((reader.tenant, run)) for run in wanted)
    return {row.id: (row.head, row.ended) for row in found if row is not None and reader.scope.may_see(row.owner)}


def _inbox(reader: Reader, run: bytes) -> tuple[Draft, ...]:
    return reader.tables.inbox.get((reader.tenant, run)) or ()


def _queue(reader: Reader, branch: bytes) -> Queue:
    return reader.tables.queues.get((reader.tenant, branch)) or Queue()


def _place(reader: Reader, run: Run) -> Branch | None:
    """The branch a run occupies or waits for; one that is not stored only looks at its branch."""
    return reader.tables.branches.get((reader.tenant, run.branch)) if run.stored else None


# ── waiting and working ─────────────────────────────────────────────────────────────────────────────────────────────


def claimed(tx: Transaction, run: Run, branch: Branch | None) -> Claimed:
    session = tx.tables.sessions.get((tx.tenant, run.session))
    return Claimed(
        run=run,
        revision=branch.revision if branch is not None else 0,
        session_version=session.version if session is not None else 0,
    )


def wait(tx: Transaction, run: Run, branch: Branch, *, drafts: tuple[Draft, ...], rows: tuple[NewRow, ...]) -> tuple[Run, Branch]:
    """The turn goes to the end of its branch's queue; its input waits in the inbox (R6)."""
    tx.tables.inbox.put((tx.tenant, run.id), drafts)
    queue = _queue(tx, branch.id)
    run = replace(run, queue_no=queue.last + 1)
    tx.tables.queues.put((tx.tenant, branch.id), Queue(last=run.queue_no, waiting=(*queue.waiting, run.id)))
    branch = tx.put_branch(replace(branch, queued=branch.queued + 1))
    return write_rows(tx, watch(tx, run, tx.now + limits.LEASE_MS), rows), branch


def leave_queue(tx: Transaction, run: Run, branch: Branch) -> Branch:
    queue = _queue(tx, branch.id)
    waiting = tuple(other for other in queue.waiting if other != run.id)
    tx.tables.queues.put((tx.tenant, branch.id), replace(queue, waiting=waiting))
    return tx.put_branch(replace(branch, queued=branch.queued - 1))


def start(
    tx: Transaction, run: Run, branch: Branch, *, drafts: tuple[Draft, ...], lease: Lease, rows: tuple[NewRow, ...]
) -> tuple[Run, Branch]:
    """The turn takes its branch. Input of a run that was queued again is in the record already."""
    if run.fence == 0:
        run, branch = enter(tx, run, branch, drafts=drafts)
    branch = tx.put_branch(replace(branch, active_run=run.id))
    return take(tx, run, lease, rows), branch


def enter(tx: Transaction, run: Run, branch: Branch, *, drafts: tuple[Draft, ...], mark: Mark = "") -> tuple[Run, Branch]:
    """A turn's input becomes items."""
    after = record.extend(tx, branch, drafts, run=run.id, mark=mark)
    tx.tables.inbox.drop((tx.tenant, run.id))
    return replace(run, in_lo=branch.tail, in_hi=after.tail), after


def take(tx: Transaction, run: Run, lease: Lease, rows: tuple[NewRow, ...]) -> Run:
    """A worker takes the run: the next fence, and a lease on the store's clock (R2, R7)."""
    run = replace(
        run,
        status=machine.advance(run.status, "claim"),
        fence=run.fence + 1,
        lease_owner=lease.owner,
        lease_until=tx.now + lease.ms,
        started_at=tx.at,
    )
    return write_rows(tx, watch(tx, run, run.lease_until), rows)


def watch(tx: Transaction, run: Run, until: int) -> Run:
    """When recovery has to look at the run: one line, until it ends."""
    tx.tables.due.put((tx.tenant, run.id, "lease"), until)
    return run


def write_rows(tx: Transaction, run: Run, rows: tuple[NewRow, ...]) -> Run:
    """Log entries get the run's next wire numbers, dense (R4). Writes the run's row."""
    head, written = run.head, []
    for row in rows:
        written.append(LogRow(first=head + 1, count=row.count, kind=row.kind, body=row.body, at=tx.at, item=row.item))
        head += row.count
    if written:
        tx.tables.log.put((tx.tenant, run.id), (*(tx.tables.log.get((tx.tenant, run.id)) or ()), *written))
    return tx.put_run(replace(run, head=head))


def claim(tx: Transaction, write: Claim) -> Claimed:
    run = see_run(tx, write.run)
    if run.branch == NIL:
        raise IllegalMove("A run that is not stored never waits.", status=run.status, move="claim")
    branch = record.see_branch(tx, run.branch)
    waiting = _queue(tx, branch.id).waiting
    machine.check_claim(run, active=branch.active_run, first_queued=waiting[0] if waiting else NIL)
    return _claim_next(tx, run, branch, write.lease, write.rows)


def _claim_next(tx: Transaction, run: Run, branch: Branch, lease: Lease, rows: tuple[NewRow, ...]) -> Claimed:
    branch = leave_queue(tx, run, branch)
    run, branch = start(tx, run, branch, drafts=_inbox(tx, run.id), lease=lease, rows=rows)
    return claimed(tx, run, branch)


def heartbeat(tx: Transaction, write: Heartbeat) -> Beaten:
    run = see_run(tx, write.run)
    machine.check_fence(run, write.fence)
    run = replace(run, lease_until=max(run.lease_until, tx.now + write.lease.ms))
    tx.put_run(watch(tx, run, run.lease_until))
    return Beaten(lease_until=run.lease_until, cancel=run.status == "cancelling")


def write_log(tx: Transaction, write: Log) -> Recorded:
    run = see_run(tx, write.run)
    machine.check_fence(run, write.fence)
    first = run.head + 1
    run = write_rows(tx, run, write.rows)
    return Recorded(first=first, head=run.head, cancel=run.status == "cancelling")


# ── ends ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def finish(tx: Transaction, write: Finish) -> Finished:
    run = see_run(tx, write.run)
    if write.fence is not None:
        machine.check_fence(run, write.fence)
    ended = replace(run, usage=write.usage, error=write.error)
    ended = _end(tx, ended, machine.ending(run, write.status), outputs=write.outputs, rows=write.rows)
    return Finished(run=ended, next=_next_turn(tx, ended, write.next, write.next_rows))


def _end(tx: Transaction, run: Run, status: Status, *, outputs: tuple[Draft, ...] = (), rows: tuple[NewRow, ...] = ()) -> Run:
    """Outputs, terminal status and the log's end appear together (R5)."""
    if (branch := _place(tx, run)) is not None:
        run, branch = _end_input(tx, run, branch, status)
        branch = record.extend(tx, branch, outputs, run=run.id)
        good = machine.marks_input(status) == ""
        tx.put_branch(
            replace(
                branch,
                active_run=NIL if branch.active_run == run.id else branch.active_run,
                last_run=run.id if good else branch.last_run,
            )
        )
        run = replace(run, out_hi=branch.tail)
    tx.tables.due.drop((tx.tenant, run.id, "lease"))
    return write_rows(tx, replace(run, status=status, lease_owner="", lease_until=0, finished_at=tx.at), rows)


def _end_input(tx: Transaction, run: Run, branch: Branch, status: Status) -> tuple[Run, Branch]:
    """Input of a turn that never ran enters the record now, marked; input of one that ended badly is marked there."""
    if run.status == "queued":
        branch = leave_queue(tx, run, branch)
    if run.fence == 0:
        return enter(tx, run, branch, drafts=_inbox(tx, run.id), mark="not_run")
    if machine.marks_input(status) == "failed":
        branch = record.mark_input(tx, branch, run.id, lo=run.in_lo, hi=run.in_hi, mark="failed")
    return run, branch


def _next_turn(tx: Transaction, ended: Run, lease: Lease | None, rows: tuple[NewRow, ...]) -> Claimed | None:
    """The queue's head, for the worker that has just become free, if it may and can run it."""
    branch = _place(tx, ended)
    if lease is None or branch is None or branch.active_run != NIL:
        return None
    for waiting in _queue(tx, branch.id).waiting[:1]:
        run = tx.tables.runs.get((tx.tenant, waiting))
        assert run is not None, "a waiting run cannot be deleted"
        if tx.scope.may_see(run.owner) and (not lease.agents or run.agent in lease.agents):
            return _claim_next(tx, run, branch, lease, rows)
    return None


def cancel(tx: Transaction, write: Cancel) -> Cancelled:
    """Nobody works on it: it ends. Somebody does: they are asked to end it, once."""
    run = see_run(tx, write.run)
    status = machine.advance(run.status, "cancel")
    if status == "cancelled":
        return Cancelled(run=_end(tx, run, status, rows=write.rows))
    return Cancelled(run=tx.put_run(replace(run, status=status, cancel_at=run.cancel_at or tx.now)))


def requeue(tx: Transaction, write: Requeue) -> Requeued:
    """Back to the head of the queue, under a fence that its old worker does not hold."""
    run = see_run(tx, write.run)
    machine.check_requeue(run, now=tx.now, fence=write.fence, owner_gone=write.owner_gone)
    status = machine.advance(run.status, "requeue")
    if (branch := _place(tx, run)) is None:
        raise IllegalMove("Its content was in the worker only.", status=run.status, move="requeue")
    queue = _queue(tx, branch.id)
    first = tx.tables.runs.get((tx.tenant, queue.waiting[0])) if queue.waiting else None
    run = replace(
        run,
        status=status,
        attempt=run.attempt + 1,
        fence=run.fence + 1,
        lease_owner="",
        lease_until=0,
        queue_no=first.queue_no - 1 if first is not None else queue.last,
    )
    tx.tables.queues.put((tx.tenant, branch.id), replace(queue, waiting=(run.id, *queue.waiting)))
    tx.put_branch(replace(branch, active_run=NIL, queued=branch.queued + 1))
    return Requeued(run=write_rows(tx, watch(tx, run, tx.now), write.rows))


def delete_run(tx: Transaction, write: DeleteRun) -> Changed:
    """Row, log and inbox go; the key stays, so that a retry does not run again."""
    run = see_run(tx, write.run)
    if not run.ended:
        raise Conflict("The run has not ended.", code="run_active", status=run.status)
    tx.tables.runs.drop((tx.tenant, run.id))
    tx.tables.log.drop((tx.tenant, run.id))
    tx.tables.inbox.drop((tx.tenant, run.id))
    tx.changed.add(run.id)
    conversation = tx.tables.conversations.get((tx.tenant, run.conversation))
    branch = _place(tx, run)
    if branch is not None and conversation is not None and conversation.kind == "chain":
        _delete_answer(tx, run, branch)
    return Changed()


def _delete_answer(tx: Transaction, run: Run, branch: Branch) -> None:
    """Items of a bare chain go with their response, unless a later one shows them."""
    later = any(True for _ in record.shown(tx, branch, after=run.out_hi))
    forked = any(child.up_to > run.in_lo and record.lives(tx, child) for child in record.children(tx, branch))
    if not later and not forked:
        answer = [item for item in record.shown(tx, branch, after=run.in_lo) if item.run == run.id]
        record.tombstone(tx, branch, answer)
