"""Versions of desks in ram: checkpoints, rollback, forks, compaction."""

from __future__ import annotations

from collections import Counter

from msgspec.structs import replace

from stateroom import ids
from stateroom.backends.ram.desk_rows import (
    add_checkpoint,
    advance,
    ancestry,
    checkpoints_of,
    document_of,
    drop_past,
    free,
    own,
    past_over,
    put_slot,
    see_session,
    slot_of,
    slots_of,
    tidy_later,
)
from stateroom.backends.ram.run_rows import see_run
from stateroom.backends.ram.session import add_session, check_worker
from stateroom.backends.ram.store import Reader, Transaction
from stateroom.session import access, lifetime, rules, versions
from stateroom.session.change import Stamp
from stateroom.session.model import (
    Checkpoint,
    CompactPast,
    DropCheckpoint,
    ForkSession,
    MakeCheckpoint,
    MarkTurn,
    RollBack,
    Session,
    Slot,
    Told,
)
from stateroom.session.receipts import Compacted, Marked, Noted, Opened, RolledBack

# ── reads ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def slots_at(reader: Reader, session: bytes, version: int) -> list[Slot]:
    head = see_session(reader, session)
    keeper(reader, head, version)
    return versions.shown(slots_of(reader, head, version).values())


def told(reader: Reader, session: bytes, *, after: int, limit: int) -> Told:
    head = see_session(reader, session)
    versions.check_followed(head, after)
    rows = list[Slot]()
    for name, slot in own(reader, session).items():
        past = reader.tables.past_slots.get((reader.tenant, session, name)) or ()
        rows += [row for row in (*past, slot) if row.version > after]
    sizes = Counter[int]()
    for row in rows:
        sizes[row.version] += len(row.body or b"")
    return versions.told(head, after, until=versions.last_told(head, after, sizes=sizes, limit=limit), rows=rows)


def checkpoints(reader: Reader, session: bytes, *, limit: int) -> list[Checkpoint]:
    head = see_session(reader, session)
    return versions.newest(_shown(reader, head).values())[:limit]


def _shown(reader: Reader, head: Session) -> dict[str, Checkpoint]:
    """A desk's checkpoints, and those of what it was forked from up to there."""
    found: dict[str, Checkpoint] = {}
    for session, shown in ancestry(reader, head):
        for known in checkpoints_of(reader, session.id):
            if session is head or versions.inherited(known, shown):
                found.setdefault(known.name, known)
    return found


def keeper(reader: Reader, head: Session, version: int) -> Session:
    """The desk that a version belongs to: this one, or the one it was forked from. Gone when it is not kept there."""
    found = next(row for row, _ in ancestry(reader, head) if version > row.base or row.parent == ids.NIL)
    named = any(known.version == version for known in checkpoints_of(reader, found.id))
    versions.check_kept(found, version, named)
    return found


def _named(reader: Reader, session: bytes, name: str) -> Checkpoint | None:
    return next((known for known in checkpoints_of(reader, session) if known.name == name), None)


def checkpoint_at(reader: Reader, session: bytes, to: str | int) -> Checkpoint | None:
    """By name; or the newest up to a version that tells of a conversation."""
    head = see_session(reader, session)
    if isinstance(to, str):
        return _shown(reader, head).get(to)
    for at, shown in ancestry(reader, head):
        bound = to if at is head else min(to, shown)
        told = [
            known for known in checkpoints_of(reader, at.id)
            if known.version <= bound and known.kind != "fork" and known.branch != ids.NIL
        ]  # fmt: skip
        if told:
            return max(told, key=lambda known: (known.version, known.at, known.seq))
    return None


# ── writes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def make_checkpoint(tx: Transaction, write: MakeCheckpoint) -> Marked:
    head = see_session(tx, write.session)
    version = head.version if write.version is None else write.version
    if write.version is None and write.branch == ids.NIL and head.conversation != ids.NIL:
        branch, seq = _position(tx, head.conversation)
        write = replace(write, branch=branch, seq=seq)
    versions.check_own(head, version)
    keeper(tx, head, version)
    named = sum(known.kind == "named" for known in checkpoints_of(tx, head.id))
    known = _named(tx, head.id, write.name)
    if not versions.check_checkpoint(write, known, version=version, named=named):
        assert known is not None
        return Marked(known)
    return Marked(add_checkpoint(tx, head.id, versions.checkpoint(write, version, tx.at)))


def _position(tx: Transaction, conversation: bytes) -> tuple[bytes, int]:
    """How far a conversation has come: what an active turn was asked does not count."""
    row = tx.tables.branches.get((tx.tenant, conversation))
    if row is not None and row.moved_to != ids.NIL:
        row = tx.tables.branches.get((tx.tenant, row.moved_to))
    if row is None:
        return ids.NIL, 0
    active = tx.tables.runs.get((tx.tenant, row.active_run))
    return row.id, row.tail if active is None else active.in_lo


def mark_turn(tx: Transaction, write: MarkTurn) -> Noted:
    """After the run's end, in its batch: how far the conversation had come is the run's to say."""
    run = see_run(tx, write.run)
    head = tx.tables.sessions.get((tx.tenant, write.session))
    if head is None or not lifetime.alive(head, tx.now):
        return Noted()
    mark = MakeCheckpoint(
        session=head.id, name=versions.turn_name(run.id), by=write.by, kind="turn", agent=write.agent, run=run.id,
        branch=run.branch, seq=run.out_hi,
    )  # fmt: skip
    if _named(tx, head.id, mark.name) is None:
        add_checkpoint(tx, head.id, versions.checkpoint(mark, head.version, tx.at))
    if versions.tidies(run.in_lo, run.out_hi):
        tidy_later(tx, head.id)
    return Noted()


def drop_checkpoint(tx: Transaction, write: DropCheckpoint) -> Marked:
    head = see_session(tx, write.session)
    if (dropped := _named(tx, head.id, write.name)) is None:
        raise rules.no_checkpoint(write.name)
    versions.check_droppable(dropped)
    rest = tuple(known for known in checkpoints_of(tx, head.id) if known.name != write.name)
    tx.tables.checkpoints.put((tx.tenant, head.id), rest)
    free(tx, head, dropped.version)
    return Marked(dropped)


def roll_back(tx: Transaction, write: RollBack) -> RolledBack:
    """A new version equal to an old one. Windows stay: they are of time."""
    check_worker(tx, write.run, write.fence)
    return back(tx, see_session(tx, write.session), write)


def back(tx: Transaction, head: Session, write: RollBack) -> RolledBack:
    access.check_whole(head, write.agent, write.hold)
    rules.check_version(write.expected_version, head.version)
    to = versions.target(write, _shown(tx, head).get(write.checkpoint))
    keeper(tx, head, to)
    mark = Stamp(version=head.version + 1, by=write.by, agent=write.agent, run=write.run, at=tx.at, now=tx.now)
    changed = []
    for name, now in sorted(slots_of(tx, head).items()):
        if now.version > to and now.kind != "window":
            then = slot_of(tx, head, name, version=to)
            document = document_of(tx, head, then) if then is not None and then.kind == "doc" else None
            changed.append(versions.restored(now, then, mark, document=document))
    undone = add_checkpoint(tx, head.id, versions.undone(write, head.version, tx.at))
    slots = tuple(put_slot(tx, head, change) for change in changed)
    return RolledBack(session=head.id, version=advance(tx, head).version, to=to, undone=undone, slots=slots)


def fork_session(tx: Transaction, write: ForkSession) -> Opened:
    """The fork's head, and its hold on the version that it stands on. Its parent is who owns that version."""
    parent = see_session(tx, write.parent)
    version = parent.version if write.version is None else write.version
    stands_on = keeper(tx, parent, version)
    hold = MakeCheckpoint(session=stands_on.id, name=versions.fork_name(write.id), by=write.owner, kind="fork")
    ttl_ms, expires_at, dies_at = lifetime.forked(write, parent, tx.now)
    fork = replace(
        parent,
        id=write.id,
        owner=write.owner,
        conversation=write.conversation,
        agent=write.agent,
        version=version,
        metadata=write.metadata,
        created_at=tx.at,
        touched_at=tx.at,
        parent=stands_on.id,
        base=version,
        kept_from=version,
        ttl_ms=ttl_ms,
        expires_at=expires_at,
        dies_at=dies_at,
        holder="",
        hold=0,
        held_until=0,
    )
    add_session(tx, fork)
    add_checkpoint(tx, stands_on.id, versions.checkpoint(hold, version, tx.at))
    return Opened(id=fork.id, version=version)


def compact_past(tx: Transaction, write: CompactPast) -> Compacted:
    """Old versions of slots go, with the documents and the automatic checkpoints among them."""
    head = tx.tables.sessions.get((tx.tenant, write.session))
    if head is None or not write.due_at:
        head = see_session(tx, write.session)
    if not lifetime.alive(head, tx.now):
        return _looked(tx, write, Compacted(session=head.id, dropped=0))
    before = min(write.before, head.version)
    kept = tuple(known for known in checkpoints_of(tx, head.id) if not versions.goes(known, before))
    turns = sorted((known.at for known in kept if known.kind == "turn"), reverse=True)[: write.turns or None]
    kept = tuple(known for known in kept if known.kind != "turn" or known.at >= turns[-1])
    tx.tables.checkpoints.put((tx.tenant, head.id), kept)
    going, reached = versions.going(past_over(tx, head, before=before), before=before, limit=write.limit)
    drop_past(tx, head, going)
    tx.put_session(replace(head, kept_from=max(head.kept_from, reached)))
    return _looked(tx, write, Compacted(session=head.id, dropped=len(going), more=reached < before))


def _looked(tx: Transaction, write: CompactPast, done: Compacted) -> Compacted:
    if write.due_at and not done.more and tx.tables.due.get((tx.tenant, write.session, "tidy")) == write.due_at:
        tx.tables.due.drop((tx.tenant, write.session, "tidy"))
    return done
