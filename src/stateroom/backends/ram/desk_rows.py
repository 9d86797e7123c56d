"""What lies on desks in ram, forks included: a fork shows its parent's slots as they were, but for those it changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from stateroom import ids
from stateroom.backends.ram.store import Reader, Transaction
from stateroom.ids import NIL
from stateroom.session import lifetime, versions, window
from stateroom.session.change import Changed, Stored
from stateroom.session.model import Checkpoint, Entry, Session, Slot

# ── looking ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def see_session(reader: Reader, session: bytes) -> Session:
    row = reader.tables.sessions.get((reader.tenant, session))
    if row is None or not reader.scope.may_see(row.owner):
        raise ids.missing("session", session)
    lifetime.check(row, reader.now)
    return row


def ancestry(reader: Reader, head: Session) -> Iterator[tuple[Session, int]]:
    """The desk and what it stands on, each with the version up to which it shows."""
    version = head.version
    while True:
        yield head, version
        if head.parent == NIL:
            return
        version = min(version, head.base)
        parent = reader.tables.sessions.get((reader.tenant, head.parent))
        assert parent is not None
        head = parent


def own(reader: Reader, session: bytes) -> dict[str, Slot]:
    """The rows of a desk itself, removals included."""
    return {name: slot for (tenant, of, name), slot in reader.tables.slots.pairs() if tenant == reader.tenant and of == session}


def slot_of(reader: Reader, head: Session, name: str, *, version: int | None = None) -> Slot | None:
    """A slot as it is, or as it was at a version."""
    for session, shown in ancestry(reader, head):
        slot = _row_at(reader, session.id, name, shown if version is None else min(shown, version))
        if slot is not None:
            return slot if session is head else versions.inherit(slot)
    return None


def slots_of(reader: Reader, head: Session, version: int | None = None) -> dict[str, Slot]:
    """Every slot as it is, or as it was at a version; removals included."""
    found: dict[str, Slot] = {}
    for session, shown in ancestry(reader, head):
        at = shown if version is None else min(shown, version)
        rows = (_row_at(reader, session.id, name, at) for name in own(reader, session.id))
        seen = {slot.name: slot if session is head else versions.inherit(slot) for slot in rows if slot is not None}
        found = versions.overlay(found, seen)
    return found


def _row_at(reader: Reader, session: bytes, name: str, version: int) -> Slot | None:
    slot = reader.tables.slots.get((reader.tenant, session, name))
    if slot is not None and (present := versions.shown_at(slot, version)) is not None:
        return present
    past = reader.tables.past_slots.get((reader.tenant, session, name)) or ()
    return next((old for old in reversed(past) if old.version <= version), None)


def stored(reader: Reader, head: Session) -> Stored:
    """What a change may have to look up."""
    return Stored(
        document=lambda slot: document_of(reader, head, slot),
        schema=lambda name: reader.tables.schemas.get((reader.tenant, head.lineage, name)) or "",
    )


def document_of(reader: Reader, head: Session, slot: Slot) -> bytes:
    """The snapshot of a document as it was when the slot was at its version."""
    for session, _ in ancestry(reader, head):
        for version, snapshot in reader.tables.documents.get((reader.tenant, session.id, slot.name)) or ():
            if version == slot.version:
                return snapshot
    return b""


def entries_of(reader: Reader, head: Session, slot: Slot) -> list[Entry]:
    """What a window keeps, by time: a fork's own, and what its parents still keep from before it."""
    found: list[Entry] = []
    for session, shown in ancestry(reader, head):
        rows = reader.tables.entries.get((reader.tenant, session.id, slot.name)) or ()
        found += [entry for entry in rows if slot.epoch <= entry.version <= shown]
    return sorted(found, key=lambda entry: (entry.at, entry.version, entry.n))


def checkpoints_of(reader: Reader, session: bytes) -> tuple[Checkpoint, ...]:
    return reader.tables.checkpoints.get((reader.tenant, session)) or ()


# ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def put_slot(tx: Transaction, head: Session, changed: Changed) -> Slot:
    """The slot's row, what was there moved to the past, and what lies beside it."""
    slot = changed.slot
    key = (tx.tenant, head.id, slot.name)
    old = tx.tables.slots.get(key)
    gone_by = versions.left_behind(head, old, slot) if old is None or old.kind == "window" else old
    if gone_by is not None:
        tx.tables.past_slots.put(key, (*(tx.tables.past_slots.get(key) or ()), gone_by))
    if changed.clear:
        tx.tables.entries.drop(key)
    if changed.document is not None:
        tx.tables.documents.put(key, (*(tx.tables.documents.get(key) or ()), (slot.version, changed.document)))
    if changed.schema:
        tx.tables.schemas.put((tx.tenant, head.lineage, slot.schema), changed.schema)
    if slot.kind == "window" and slot.body is not None:
        slot = _put_entries(tx, head, changed)
    tx.tables.slots.put(key, slot)
    return slot


def _put_entries(tx: Transaction, head: Session, changed: Changed) -> Slot:
    """New entries join the window, and those that it no longer keeps leave."""
    slot, key = changed.slot, (tx.tenant, head.id, changed.slot.name)
    rows = list(tx.tables.entries.get(key) or ())
    for n, entry in enumerate(changed.entries):
        rows.append(Entry(at=entry.at, version=slot.version, n=n, media=entry.media, body=entry.body))
    rows.sort(key=lambda entry: (entry.at, entry.version, entry.n))
    sizes = [(entry.at, len(entry.body)) for entry in rows]
    kept = window.of(slot.body)
    gone = window.leaving(kept, sizes, tx.now)
    tx.tables.entries.put(key, tuple(rows[gone:]))
    return replace(slot, body=window.body(window.without(kept, sizes[:gone])))


def add_checkpoint(tx: Transaction, session: bytes, checkpoint: Checkpoint) -> Checkpoint:
    others = tuple(known for known in checkpoints_of(tx, session) if known.name != checkpoint.name)
    tx.tables.checkpoints.put((tx.tenant, session), (*others, checkpoint))
    return checkpoint


def advance(tx: Transaction, head: Session) -> Session:
    """The desk's next version; an interaction, so it lives on."""
    after = replace(head, version=head.version + 1, touched_at=tx.at, expires_at=lifetime.renewed(head, tx.now))
    if versions.tidies(head.version, after.version):
        tidy_later(tx, head.id)
    return tx.put_session(after)


def tidy_later(tx: Transaction, session: bytes) -> None:
    """Somebody looks at what of its past may go."""
    tx.tables.due.put((tx.tenant, session, "tidy"), tx.now)


def clear(tx: Transaction, session: bytes) -> None:
    """What lay on a desk goes, unless a fork still shows it; with a fork's own goes its hold on its parent."""
    while True:
        head = tx.tables.sessions.get((tx.tenant, session))
        if head is None or any(known.kind == "fork" for known in checkpoints_of(tx, session)):
            return
        for name in own(tx, session):
            for table in (tx.tables.slots, tx.tables.past_slots, tx.tables.documents, tx.tables.entries):
                table.drop((tx.tenant, session, name))
        tx.tables.checkpoints.drop((tx.tenant, session))
        tx.tables.beyond.drop((tx.tenant, session))
        _clear_schemas(tx, head)
        if head.parent == NIL:
            return
        held = versions.fork_name(session)
        rest = tuple(known for known in checkpoints_of(tx, head.parent) if known.name != held)
        tx.tables.checkpoints.put((tx.tenant, head.parent), rest)
        parent = tx.tables.sessions.get((tx.tenant, head.parent))
        if parent is None:
            return
        if parent.status == "active":
            return free(tx, parent, head.base)
        if not lifetime.left(parent):  # it is still to be put away
            return
        session = head.parent


def past_over(tx: Transaction, head: Session, *, before: int) -> list[versions.Over]:
    """What of the desk's past may go: it was over by a version, and no checkpoint shows it."""
    named, found = [known.version for known in checkpoints_of(tx, head.id)], list[versions.Over]()
    for name, slot in own(tx, head.id).items():
        past = [row.version for row in tx.tables.past_slots.get((tx.tenant, head.id, name)) or ()]
        found += versions.droppable(name, past, slot.version, before=before, kept=named)
    return found


def drop_past(tx: Transaction, head: Session, going: Iterable[versions.Over]) -> None:
    """Those rows, and the documents that lie beside them."""
    gone: dict[str, set[int]] = {}
    for row in going:
        gone.setdefault(row.name, set()).add(row.version)
    for name, starts in gone.items():
        key = (tx.tenant, head.id, name)
        rows, documents = tx.tables.past_slots.get(key) or (), tx.tables.documents.get(key) or ()
        tx.tables.past_slots.put(key, tuple(row for row in rows if row.version not in starts))
        tx.tables.documents.put(key, tuple(row for row in documents if row[0] not in starts))


def free(tx: Transaction, head: Session, version: int) -> None:
    """A version has one name less: what only that kept is gone with it."""
    if version < head.kept_from:
        over = past_over(tx, head, before=head.kept_from)
        drop_past(tx, head, [row for row in over if row.version <= version < row.until])


def _clear_schemas(tx: Transaction, head: Session) -> None:
    """Schemas belong to the line of descent; they go with the last of it."""
    kin = [row for (tenant, _), row in tx.tables.sessions.pairs() if tenant == tx.tenant and row.lineage == head.lineage]
    if any(own(tx, row.id) for row in kin):
        return
    for key in [key for key, _ in tx.tables.schemas.pairs() if key[:2] == (tx.tenant, head.lineage)]:
        tx.tables.schemas.drop(key)
