"""How runs wait, start, are watched and logged in ram: what their writes have in common."""

from __future__ import annotations

from msgspec.structs import replace

from stateroom import ids, limits
from stateroom.backends.ram import conversation as record
from stateroom.backends.ram.store import Queue, Reader, Transaction
from stateroom.batch import Draft
from stateroom.conversation.model import Branch, Mark
from stateroom.ids import NIL
from stateroom.run import machine
from stateroom.run.model import Claimed, Lease, LogRow, NewRow, Run

# ── looking ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def see_run(reader: Reader, run: bytes, kind: str = "run") -> Run:
    row = reader.tables.runs.get((reader.tenant, run))
    if row is None or not reader.scope.may_see(row.owner):
        raise ids.missing(kind, run)
    return row


def inbox_of(reader: Reader, run: bytes) -> tuple[Draft, ...]:
    return reader.tables.inbox.get((reader.tenant, run)) or ()


def place_of(reader: Reader, run: Run) -> Branch | None:
    """The branch a run occupies or waits for; one that is not stored only looks at its branch."""
    return reader.tables.branches.get((reader.tenant, run.branch)) if run.stored else None


def waiting_on(reader: Reader, branch: bytes) -> list[Run]:
    """A branch's own queue, first to last, whoever owns what waits there."""
    found = (reader.tables.runs.get((reader.tenant, run)) for run in _queue(reader, branch).waiting)
    return [run for run in found if run is not None]


def active_on(reader: Reader, branch: Branch) -> Run | None:
    """The run that has the branch, or waits first in its queue to go on."""
    if branch.active_run != NIL:
        return reader.tables.runs.get((reader.tenant, branch.active_run))
    first = next(iter(waiting_on(reader, branch.id)), None)
    return first if machine.underway(first) else None


def claimed(tx: Transaction, run: Run, branch: Branch | None) -> Claimed:
    session = tx.tables.sessions.get((tx.tenant, run.session))
    version = 0 if session is None else max(session.version, 1) if session.status == "lost" else session.version
    return Claimed(run=run, revision=branch.revision if branch is not None else 0, session_version=version)


def _queue(reader: Reader, branch: bytes) -> Queue:
    return reader.tables.queues.get((reader.tenant, branch)) or Queue()


def hand_over(tx: Transaction, old: Branch, made: Branch) -> Branch:
    """Turns that wait go where the conversation goes, in their order."""
    waiting = waiting_on(tx, old.id)
    for run in waiting:
        tx.put_run(replace(run, branch=made.id))
    queue = _queue(tx, old.id)
    tx.tables.queues.put((tx.tenant, made.id), queue)
    tx.tables.queues.put((tx.tenant, old.id), replace(queue, waiting=()))
    tx.put_branch(replace(old, queued=0))
    return tx.put_branch(replace(made, queued=len(waiting)))


# ── waiting ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def wait(tx: Transaction, run: Run, branch: Branch, *, first: bool) -> tuple[Run, Branch]:
    """The turn joins its branch's queue, behind the others or before them."""
    queue = _queue(tx, branch.id)
    if first:
        ahead = next(iter(waiting_on(tx, branch.id)), None)
        run = replace(run, queue_no=ahead.queue_no - 1 if ahead is not None else queue.last)
        queue = replace(queue, waiting=(run.id, *queue.waiting))
    else:
        run = replace(run, queue_no=queue.last + 1)
        queue = Queue(last=run.queue_no, waiting=(*queue.waiting, run.id))
    tx.tables.queues.put((tx.tenant, branch.id), queue)
    return run, tx.put_branch(replace(branch, queued=branch.queued + 1))


def accept_waiting(
    tx: Transaction, run: Run, branch: Branch, *, drafts: tuple[Draft, ...], rows: tuple[NewRow, ...], first: bool
) -> tuple[Run, Branch]:
    """A new turn waits, and its input waits in the inbox (R6)."""
    tx.tables.inbox.put((tx.tenant, run.id), drafts)
    run, branch = wait(tx, run, branch, first=first)
    return write_rows(tx, watch(tx, run, tx.now + limits.QUEUE_LOOK_MS), rows), branch


def leave_queue(tx: Transaction, run: Run, branch: Branch) -> Branch:
    queue = _queue(tx, branch.id)
    waiting = tuple(other for other in queue.waiting if other != run.id)
    tx.tables.queues.put((tx.tenant, branch.id), replace(queue, waiting=waiting))
    return tx.put_branch(replace(branch, queued=branch.queued - 1))


# ── working ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def start(
    tx: Transaction, run: Run, branch: Branch, *, drafts: tuple[Draft, ...], lease: Lease, rows: tuple[NewRow, ...]
) -> tuple[Run, Branch]:
    """The turn takes its branch. Input of a run that was queued again is in the record already."""
    if run.fence == 0:
        run, branch = enter(tx, run, branch, drafts=drafts)
    branch = tx.put_branch(replace(branch, active_run=run.id))
    return take(tx, run, lease, rows), branch


def start_waiting(tx: Transaction, run: Run, branch: Branch, *, lease: Lease, rows: tuple[NewRow, ...]) -> Claimed:
    """The first of a queue takes its branch."""
    branch = leave_queue(tx, run, branch)
    desk = tx.tables.sessions.get((tx.tenant, run.session))
    if run.fence == 0 and desk is not None:
        run = replace(run, desk_version=desk.version)
    run, branch = start(tx, run, branch, drafts=inbox_of(tx, run.id), lease=lease, rows=rows)
    return claimed(tx, run, branch)


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
    """When recovery has to look at the run."""
    tx.tables.due.put((tx.tenant, run.id, "lease"), until)
    return run


def unwatch(tx: Transaction, run: Run) -> None:
    """The run has ended: there is nothing to look at any more."""
    for kind in ("lease", "deadline"):
        tx.tables.due.drop((tx.tenant, run.id, kind))


def write_rows(tx: Transaction, run: Run, rows: tuple[NewRow, ...]) -> Run:
    """Log entries get the run's next wire numbers, dense (R4). Writes the run's row."""
    head, written = run.head, []
    for row in rows:
        written.append(LogRow(first=head + 1, count=row.count, kind=row.kind, body=row.body, at=tx.at, item=row.item))
        head += row.count
    if written:
        tx.tables.log.put((tx.tenant, run.id), (*(tx.tables.log.get((tx.tenant, run.id)) or ()), *written))
    return tx.put_run(replace(run, head=head))
