"""Sessions in ram: reads, opening and patching. Every decision is the room's."""

from __future__ import annotations

from msgspec.structs import replace

from stateroom import ids
from stateroom.backends.ram.conversation import see_conversation
from stateroom.backends.ram.desk_rows import (
    advance,
    document_of,
    entries_of,
    put_slot,
    see_session,
    slot_of,
    slots_of,
    stored,
)
from stateroom.backends.ram.store import Reader, Transaction
from stateroom.errors import AlreadyExists
from stateroom.ids import NIL
from stateroom.run import machine
from stateroom.session import access, change, lifetime, rules, window
from stateroom.session.model import Document, Entry, OpenSession, PatchSlots, Session, Slot
from stateroom.session.receipts import Opened, Patched

# ── reads ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def bound(reader: Reader, conversation: bytes, agent: str) -> Session | None:
    row = bound_row(reader, conversation, agent)
    return row if row is not None and reader.scope.may_see(row.owner) else None


def bound_row(reader: Reader, conversation: bytes, agent: str) -> Session | None:
    """The living desk of a conversation and agent, be it lost, whoever owns it."""
    session = reader.tables.bindings.get((reader.tenant, conversation, agent))
    row = reader.tables.sessions.get((reader.tenant, session)) if session is not None else None
    there = row is not None and row.status in ("active", "lost") and not lifetime.over(row, reader.now)
    return row if there else None


def sessions(reader: Reader, *, after: bytes, limit: int) -> list[Session]:
    seen = [
        row for row in reader.visible(reader.tables.sessions)
        if row.status in ("active", "lost") and not lifetime.over(row, reader.now)
    ]  # fmt: skip
    seen.sort(key=lambda row: (row.created_at, row.id), reverse=True)
    if after != NIL:
        seen = seen[seen.index(see_session(reader, after)) + 1 :]
    return seen[:limit]


def slots(reader: Reader, session: bytes, since: int) -> list[Slot]:
    changed = [slot for slot in slots_of(reader, see_session(reader, session)).values() if slot.version > since]
    return sorted((slot for slot in changed if since > 0 or slot.body is not None), key=lambda slot: slot.name)


def past(reader: Reader, session: bytes, name: str, *, limit: int) -> list[Slot]:
    head = see_session(reader, session)
    now, found, version = slot_of(reader, head, name), list[Slot](), head.version
    while now is not None and now.version > 0 and len(found) < limit:
        version = (now.epoch if now.kind == "window" and now.body is not None else now.version) - 1
        now = slot_of(reader, head, name, version=version)
        found += [now] if now is not None else []
    return found


def entries(reader: Reader, session: bytes, name: str, *, as_of: int | None, limit: int) -> list[Entry]:
    head = see_session(reader, session)
    slot = rules.of_kind(slot_of(reader, head, name), name, "window")
    at = min(reader.now if as_of is None else as_of, reader.now)
    return window.seen(window.of(slot.body), entries_of(reader, head, slot), at=at, limit=limit)


def document(reader: Reader, session: bytes, name: str) -> Document:
    head = see_session(reader, session)
    slot = rules.of_kind(slot_of(reader, head, name), name, "doc")
    return Document(name=name, version=slot.version, epoch=slot.epoch, snapshot=document_of(reader, head, slot))


# ── writes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def open_session(tx: Transaction, write: OpenSession) -> Opened:
    expires_at, dies_at = lifetime.opened(write, tx.now)
    row = Session(
        id=write.id,
        owner=write.owner,
        subject=write.subject,
        conversation=write.conversation,
        agent=write.agent,
        lineage=write.id,
        version=0,
        status="active",
        metadata=write.metadata,
        created_at=tx.at,
        touched_at=tx.at,
        durability=write.durability,
        ttl_ms=write.ttl_ms,
        expires_at=expires_at,
        dies_at=dies_at,
    )
    return Opened(id=add_session(tx, row).id, version=0)


def add_session(tx: Transaction, row: Session) -> Session:
    """A new desk takes its place, and the place of one that has expired. It is due when its time comes."""
    if row.conversation != NIL:
        see_conversation(tx, row.conversation)
    if tx.tables.sessions.taken((tx.tenant, row.id)):
        raise AlreadyExists("A session with this id is there already.")
    if row.conversation != NIL:
        if bound_row(tx, row.conversation, row.agent) is not None:
            raise AlreadyExists("This conversation and agent have a session already.", code="session_bound")
        _make_way(tx, row)
        tx.tables.bindings.put((tx.tenant, row.conversation, row.agent), row.id)
    if row.expires_at:
        tx.tables.due.put((tx.tenant, row.id, "expire"), row.expires_at)
    return tx.put_session(row)


def _make_way(tx: Transaction, row: Session) -> None:
    """The desk that had the place and has expired is on its way out from here on."""
    session = tx.tables.bindings.get((tx.tenant, row.conversation, row.agent))
    old = tx.tables.sessions.get((tx.tenant, session)) if session is not None else None
    if old is not None and lifetime.over(old, tx.now):
        tx.put_session(replace(old, status="expiring"))


def check_worker(tx: Transaction, run: bytes, fence: int) -> None:
    """A worker whose lease is over has to stop, whatever became of the desk."""
    if not fence:
        return
    row = tx.tables.runs.get((tx.tenant, run))
    if row is None or not tx.scope.may_see(row.owner):
        raise ids.missing("run", run)
    machine.check_fence(row, fence)


def patch_slots(tx: Transaction, write: PatchSlots) -> Patched:
    """All patches or none; every slot of the patch gets the session's new version."""
    check_worker(tx, write.run, write.fence)
    session = see_session(tx, write.session)
    access.check(session, write)
    rules.check_patches(write.patches)
    known = {name: slot for name in change.names(write) if (slot := slot_of(tx, session, name)) is not None}
    rules.check_preconditions(write, known, session.version)
    added = sum(patch.name not in known for patch in write.patches)
    rules.check_room(added, len(slots_of(tx, session)) if added else 0)
    mark = change.stamp(write, session.version + 1, at=tx.at, now=tx.now)
    changes = [change.change(patch, known, mark, stored=stored(tx, session)) for patch in write.patches]
    slots = tuple(put_slot(tx, session, changed) for changed in changes)
    return Patched(session=session.id, version=advance(tx, session).version, slots=slots)
