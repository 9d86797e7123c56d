"""Accepting a turn in ram: its key, its place, its desk, its run."""

from __future__ import annotations

from msgspec.structs import replace

from stateroom import ids
from stateroom.backends.ram import conversation as record
from stateroom.backends.ram import run as work
from stateroom.backends.ram import session as desk
from stateroom.backends.ram.store import Transaction
from stateroom.batch import ClaimKey, KeyClaimed, KeyRow
from stateroom.conversation.model import Branch
from stateroom.errors import AlreadyExists, IllegalMove, Known
from stateroom.ids import NIL
from stateroom.run import machine
from stateroom.run.model import Accepted, AcceptTurn, Run
from stateroom.session.model import OpenSession

# ── keys ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def claim_key(tx: Transaction, write: ClaimKey) -> KeyClaimed:
    row = KeyRow(operation=write.operation, key=write.key, fingerprint=write.fingerprint, ref=write.ref, at=tx.at)
    _use_key(tx, row)
    return KeyClaimed()


def _use_key(tx: Transaction, row: KeyRow, renew_before: int = 0) -> None:
    """One key, one object (P14). A row from before `renew_before` is taken over."""
    place = (tx.tenant, tx.scope.principal, row.operation, row.key)
    used = tx.tables.keys.get(place)
    if used is not None and not (renew_before and used.at < renew_before):
        raise Known(ref=used.ref, fingerprint=used.fingerprint)
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
    verdict = machine.accept(
        write,
        machine.Place(
            branch=branch.id,
            tail=branch.tail,
            active_run=branch.active_run,
            queued=branch.queued,
            last_run=branch.last_run,
            previous=previous,
        ),
    )
    if verdict.fork_at is not None:
        branch = record.fork_branch(tx, branch, verdict.fork_at, id=write.fork, owner=branch.owner)
    run = _new_run(tx, write, branch)
    if verdict.move == "claim" and write.claim is not None:
        run, branch = work.start(tx, run, branch, drafts=write.input, lease=write.claim, rows=write.claimed_rows)
    else:
        run, branch = work.wait(tx, run, branch, drafts=write.input, rows=write.queued_rows)
    return _accepted(tx, run, branch, forked=verdict.fork_at is not None)


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
        return record.see_branch(tx, write.conversation)
    branch = record.see_branch(tx, write.branch)
    if write.conversation not in (NIL, branch.conversation):
        raise ids.missing("conversation", write.branch)
    return branch


def _new_run(tx: Transaction, write: AcceptTurn, branch: Branch | None) -> Run:
    conversation = branch.conversation if branch is not None else NIL
    return Run(
        id=write.run,
        conversation=conversation,
        branch=branch.id if branch is not None else NIL,
        session=_desk_of(tx, write, conversation) if write.stored else NIL,
        agent=write.agent,
        owner=write.owner,
        subject=write.subject,
        status="queued",
        previous=write.previous,
        stored=write.stored,
        options=write.options,
        created_at=tx.at,
    )


def _desk_of(tx: Transaction, write: AcceptTurn, conversation: bytes) -> bytes:
    """The session bound to (conversation, agent), or a new one with the id that was offered, if one was."""
    bound = tx.tables.bindings.get((tx.tenant, conversation, write.agent))
    if bound is not None or write.session == NIL:
        return bound or NIL
    opened = OpenSession(id=write.session, owner=write.owner, subject=write.subject, conversation=conversation, agent=write.agent)
    return desk.open_session(tx, opened).id


def _accepted(tx: Transaction, run: Run, branch: Branch | None, *, forked: bool) -> Accepted:
    claimed = work.claimed(tx, run, branch)
    return Accepted(run=run, revision=claimed.revision, session_version=claimed.session_version, forked=forked)
