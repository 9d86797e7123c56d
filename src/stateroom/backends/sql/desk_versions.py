"""Versions of desks in SQL: checkpoints, rollback, forks, compaction."""

from __future__ import annotations

from msgspec.structs import replace

from stateroom import ids
from stateroom.backends.sql import desk_past, ephemeral
from stateroom.backends.sql.desk_rows import (
    CHECKPOINT,
    add_checkpoint,
    advance,
    ancestry,
    checkpoint_named,
    checkpoints_of,
    document_of,
    locked,
    place,
    put_slot,
    row_of,
    rows_after,
    session,
    sizes_after,
    slot_of,
    slots_of,
    tidy_later,
)
from stateroom.backends.sql.session import add
from stateroom.backends.sql.tx import Row, Tx, nil
from stateroom.ids import NIL
from stateroom.run.model import Run
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

_HERE = "tenant = ? and home = ? and session = ?"
_AUTOMATIC = "kind in ('turn', 'undone')"

# ── reads ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def slots_at(tx: Tx, id_: bytes, version: int) -> list[Slot]:
    head = session(tx, id_)
    tx = ephemeral.on(tx, head)
    keeper(tx, head, version)
    return versions.shown(slots_of(tx, head, version=version).values())


def told(tx: Tx, id_: bytes, *, after: int, limit: int) -> Told:
    head = session(tx, id_)
    tx = ephemeral.on(tx, head)
    versions.check_followed(head, after)
    if after == head.version:
        return versions.told(head, after, until=after)
    until = versions.last_told(head, after, sizes=sizes_after(tx, id_, after), limit=limit)
    return versions.told(head, after, until=until, rows=rows_after(tx, id_, after, until))


def checkpoints(tx: Tx, id_: bytes, limit: int) -> list[Checkpoint]:
    head, found = session(tx, id_), dict[str, Checkpoint]()
    tx = ephemeral.on(tx, head)
    for at, shown in ancestry(tx, head):
        for known in checkpoints_of(tx, at.id):
            if at is head or versions.inherited(known, shown):
                found.setdefault(known.name, known)
    return versions.newest(found.values())[:limit]


def keeper(tx: Tx, head: Session, version: int) -> Session:
    """The desk that a version belongs to: this one, or the one it was forked from. Gone when it is not kept there."""
    found = next(at for at, _ in ancestry(tx, head) if version > at.base or at.parent == NIL)
    named = False
    if version < found.kept_from:
        sql = f"select 1 from checkpoint where {_HERE} and version = ? limit 1"
        named = tx.one(sql, (*place(tx, found.id), version)) is not None
    versions.check_kept(found, version, named)
    return found


def _known(tx: Tx, head: Session, name: str) -> Checkpoint | None:
    """A checkpoint of the desk, or of what it was forked from."""
    for at, shown in ancestry(tx, head):
        known = checkpoint_named(tx, at.id, name)
        if known is not None and (at is head or versions.inherited(known, shown)):
            return known
    return None


def checkpoint_at(tx: Tx, id_: bytes, to: str | int) -> Checkpoint | None:
    """By name; or the newest up to a version that tells of a conversation."""
    head = session(tx, id_)
    tx = ephemeral.on(tx, head)
    if isinstance(to, str):
        return _known(tx, head, to)
    sql = (
        f"select {CHECKPOINT} from checkpoint where {_HERE} and version <= ? and kind <> 'fork' and branch is not null"
        " order by version desc, at desc, seq desc limit 1"
    )
    for at, shown in ancestry(tx, head):
        if (row := tx.one(sql, (*place(tx, at.id), to if at is head else min(to, shown)))) is not None:
            return Checkpoint(*row)
    return None


# ── writes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def make_checkpoint(tx: Tx, write: MakeCheckpoint) -> Marked:
    head = session(tx, write.session)
    tx = ephemeral.on(tx, head)
    version = head.version if write.version is None else write.version
    if write.version is None and write.branch == NIL and head.conversation != NIL:
        branch, seq = position(tx, head.conversation)
        write = replace(write, branch=branch, seq=seq)
    versions.check_own(head, version)
    keeper(tx, head, version)
    named = 0
    if write.kind == "named":
        (named,) = tx.rows(f"select count(*) from checkpoint where {_HERE} and kind = 'named'", place(tx, head.id))[0]
    known = checkpoint_named(tx, head.id, write.name)
    if not versions.check_checkpoint(write, known, version=version, named=named):
        assert known is not None
        return Marked(known)
    return Marked(add_checkpoint(tx, head.id, versions.checkpoint(write, version, tx.at)))


def position(tx: Tx, conversation: bytes) -> tuple[bytes, int]:
    """How far a conversation has come: what an active turn was asked does not count."""
    main = "select coalesce(moved_to, id) from branch where tenant = ?1 and home = ?2 and id = ?3"
    row = tx.one(
        "select b.id, coalesce(r.in_lo, b.tail) from branch b left join run r"
        " on r.tenant = b.tenant and r.home = b.home and r.id = b.active_run"
        f" where b.tenant = ?1 and b.home = ?2 and b.id = ({main})",
        (tx.tenant, ids.home(conversation), conversation),
    )
    return (NIL, 0) if row is None else (row[0], row[1])


_MARK_TURN = (
    "insert into checkpoint(tenant, home, session, name, version, kind, by, agent, run, branch, seq, at)"
    " select tenant, home, id, ?, version, 'turn', ?, ?, ?, ?, ?, ? from session"
    " where tenant = ? and home = ? and id = ? and status = 'active' and (expires_at = 0 or expires_at > ?)"
    " and durability = 'durable' on conflict do nothing"
)
_MARK_EPHEMERAL = (
    "insert into ephemeral_checkpoint(tenant, home, session, name, version, kind, by, agent, run, branch, seq, at)"
    " select l.tenant, l.home, l.id, ?, l.version, 'turn', ?, ?, ?, ?, ?, ? from ephemeral_session l join session s"
    " on s.tenant = l.tenant and s.home = l.home and s.id = l.id"
    " where l.tenant = ? and l.home = ? and l.id = ? and s.status = 'active' and (l.expires_at = 0 or l.expires_at > ?)"
    " on conflict do nothing"
)


def mark_turn(tx: Tx, write: MarkTurn, row: Run) -> Noted:
    """One row, and nothing read. Now and then the desk is due for tidying."""
    here = place(tx, write.session)
    told = (versions.turn_name(row.id), write.by, write.agent, row.id, nil(row.branch), row.out_hi, tx.at)
    tx.run(_MARK_TURN, (*told, *here, tx.now))
    if tx.has_ephemeral:
        tx.need_ephemeral()
        tx.run(_MARK_EPHEMERAL, (*told, *here, tx.now))
    if versions.tidies(row.in_lo, row.out_hi):
        tidy_later(tx, write.session)
    return Noted()


def drop_checkpoint(tx: Tx, write: DropCheckpoint) -> Marked:
    head = session(tx, write.session)
    tx = ephemeral.on(tx, head)
    if (dropped := checkpoint_named(tx, head.id, write.name)) is None:
        raise rules.no_checkpoint(write.name)
    versions.check_droppable(dropped)
    here = place(tx, head.id)
    tx.run(f"delete from checkpoint where {_HERE} and name = ?", (*here, write.name))
    desk_past.free(tx, here, head, dropped.version)
    return Marked(dropped)


def roll_back(tx: Tx, write: RollBack) -> RolledBack:
    """A new version equal to an old one: O(what changed since). Windows stay: they are of time."""
    return back(tx, session(tx, write.session), write)


def back(tx: Tx, head: Session, write: RollBack) -> RolledBack:
    tx = ephemeral.on(tx, head)
    access.check_whole(head, write.agent, write.hold)
    rules.check_version(write.expected_version, head.version)
    to = versions.target(write, _known(tx, head, write.checkpoint) if write.checkpoint else None)
    keeper(tx, head, to)
    mark = Stamp(version=head.version + 1, by=write.by, agent=write.agent, run=write.run, at=tx.at, now=tx.now)
    slots = []
    for name, now in sorted(slots_of(tx, head, since=to).items()):
        if now.kind != "window":
            then = slot_of(tx, head, name, version=to)
            document = document_of(tx, head, then) if then is not None and then.kind == "doc" else None
            slots.append(put_slot(tx, head, versions.restored(now, then, mark, document=document), old=now))
    undone = add_checkpoint(tx, head.id, versions.undone(write, head.version, tx.at))
    return RolledBack(session=head.id, version=advance(tx, head).version, to=to, undone=undone, slots=tuple(slots))


def fork_session(tx: Tx, write: ForkSession) -> Opened:
    """The fork's head, and its hold on the version that it stands on. Its parent is who owns that version."""
    parent = session(tx, write.parent)
    lying = ephemeral.on(tx, parent)
    version = parent.version if write.version is None else write.version
    stands_on = keeper(lying, parent, version)
    if stands_on.id != parent.id:  # locked as well: nobody compacts the version away while the hold is made
        stands_on = keeper(lying, locked(tx, stands_on.id), version)
    hold = MakeCheckpoint(session=stands_on.id, name=versions.fork_name(write.id), by=write.owner, kind="fork")
    ttl_ms, expires_at, dies_at = lifetime.forked(write, parent, tx.now)
    add(
        tx,
        replace(
            parent, id=write.id, owner=write.owner, conversation=write.conversation, agent=write.agent, version=version,
            metadata=write.metadata, created_at=tx.at, touched_at=tx.at, parent=stands_on.id, base=version, kept_from=version,
            ttl_ms=ttl_ms, expires_at=expires_at, dies_at=dies_at, holder="", hold=0, held_until=0,
        ),
    )  # fmt: skip
    add_checkpoint(lying, stands_on.id, versions.checkpoint(hold, version, tx.at))
    return Opened(id=write.id, version=version)


def compact_past(tx: Tx, write: CompactPast) -> Compacted:
    """Old versions of slots go, with the documents and the automatic checkpoints among them. What an earlier compaction left
    is not looked through again: it has a name, and goes with that."""
    head = row_of(tx, write.session) if write.due_at else session(tx, write.session)
    if write.due_at and not lifetime.alive(head, tx.now):
        return _looked(tx, write, Compacted(session=head.id, dropped=0))
    tx = ephemeral.on(tx, head)
    here, before = place(tx, head.id), min(write.before, head.version)
    ((oldest,),) = tx.rows(f"select min(version) from checkpoint where {_HERE} and {_AUTOMATIC} and version < ?", (*here, before))
    tx.run(f"delete from checkpoint where {_HERE} and {_AUTOMATIC} and version < ?", (*here, before))
    _drop_turns(tx, here, write.turns)
    since = head.kept_from if oldest is None else min(oldest, head.kept_from)
    over = desk_past.over(tx, here, since=since, before=before)
    gone, reached = versions.going(over, before=before, limit=write.limit)
    desk_past.drop(tx, here, gone)
    ephemeral.keep(tx, head, kept_from=max(head.kept_from, reached))
    return _looked(tx, write, Compacted(session=head.id, dropped=len(gone), more=reached < before))


def _looked(tx: Tx, write: CompactPast, done: Compacted) -> Compacted:
    if write.due_at and not done.more:
        line = (write.due_at, tx.tenant, write.session)
        tx.run("delete from due where kind = 'tidy' and at = ? and tenant = ? and id = ?", line)
    return done


def _drop_turns(tx: Tx, here: Row, keep: int) -> None:
    """The newest checkpoints of turns stay."""
    sql = f"select at from checkpoint where {_HERE} and kind = 'turn' order by at desc limit 1 offset ?"
    if keep and (row := tx.one(sql, (*here, keep - 1))) is not None:
        tx.run(f"delete from checkpoint where {_HERE} and kind = 'turn' and at < ?", (*here, row[0]))
