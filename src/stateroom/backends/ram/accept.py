"""Accepting a turn in ram: its key, its place, its desk, its run."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from stateroom import ids
from stateroom.backends.ram import conversation as record
from stateroom.backends.ram import run_rows as work
from stateroom.backends.ram import session as desk
from stateroom.backends.ram.desk_life import renew
from stateroom.backends.ram.ending import cancel_run
from stateroom.backends.ram.store import Transaction
from stateroom.backends.ram.undo import undo
from stateroom.batch import Batch, ClaimKey, KeyClaimed, KeyRow, Receipt, key_ref, made_by
from stateroom.conversation.model import Branch
from stateroom.errors import AlreadyExists, IllegalMove
from stateroom.ids import NIL
from stateroom.run import machine
from stateroom.run.model import Accepted, AcceptTurn, Run
from stateroom.session import lifetime
from stateroom.session.model import OpenSession

# ── keys ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def claim_key(tx: Transaction, write: ClaimKey) -> KeyClaimed:
    row = KeyRow(operation=write.operation, key=write.key, fingerprint=write.fingerprint, ref=write.ref, at=tx.at)
    _use_key(tx, row)
    return KeyClaimed()


def keep_keys(tx: Transaction, batch: Batch, receipts: Sequence[Receipt]) -> None:
    """The keys that a batch claimed learn which version of a session came of it."""
    version = made_by(receipts)
    for write in batch.writes:
        if isinstance(write, ClaimKey) and version:
            place = (tx.tenant, tx.scope.principal, write.operation, write.key)
            row = tx.tables.keys.get(place)
            assert row is not None
            tx.tables.keys.put(place, replace(row, ref=key_ref(write.ref, version)))


def _use_key(tx: Transaction, row: KeyRow, renew_before: int = 0) -> None:
    """One key, one object (P14). A row from before `renew_before` is taken over."""
    place = (tx.tenant, tx.scope.principal, row.operation, row.key)
    used = tx.tables.keys.get(place)
    if used is not None and not (renew_before and used.at < renew_before):
        raise used.known()
    tx.tables.keys.put(place, row)


# ── accept ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def accept(tx: Transaction, write: AcceptTurn) -> Accepted:
    if (turn := write.key) is not None:
        row = KeyRow(operation=turn.operation, key=turn.key, fingerprint=turn.fingerprint, ref=write.run, at=tx.at)
        _use_key(tx, row, turn.renew_before)
    if tx.tables.runs.taken((tx.tenant, write.run)):
        raise AlreadyExists("A run with this id is there already.")
    previous = _previous(tx, write)
    if not write.stored:
        return _accept_unstored(tx, write, previous)
    branch = _branch(tx, write, previous)
    verdict = machine.accept(write, _place(tx, branch, previous))
    branch, interrupted = _give_way(tx, write, branch, verdict)
    run = replace(_new_run(tx, write, branch), merge=verdict.merge)
    if write.claim is not None and machine.starts(verdict, active=branch.active_run, queued=branch.queued):
        run, branch = work.start(tx, run, branch, drafts=write.input, lease=write.claim, rows=write.claimed_rows)
    else:
        first = verdict.interrupt or verdict.undo
        run, branch = work.accept_waiting(tx, run, branch, drafts=write.input, rows=write.queued_rows, first=first)
    return replace(_accepted(tx, run, branch, forked=verdict.fork_at is not None), interrupted=interrupted)


def _place(tx: Transaction, branch: Branch, previous: Run | None) -> machine.Place:
    active = work.active_on(tx, branch)
    return machine.Place(
        branch=branch.id,
        tail=branch.tail,
        active_run=active.id if active is not None else NIL,
        queued=branch.queued,
        last_run=branch.last_run,
        settled=active.in_lo if active is not None else branch.tail,
        foreign=active is not None and not tx.scope.may_see(active.owner),
        left=branch.moved_to != NIL,
        previous=previous,
    )


def _give_way(tx: Transaction, write: AcceptTurn, branch: Branch, verdict: machine.Verdict) -> tuple[Branch, bytes]:
    """What a verdict does to others, and the branch that the turn goes to then; the run that was asked to cancel, if any."""
    if verdict.undo:
        return undo(tx, write, branch)
    if verdict.fork_at is not None:
        return record.fork_branch(tx, branch, verdict.fork_at, id=write.fork, owner=branch.owner), NIL
    error, active = machine.superseded(write.run), work.active_on(tx, branch) if verdict.interrupt else None
    for waiting in work.waiting_on(tx, branch.id) if verdict.drop_waiting else ():
        if machine.drops(waiting) and tx.scope.may_see(waiting.owner):
            cancel_run(tx, waiting, rows=write.dropped_rows, error=error)
    if active is not None:
        cancel_run(tx, active, rows=write.dropped_rows, error=error, keep_input=True)
    branch = record.see_branch(tx, branch.id)
    return branch, branch.active_run if verdict.interrupt else NIL


def _accept_unstored(tx: Transaction, write: AcceptTurn, previous: Run | None) -> Accepted:
    """Nothing of it enters the record, no desk is opened, and it cannot wait: there is nowhere to keep its input. It
    reads a place, if it names one, as it is now, busy or not."""
    if write.claim is None:
        raise IllegalMove("A turn that is not stored cannot wait.", code="not_stored")
    branch, at = None, 0
    if previous is not None or write.conversation != NIL or write.branch != NIL:
        branch = _branch(tx, write, previous)
        idle = machine.Place(
            branch=branch.id, tail=branch.tail, active_run=NIL, queued=0, last_run=branch.last_run, previous=previous
        )
        machine.accept(write, idle)
        at = branch.tail if previous is None else previous.out_hi
    run = replace(_new_run(tx, write, branch), in_lo=at, in_hi=at, out_hi=at)
    return _accepted(tx, work.take(tx, run, write.claim, write.claimed_rows), branch, forked=False)


def _previous(tx: Transaction, write: AcceptTurn) -> Run | None:
    if write.previous == NIL:
        return None
    previous = work.see_run(tx, write.previous, "response")
    if not previous.stored:  # its answer was not kept: nothing can continue it
        raise ids.missing("response", write.previous)
    return previous


def _branch(tx: Transaction, write: AcceptTurn, previous: Run | None) -> Branch:
    """The branch a turn asks for; with a previous response, the one that this is on."""
    if previous is not None:
        return record.see_branch(tx, previous.branch)
    if write.branch == NIL:
        return record.see_main(tx, write.conversation)
    branch = record.see_main(tx, write.branch)
    if write.conversation not in (NIL, branch.conversation):
        raise ids.missing("conversation", write.branch)
    return branch


def _new_run(tx: Transaction, write: AcceptTurn, branch: Branch | None) -> Run:
    conversation = branch.conversation if branch is not None else NIL
    if write.deadline_at:
        tx.tables.due.put((tx.tenant, write.run, "deadline"), write.deadline_at)
    session = _desk_of(tx, write, branch) if write.stored and branch is not None else NIL
    desk = tx.tables.sessions.get((tx.tenant, session))
    return Run(
        id=write.run,
        conversation=conversation,
        branch=branch.id if branch is not None else NIL,
        session=session,
        agent=write.agent,
        owner=write.owner,
        subject=write.subject,
        status="queued",
        previous=write.previous,
        stored=write.stored,
        options=write.options,
        created_at=tx.at,
        key=write.key.key if write.key is not None and write.key.renew_before == 0 else "",
        deadline_at=write.deadline_at,
        desk_version=desk.version if desk is not None else 0,
    )


def _desk_of(tx: Transaction, write: AcceptTurn, branch: Branch) -> bytes:
    """The session bound to (conversation, agent), or a new one with the id that was offered, if one was. It belongs to
    whom the conversation belongs, whoever takes the first turn."""
    conversation = branch.conversation
    bound = desk.bound_row(tx, conversation, write.agent)
    if bound is not None:
        if bound.status == "lost":
            lifetime.check(bound, tx.now)
        return (renew(tx, bound) if bound.ttl_ms else bound).id
    if write.session == NIL:
        return NIL
    opened = OpenSession(
        id=write.session, owner=branch.owner, subject=write.subject, conversation=conversation, agent=write.agent
    )
    return desk.open_session(tx, opened).id


def _accepted(tx: Transaction, run: Run, branch: Branch | None, *, forked: bool) -> Accepted:
    claimed = work.claimed(tx, run, branch)
    return Accepted(run=run, revision=claimed.revision, session_version=claimed.session_version, forked=forked)
