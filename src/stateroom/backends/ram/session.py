"""Sessions in ram: reads, and one function per write."""

from __future__ import annotations

from msgspec.structs import replace

from stateroom import ids
from stateroom.backends.ram.conversation import see_conversation
from stateroom.backends.ram.store import Reader, Transaction
from stateroom.errors import AlreadyExists, Gone
from stateroom.ids import NIL
from stateroom.run import machine
from stateroom.session import rules
from stateroom.session.model import EndSession, Opened, OpenSession, Patched, PatchSlots, Session, Slot

# ── reads ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def see_session(reader: Reader, session: bytes) -> Session:
    row = reader.tables.sessions.get((reader.tenant, session))
    if row is None or not reader.scope.may_see(row.owner):
        raise ids.missing("session", session)
    if row.status == "ended":
        raise Gone("This session has ended.", code="session_ended")
    return row


def bound(reader: Reader, conversation: bytes, agent: str) -> Session | None:
    session = reader.tables.bindings.get((reader.tenant, conversation, agent))
    row = reader.tables.sessions.get((reader.tenant, session)) if session is not None else None
    return row if row is not None and reader.scope.may_see(row.owner) else None


def sessions(reader: Reader, *, after: bytes, limit: int) -> list[Session]:
    seen = [row for row in reader.visible(reader.tables.sessions) if row.status == "active"]
    seen.sort(key=lambda row: (row.created_at, row.id), reverse=True)
    if after != NIL:
        seen = seen[seen.index(see_session(reader, after)) + 1 :]
    return seen[:limit]


def slots(reader: Reader, session: bytes, since: int) -> list[Slot]:
    see_session(reader, session)
    changed = (slot for slot in current(reader, session).values() if slot.version > since)
    return sorted((slot for slot in changed if since > 0 or slot.body is not None), key=lambda slot: slot.name)


def past(reader: Reader, session: bytes, name: str, *, limit: int) -> list[Slot]:
    see_session(reader, session)
    rows = reader.tables.past_slots.get((reader.tenant, session, name)) or ()
    return list(reversed(rows))[:limit]


def current(reader: Reader, session: bytes) -> dict[str, Slot]:
    """Every slot as it is now, removals included."""
    return {name: slot for (tenant, of, name), slot in reader.tables.slots.pairs() if tenant == reader.tenant and of == session}


# ── writes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def open_session(tx: Transaction, write: OpenSession) -> Opened:
    if write.conversation != NIL:
        see_conversation(tx, write.conversation)
    if tx.tables.sessions.taken((tx.tenant, write.id)):
        raise AlreadyExists("A session with this id is there already.")
    if write.conversation != NIL:
        binding = (tx.tenant, write.conversation, write.agent)
        if tx.tables.bindings.get(binding) is not None:
            raise AlreadyExists("This conversation and agent have a session already.", code="session_bound")
        tx.tables.bindings.put(binding, write.id)
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
    )
    return Opened(id=tx.put_session(row).id, version=0)


def patch_slots(tx: Transaction, write: PatchSlots) -> Patched:
    """All patches or none; every slot of the patch gets the session's new version."""
    if write.fence:  # first of all: a worker whose lease is over has to stop, whatever became of the desk
        run = tx.tables.runs.get((tx.tenant, write.run))
        if run is None or not tx.scope.may_see(run.owner):
            raise ids.missing("run", write.run)
        machine.check_fence(run, write.fence)
    session = see_session(tx, write.session)
    rules.check_patches(write.patches)
    known = current(tx, session.id)
    rules.check_preconditions(write, known, session.version)
    rules.check_room(sum(patch.name not in known for patch in write.patches), len(known))
    version = session.version + 1
    for patch in write.patches:
        key = (tx.tenant, session.id, patch.name)
        if (old := tx.tables.slots.get(key)) is not None:
            tx.tables.past_slots.put(key, (*(tx.tables.past_slots.get(key) or ()), old))
        new = Slot(
            name=patch.name,
            version=version,
            kind=patch.kind,
            schema=patch.schema,
            origin=patch.origin,
            trust=patch.trust,
            body=patch.body,
            by=write.by,
            run=write.run,
            at=tx.at,
        )
        tx.tables.slots.put(key, new)
    tx.put_session(replace(session, version=version, touched_at=tx.at))
    return Patched(session=session.id, version=version)


def end_session(tx: Transaction, write: EndSession) -> Opened:
    session = tx.put_session(replace(see_session(tx, write.session), status="ended"))
    if session.conversation != NIL:
        tx.tables.bindings.drop((tx.tenant, session.conversation, session.agent))
    return Opened(id=session.id, version=session.version)
