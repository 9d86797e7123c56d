"""A desk as a whole in ram: read in pages, and brought back."""

from __future__ import annotations

from msgspec.structs import replace

from stateroom import ids
from stateroom.backends.ram import desk_rows as rows
from stateroom.backends.ram.session import bound_row
from stateroom.backends.ram.store import Reader, Transaction
from stateroom.errors import AlreadyExists, Gone
from stateroom.ids import NIL
from stateroom.session import lifetime, versions
from stateroom.session import remains as r
from stateroom.session.model import Checkpoint, Session, Slot
from stateroom.session.receipts import Aged


def head_of(reader: Reader, session: bytes) -> Session:
    """The head, living or not, if the scope may see it."""
    row = reader.tables.sessions.get((reader.tenant, session))
    if row is None or not reader.scope.may_see(row.owner):
        raise ids.missing("session", session)
    return row


def remains(reader: Reader, session: bytes, part: r.Part, *, after: r.Key, limit: int) -> list[r.Remnant]:
    """A page of a part of a desk, living or not; of a fork, what it shows of its parent as if it were its own."""
    head = head_of(reader, session)
    if head.status == "lost" or (head.status == "expiring" and lifetime.mourned(head)):
        raise Gone("What lay on this ephemeral session was lost.", code="state_lost")
    gathered = sorted(_all(reader, head, part), key=r.key)
    return [remnant for remnant in gathered if r.key(remnant) > after][:limit]


def _all(reader: Reader, head: Session, part: r.Part) -> list[r.Remnant]:
    tables, tenant = reader.tables, reader.tenant
    if part == "schema":
        given = ((key[2], body) for key, body in tables.schemas.pairs() if key[:2] == (tenant, head.lineage))
        return [r.GivenSchema(*pair) for pair in given]
    if part == "checkpoint":
        return [known for known in rows.checkpoints_of(reader, head.id) if known.kind != "fork"]
    if part == "beyond":
        return _beyond(reader, head)
    now = rows.slots_of(reader, head)
    if part in ("slot", "entry"):
        windows = {
            name: rows.entries_of(reader, head, slot)
            for name, slot in now.items() if slot.kind == "window" and slot.body is not None
        }  # fmt: skip
        if part == "entry":
            return [r.Lying(name, entry) for name, entries in windows.items() for entry in entries]
        if head.parent == NIL:
            return list(now.values())
        return [r.counted(slot, windows[name]) if name in windows else slot for name, slot in now.items()]
    then = rows.slots_of(reader, head, head.base) if head.parent != NIL else {}
    if part == "past":
        before = [slot for name, slot in then.items() if slot.kind != "window" and now[name].version > head.base]
        past = [slot for name in now for slot in tables.past_slots.get((tenant, head.id, name)) or ()]
        return [r.PastSlot(slot) for slot in (*before, *past)]
    inherited = [slot for slot in then.values() if slot.kind == "doc" and slot.body is not None]
    documents = [(name, *document) for name in now for document in tables.documents.get((tenant, head.id, name)) or ()]
    return [
        *(r.Snapshot(slot.name, slot.version, rows.document_of(reader, head, slot)) for slot in inherited),
        *(r.Snapshot(*document) for document in documents),
    ]


def _beyond(reader: Reader, head: Session) -> list[r.Remnant]:
    found = dict[r.Key, r.Remnant]()
    for at, shown in rows.ancestry(reader, head):
        for one in reader.tables.beyond.get((reader.tenant, at.id)) or ():
            if at is head or r.inherited(one, shown):
                found.setdefault(r.key(one), one)
    return list(found.values())


# ── writes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def begin(tx: Transaction, write: r.BeginRestore) -> r.Restoring:
    there = tx.tables.sessions.get((tx.tenant, write.head.id)) is not None
    known = head_of(tx, write.head.id) if there else None
    r.check_place(known)
    if known is None:
        tx.put_session(r.coming(write.head, tx.at))
        tx.tables.due.put((tx.tenant, write.head.id, "expire"), r.look_again(tx.now))
        return r.Restoring(session=write.head.id, whole=False)
    held = _held(tx, known.id)
    if not held:
        for name in rows.own(tx, known.id):
            for table in (tx.tables.slots, tx.tables.past_slots, tx.tables.documents, tx.tables.entries):
                table.drop((tx.tenant, known.id, name))
        tx.tables.checkpoints.drop((tx.tenant, known.id))
        tx.tables.beyond.drop((tx.tenant, known.id))
    return r.Restoring(session=known.id, whole=held)


def _held(tx: Transaction, session: bytes) -> bool:
    return any(known.kind == "fork" for known in rows.checkpoints_of(tx, session))


def put(tx: Transaction, write: r.PutRemnants) -> r.Restoring:
    head = head_of(tx, write.session)
    r.check_coming(head)
    lineage = head.id if head.parent != NIL else head.lineage
    for remnant in write.remnants:
        _put(tx, head.id, lineage, remnant)
    return r.Restoring(session=head.id, whole=False)


def _put(tx: Transaction, session: bytes, lineage: bytes, remnant: r.Remnant) -> None:
    tables, tenant = tx.tables, tx.tenant
    match remnant:
        case r.GivenSchema():
            tables.schemas.put((tenant, lineage, remnant.digest), remnant.body)
        case Slot():
            _new(tables.slots.get((tenant, session, remnant.name)) is None)
            tables.slots.put((tenant, session, remnant.name), remnant)
        case r.PastSlot():
            place = (tenant, session, remnant.slot.name)
            past = tables.past_slots.get(place) or ()
            _new(all(one.version != remnant.slot.version for one in past))
            tables.past_slots.put(place, (*past, remnant.slot))
        case r.Snapshot():
            place = (tenant, session, remnant.name)
            documents = tables.documents.get(place) or ()
            _new(all(version != remnant.version for version, _ in documents))
            tables.documents.put(place, (*documents, (remnant.version, remnant.body)))
        case r.Lying():
            place = (tenant, session, remnant.name)
            lying = tables.entries.get(place) or ()
            _new(all(r.key(r.Lying(remnant.name, one)) != r.key(remnant) for one in lying))
            tables.entries.put(place, (*lying, remnant.entry))
        case Checkpoint():
            _new(all(known.name != remnant.name for known in rows.checkpoints_of(tx, session)))
            rows.add_checkpoint(tx, session, remnant)
        case r.Beyond():
            tables.beyond.put((tenant, session), (*(tables.beyond.get((tenant, session)) or ()), remnant))


def _new(is_so: bool) -> None:
    if not is_so:
        raise AlreadyExists("An object with one of these ids exists.")


def revive(tx: Transaction, write: r.Revive) -> Aged:
    known = head_of(tx, write.head.id)
    r.check_coming(known)
    head = r.revived(write.head, at=tx.at, now=tx.now)
    conversation = known.conversation
    if conversation != NIL and bound_row(tx, conversation, known.agent) is not None:
        conversation = NIL
    after = replace(
        known, status="active", archive="", version=max(head.version, known.version) if _held(tx, known.id) else head.version,
        kept_from=head.kept_from, ttl_ms=head.ttl_ms, expires_at=head.expires_at, dies_at=head.dies_at, touched_at=tx.at,
        conversation=conversation, durability=head.durability,
    )  # fmt: skip
    if known.parent != NIL and not any(
        mark.name == versions.fork_name(known.id) for mark in rows.checkpoints_of(tx, known.parent)
    ):
        after = replace(after, parent=NIL, base=0, lineage=known.id)
    if conversation != NIL:
        tx.tables.bindings.put((tx.tenant, conversation, known.agent), known.id)
    if head.expires_at:
        tx.tables.due.put((tx.tenant, known.id, "expire"), head.expires_at)
    else:
        tx.tables.due.drop((tx.tenant, known.id, "expire"))
    tx.put_session(after)
    return Aged(session=known.id, status="active", expires_at=head.expires_at)
