"""Runs in ram: reads, and one function per write. Every decision is the machine's."""

from __future__ import annotations

from bisect import bisect_right

from msgspec.structs import replace

from stateroom.backends.ram import conversation as record
from stateroom.backends.ram.action_rows import actions_of
from stateroom.backends.ram.desk_life import keep_alive
from stateroom.backends.ram.ending import cancel_run, end, queue_again
from stateroom.backends.ram.run_rows import inbox_of, place_of, see_run, start_waiting, waiting_on, watch, write_rows
from stateroom.backends.ram.store import Reader, Transaction
from stateroom.batch import Draft, KeyRow
from stateroom.conversation.model import Branch, Changed, Item
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
)

# ── reads ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def runs(reader: Reader, query: RunQuery) -> list[Run]:
    seen = list(reader.visible(reader.tables.runs))[::-1]  # rows lie in the order they were accepted
    if query.after != NIL:
        seen = seen[seen.index(see_run(reader, query.after)) + 1 :]
    wanted = [row for row in seen if query.conversation in (NIL, row.conversation) and query.status in (None, row.status)]
    return [row for row in wanted if query.session in (NIL, row.session)][: query.limit]


def key(reader: Reader, operation: str, key: str) -> KeyRow | None:
    return reader.tables.keys.get((reader.tenant, reader.scope.principal, operation, key))


def inbox(reader: Reader, run: bytes) -> list[Draft]:
    see_run(reader, run)
    return list(inbox_of(reader, run))


def log(reader: Reader, run: bytes, *, after: int, limit: int) -> list[LogRow]:
    see_run(reader, run)
    rows = reader.tables.log.get((reader.tenant, run)) or ()
    start = bisect_right(rows, after, key=lambda row: row.first + row.count - 1)
    return list(rows[start : start + limit])


def heads(reader: Reader, wanted: list[bytes]) -> dict[bytes, tuple[int, bool]]:
    found = (reader.tables.runs.get((reader.tenant, run)) for run in wanted)
    return {row.id: (row.head, row.ended) for row in found if row is not None and reader.scope.may_see(row.owner)}


# ── work ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def claim(tx: Transaction, write: Claim) -> Claimed:
    run = see_run(tx, write.run)
    if run.branch == NIL:
        raise IllegalMove("A run that is not stored never waits.", status=run.status, move="claim")
    branch = record.see_branch(tx, run.branch)
    waiting = waiting_on(tx, branch.id)
    machine.check_claim(run, active=branch.active_run, first_queued=waiting[0].id if waiting else NIL)
    return start_waiting(tx, run, branch, lease=write.lease, rows=write.rows)


def heartbeat(tx: Transaction, write: Heartbeat) -> Beaten:
    run = see_run(tx, write.run)
    machine.check_fence(run, write.fence)
    run = replace(run, lease_until=max(run.lease_until, tx.now + write.lease.ms))
    tx.put_run(watch(tx, run, run.lease_until))
    keep_alive(tx, run.session)
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
    ended = end(tx, run, replace(write, status=machine.ending(run, write.status)))
    return Finished(run=ended, next=_next_turn(tx, ended, write.next, write.next_rows))


def _next_turn(tx: Transaction, ended: Run, lease: Lease | None, rows: tuple[NewRow, ...]) -> Claimed | None:
    """The queue's head, for the worker that has just become free, if it may and can run it."""
    branch = place_of(tx, ended)
    if lease is None or branch is None or branch.active_run != NIL:
        return None
    for run in waiting_on(tx, branch.id)[:1]:
        if tx.scope.may_see(run.owner) and (not lease.agents or run.agent in lease.agents):
            return start_waiting(tx, run, branch, lease=lease, rows=rows)
    return None


def cancel(tx: Transaction, write: Cancel) -> Cancelled:
    return Cancelled(run=cancel_run(tx, see_run(tx, write.run), rows=write.rows))


def requeue(tx: Transaction, write: Requeue) -> Requeued:
    """Back to the head of the queue, under a fence that its old worker does not hold."""
    run = see_run(tx, write.run)
    machine.check_requeue(run, now=tx.now, fence=write.fence, owner_gone=write.owner_gone)
    status = machine.advance(run.status, "requeue")
    if (branch := place_of(tx, run)) is None:
        raise IllegalMove("Its content was in the worker only.", status=run.status, move="requeue")
    run = replace(
        run,
        status=status,
        attempt=run.attempt if write.planned else run.attempt + 1,
        fence=run.fence + 1,
        lease_owner="",
        lease_until=0,
    )
    return Requeued(run=queue_again(tx, run, branch, write.rows))


def delete_run(tx: Transaction, write: DeleteRun) -> Changed:
    """Row, log, inbox, steps and actions go; the key stays, so that a retry does not run again."""
    run = see_run(tx, write.run)
    if not run.ended:
        raise Conflict("The run has not ended.", code="run_active", status=run.status)
    for action in actions_of(tx, run.id):
        tx.tables.action_places.drop((tx.tenant, action.id))
    for table in (tx.tables.runs, tx.tables.log, tx.tables.inbox, tx.tables.steps, tx.tables.actions):
        table.drop((tx.tenant, run.id))
    tx.tables.due.drop((tx.tenant, run.id, "compact"))
    tx.changed.add(run.id)
    conversation = tx.tables.conversations.get((tx.tenant, run.conversation))
    branch = place_of(tx, run)
    if branch is not None and conversation is not None and conversation.kind == "chain":
        _delete_answer(tx, run, branch)
    return Changed()


def _delete_answer(tx: Transaction, run: Run, branch: Branch) -> None:
    """Items of a bare chain go with their response, unless a later one shows them."""
    later = any(True for _ in record.shown(tx, branch, after=run.out_hi))
    forked = any(child.up_to > run.in_lo and record.lives(tx, child) for child in record.children(tx, branch))
    if not later and not forked:
        answer = [item for item in record.shown(tx, branch, after=run.in_lo) if item.run == run.id]
        branch = record.tombstone(tx, branch, answer)
        while leftovers := _leftovers(tx, branch):
            branch = record.tombstone(tx, branch, leftovers)


def _leftovers(tx: Transaction, branch: Branch) -> list[Item]:
    """What a response that was deleted earlier left behind because a later one, now gone, showed it."""
    own = [item for item in record.shown(tx, branch) if item.branch == branch.id]
    if not own or own[-1].run == NIL or tx.tables.runs.get((tx.tenant, own[-1].run)) is not None:
        return []
    return [item for item in own if item.run == own[-1].run]
