"""A turn's way in, in SQLite: its key, its place, its claim."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from stateroom import ids, limits
from stateroom.backends.sql import conversation as conversations
from stateroom.backends.sql import desk_life, desk_rows, undo
from stateroom.backends.sql import session as sessions
from stateroom.backends.sql.ending import cancel_row, first_number
from stateroom.backends.sql.run_read import active_on, first_queued, inbox, run, waiting_on
from stateroom.backends.sql.run_read import key as key_row
from stateroom.backends.sql.run_rows import clear_due, insert, log, save, save_branch
from stateroom.backends.sql.tx import Tx
from stateroom.batch import Batch, ClaimKey, Draft, KeyClaimed, KeyRow, Receipt, key_ref, made_by
from stateroom.conversation.model import Branch
from stateroom.errors import Conflict, IllegalMove
from stateroom.ids import NIL
from stateroom.run import machine
from stateroom.run.model import Accepted, AcceptTurn, Claim, Claimed, Lease, NewRow, Run, TurnKey
from stateroom.session import lifetime
from stateroom.session.model import Session

_NEW_KEY = "insert into turn_key(tenant, home, principal, operation, key, fingerprint, ref, at) values (?, ?, ?, ?, ?, ?, ?, ?)"
_RENEWED_KEY = (
    "update turn_key set fingerprint = ?, ref = ?, at = ?"
    " where tenant = ? and home = ? and principal = ? and operation = ? and key = ?"
)

# ── keys ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def claim_key(tx: Tx, write: ClaimKey) -> KeyClaimed:
    """Refused at its place in the batch; `keep_keys` writes it down."""
    free_key(tx, TurnKey(write.operation, write.key, write.fingerprint, write.home))
    return KeyClaimed()


def keep_keys(tx: Tx, batch: Batch, receipts: Sequence[Receipt]) -> None:
    """The keys that a batch claims, with the session's version that came of it: known only when all is done."""
    for write in batch.writes:
        if isinstance(write, ClaimKey):
            place = (tx.tenant, write.home, tx.scope.principal, write.operation, write.key)
            tx.run(_NEW_KEY, (*place, write.fingerprint, key_ref(write.ref, made_by(receipts)), tx.at))


def free_key(tx: Tx, key: TurnKey) -> KeyRow | None:
    """One key, one object: Known when there is one. A row from before `renew_before` is to be taken over."""
    used = key_row(tx, key.operation, key.key, key.home)
    if used is not None and used.at >= key.renew_before:
        raise used.known()
    return used


def use_key(tx: Tx, key: TurnKey, *, ref: bytes) -> None:
    place = (tx.tenant, key.home, tx.scope.principal, key.operation, key.key)
    if free_key(tx, key) is None:
        tx.run(_NEW_KEY, (*place, key.fingerprint, ref, tx.at))
    else:
        tx.run(_RENEWED_KEY, (key.fingerprint, ref, tx.at, *place))


# ── accept and claim ────────────────────────────────────────────────────────────────────────────────────────────────


def accept(tx: Tx, write: AcceptTurn) -> Accepted:
    if (key := write.key) is not None:
        use_key(tx, key, ref=write.run)
    previous = None if write.previous == NIL else run(tx, write.previous, "response")
    if previous is not None and not previous.stored:  # its answer was not kept: nothing can continue it
        raise ids.missing("response", write.previous)
    if not write.stored:
        return accept_unstored(tx, write, previous)
    branch = branch_of(tx, write, previous)
    verdict = machine.accept(write, place_of(tx, branch, previous=previous))
    branch, interrupted = give_way(tx, write, branch, verdict=verdict)
    session, session_version = desk_of(tx, write, branch)
    row = replace(new_run(tx, write, branch), session=session, merge=verdict.merge, desk_version=session_version)
    if write.claim is not None and machine.starts(verdict, active=branch.active_run, queued=branch.queued):
        row, branch = start(tx, row, branch, lease=write.claim, inputs=write.input)
        row = log(tx, row, write.claimed_rows)
        insert(tx, row, due_at=row.lease_until)
    else:
        row, branch = queue(tx, row, branch, inputs=write.input, first=verdict.interrupt or verdict.undo)
        row = log(tx, row, write.queued_rows)
        insert(tx, row, due_at=tx.now + limits.QUEUE_LOOK_MS)
    save_branch(tx, branch)
    return Accepted(
        run=row, revision=branch.revision, session_version=session_version, forked=verdict.fork_at is not None,
        interrupted=interrupted,
    )  # fmt: skip


def new_run(tx: Tx, write: AcceptTurn, branch: Branch | None) -> Run:
    return Run(
        id=write.run, conversation=branch.conversation if branch else NIL, branch=branch.id if branch else NIL, session=NIL,
        agent=write.agent, owner=write.owner, subject=write.subject, status="queued", previous=write.previous,
        stored=write.stored, options=write.options, created_at=tx.at, deadline_at=write.deadline_at,
        key=write.key.key if write.key is not None and write.key.renew_before == 0 else "",
    )  # fmt: skip


def place_of(tx: Tx, branch: Branch, *, previous: Run | None) -> machine.Place:
    active = active_on(tx, branch)
    return machine.Place(
        branch=branch.id, tail=branch.tail, active_run=active.id if active else NIL, queued=branch.queued,
        last_run=branch.last_run, settled=active.in_lo if active else branch.tail,
        foreign=active is not None and not tx.scope.may_see(active.owner), left=branch.moved_to != NIL, previous=previous,
    )  # fmt: skip


def give_way(tx: Tx, write: AcceptTurn, branch: Branch, *, verdict: machine.Verdict) -> tuple[Branch, bytes]:
    """What a verdict does to others, and the branch that the turn goes to then; the run that was asked to cancel, if any."""
    if verdict.undo:
        return undo.undo(tx, write, branch)
    if verdict.fork_at is not None:
        return conversations.insert_fork(tx, write.fork, branch, verdict.fork_at), NIL
    if not (verdict.drop_waiting or verdict.interrupt):
        return branch, NIL
    error, active = machine.superseded(write.run), active_on(tx, branch) if verdict.interrupt else None
    for waiting in waiting_on(tx, branch.id) if verdict.drop_waiting else ():
        if machine.drops(waiting) and tx.scope.may_see(waiting.owner):
            cancel_row(tx, waiting, rows=write.dropped_rows, error=error)
    if active is not None:
        cancel_row(tx, active, rows=write.dropped_rows, error=error, keep_input=True)
    branch = conversations.branch(tx, branch.id)
    return branch, branch.active_run if verdict.interrupt else NIL


def branch_of(tx: Tx, write: AcceptTurn, previous: Run | None) -> Branch:
    """The branch a turn asks for; with a previous response, the one that this is on."""
    if previous is not None:
        return conversations.branch(tx, previous.branch)
    if write.branch == NIL:
        return conversations.main(tx, write.conversation)
    found = conversations.main(tx, write.branch)
    if write.conversation not in (NIL, found.conversation):
        raise ids.missing("conversation", write.branch)
    return found


def accept_unstored(tx: Tx, write: AcceptTurn, previous: Run | None) -> Accepted:
    """The run's content stays with its worker; a conversation or response only lends its past."""
    lease = write.claim
    if lease is None:
        raise IllegalMove("A turn that is not stored cannot wait.", code="not_stored")
    branch = None
    if previous is not None or write.conversation != NIL or write.branch != NIL:
        branch = branch_of(tx, write, previous)
    if previous is not None and not previous.ended:
        raise Conflict("The previous response has not ended yet.", code="previous_response_in_progress")
    tail = 0 if branch is None else previous.out_hi if previous is not None else branch.tail
    row = replace(
        new_run(tx, write, branch), status="in_progress", fence=tx.fence_floor + 1, lease_owner=lease.owner,
        lease_until=tx.now + lease.ms, in_lo=tail, in_hi=tail, out_hi=tail, started_at=tx.at,
    )  # fmt: skip
    row = log(tx, row, write.claimed_rows)
    insert(tx, row, due_at=row.lease_until)
    tx.touched.add(row.id)
    return Accepted(run=row, revision=branch.revision if branch else 0, session_version=0, forked=False)


def desk_of(tx: Tx, write: AcceptTurn, branch: Branch) -> tuple[bytes, int]:
    """The session bound to (conversation, agent), made if needed. It belongs to whom the conversation belongs, whoever
    takes the first turn."""
    conversation = branch.conversation
    found = sessions.bound_row(tx, conversation, write.agent, lock=True)
    if found is not None:
        if found.status == "lost":
            lifetime.check(found, tx.now)
        if found.ttl_ms:
            desk_life.renew(tx, found)
        return found.id, found.version
    if write.session == NIL:
        return NIL, 0
    row = Session(
        id=write.session, owner=branch.owner, subject=write.subject, conversation=conversation, agent=write.agent,
        lineage=write.session, version=0, status="active", metadata=b"{}", created_at=tx.at, touched_at=tx.at,
    )  # fmt: skip
    sessions.insert(tx, row)
    return write.session, 0


def start(tx: Tx, row: Run, branch: Branch, *, lease: Lease, inputs: Sequence[Draft]) -> tuple[Run, Branch]:
    """The run takes its branch; its input becomes items (unless an earlier attempt has put them there)."""
    if row.fence == 0:
        tail = conversations.insert_items(tx, branch.id, branch.tail, inputs, run=row.id)
        row = replace(row, in_lo=branch.tail, in_hi=tail)
        branch = replace(branch, tail=tail)
    row = replace(
        row, status=machine.advance(row.status, "claim"), fence=max(row.fence, tx.fence_floor) + 1, lease_owner=lease.owner,
        lease_until=tx.now + lease.ms, started_at=tx.at,
    )  # fmt: skip
    tx.run("insert into due(kind, at, tenant, id) values ('lease', ?, ?, ?)", (row.lease_until, tx.tenant, row.id))
    tx.touched |= {row.id, branch.id}
    return row, replace(branch, active_run=row.id)


def queue(tx: Tx, row: Run, branch: Branch, *, inputs: Sequence[Draft], first: bool) -> tuple[Run, Branch]:
    """The run waits, behind the others or `first`; its input lies in the inbox, in order."""
    home = ids.home(row.id)
    tx.many(
        "insert into inbox(tenant, home, run, n, id, kind, role, origin, trust, body) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [(tx.tenant, home, row.id, n, d.id, d.kind, d.role, d.origin, d.trust, d.body) for n, d in enumerate(inputs)],
    )
    number = first_number(tx, branch.id)
    if not first:
        (number,) = tx.rows(
            "update branch set queue_no = queue_no + 1 where tenant = ? and home = ? and id = ? returning queue_no",
            (tx.tenant, ids.home(branch.id), branch.id),
        )[0]
    due_at = tx.now + limits.QUEUE_LOOK_MS
    tx.run("insert into due(kind, at, tenant, id) values ('lease', ?, ?, ?)", (due_at, tx.tenant, row.id))
    tx.touched |= {row.id, branch.id}
    return replace(row, queue_no=number), replace(branch, queued=branch.queued + 1)


def claim(tx: Tx, write: Claim) -> Claimed:
    row = run(tx, write.run)
    if row.branch == NIL:
        machine.advance(row.status, "claim")
    branch = conversations.branch(tx, row.branch)
    machine.check_claim(row, active=branch.active_run, first_queued=first_queued(tx, branch.id))
    return take(tx, row, branch, lease=write.lease, rows=write.rows)


def take(tx: Tx, row: Run, branch: Branch, *, lease: Lease, rows: Sequence[NewRow]) -> Claimed:
    """A queued run starts: inbox to items, lease, log, the session's version for the worker."""
    clear_due(tx, row)
    inputs = inbox(tx, row.id) if row.fence == 0 else []
    version = desk_version_of(tx, row)
    if row.fence == 0:
        row = replace(row, desk_version=version)
    row, branch = start(tx, row, replace(branch, queued=branch.queued - 1), lease=lease, inputs=inputs)
    tx.run("delete from inbox where tenant = ? and home = ? and run = ?", (tx.tenant, ids.home(row.id), row.id))
    row = log(tx, row, rows)
    save(tx, row, due_at=row.lease_until)
    save_branch(tx, branch)
    return Claimed(run=row, revision=branch.revision, session_version=version)


def desk_version_of(tx: Tx, row: Run) -> int:
    if row.session == NIL:
        return 0
    here = desk_rows.place(tx, row.session)
    found = tx.one("select version, durability from session where tenant = ? and home = ? and id = ?", here)
    if found is None or found[1] == "durable":
        return int(found[0]) if found else 0
    head = desk_rows.locked(tx, row.session)
    return max(head.version, 1) if head.status == "lost" else head.version  # its worker looks, and learns of it
