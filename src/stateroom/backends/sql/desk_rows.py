"""What lies on desks in SQL, forks included: a fork shows its parent's slots as they were, but for those it changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from stateroom import ids
from stateroom.backends.sql import desk_past, ephemeral
from stateroom.backends.sql.tx import Row, Tx, columns, nil
from stateroom.ids import NIL
from stateroom.session import lifetime, versions, window
from stateroom.session.change import Changed, Stored
from stateroom.session.model import Checkpoint, Entry, Session, Slot

_SESSION = columns(Session.__struct_fields__)
_SLOT_FIELDS = Slot.__struct_fields__
_SLOT = columns(_SLOT_FIELDS)
_PAST = ", ".join(f"coalesce(p.run, x'{NIL.hex()}')" if name == "run" else f"p.{name}" for name in _SLOT_FIELDS)
_ALL = ", ".join(("tenant", "home", "session", *_SLOT_FIELDS))
_CHECKPOINT_FIELDS = Checkpoint.__struct_fields__
CHECKPOINT = columns(_CHECKPOINT_FIELDS)
_ENTRY = ", ".join(Entry.__struct_fields__)
_HERE = "tenant = ? and home = ? and session = ?"
SESSION = f"select {_SESSION} from session where tenant = ? and home = ? and id = ?"
SLOT = f"select {_SLOT} from slot where {_HERE} and name = ?"
_OWNER = Session.__struct_fields__.index("owner")
LYING = ("slot", "slot_past", "slot_doc", "slot_entry", "checkpoint", "desk_beyond")  # the tables of what lies on a desk
_TRIM_ROWS = 64  # looked at beyond what was appended, when a window lets go of its oldest

_PUT_SLOT = (
    f"insert into slot({_ALL}) values ({', '.join('?' * (3 + len(_SLOT_FIELDS)))})"
    " on conflict(tenant, home, session, name) do update set "
    + ", ".join(f"{name} = excluded.{name}" for name in _SLOT_FIELDS if name != "name")
)
_PUT_PAST = f"insert into slot_past({_ALL}) values ({', '.join('?' * (3 + len(_SLOT_FIELDS)))})"
_TO_PAST = f"insert into slot_past({_ALL}) select {_ALL} from slot where {_HERE} and name = ?"

_CLEAR_SCHEMAS = (
    "delete from slot_schema where tenant = ? and home = ? and lineage = ? and not exists (select 1 from session s"
    " join slot l on l.tenant = s.tenant and l.home = s.home and l.session = s.id"
    " where s.tenant = ? and s.home = ? and s.lineage = ?)"
)

# The newest earlier row of every slot that changed after a version.
_AS_IT_WAS = (
    f"select {_PAST} from slot s join slot_past p"
    " on p.tenant = s.tenant and p.home = s.home and p.session = s.session and p.name = s.name and p.version ="
    " (select max(q.version) from slot_past q where q.tenant = s.tenant and q.home = s.home and q.session = s.session"
    " and q.name = s.name and q.version <= ?4)"
    " where s.tenant = ?1 and s.home = ?2 and s.session = ?3 and s.version > ?4"
)

# What changed after a version has a present row after it: the past is looked for below those only. A plain join SQLite would
# begin with all of the past.
_PAST_AFTER = (
    "from slot s cross join slot_past p"
    " where p.tenant = s.tenant and p.home = s.home and p.session = s.session and p.name = s.name"
    " and s.tenant = ? and s.home = ? and s.session = ? and s.version > ? and p.version > ?"
)


def place(tx: Tx, session: bytes) -> Row:
    return tx.tenant, ids.home(session), session


# ── looking ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def row_of(tx: Tx, id_: bytes) -> Session:
    """The head, living or not, if the scope may see it."""
    row = tx.seen("session", id_, tx.one(f"{SESSION}{tx.lock}", place(tx, id_)), owner=_OWNER)
    return ephemeral.seen(tx, Session(*row))


def locked(tx: Tx, id_: bytes) -> Session:
    """What a desk stands on, whoever owns it."""
    row = tx.one(f"{SESSION}{tx.lock}", place(tx, id_))
    assert row is not None
    return ephemeral.seen(tx, Session(*row))


def session(tx: Tx, id_: bytes) -> Session:
    """The head of a living desk."""
    found = row_of(tx, id_)
    lifetime.check(found, tx.now)
    return found


def ancestry(tx: Tx, head: Session) -> Iterator[tuple[Session, int]]:
    """The desk and what it stands on, each with the version up to which it shows."""
    version = head.version
    while True:
        yield head, version
        if head.parent == NIL:
            return
        version = min(version, head.base)
        row = tx.one(SESSION, place(tx, head.parent))
        assert row is not None
        head = ephemeral.beneath(tx, Session(*row))


def slot_of(tx: Tx, head: Session, name: str, *, version: int | None = None) -> Slot | None:
    """A slot as it is, or as it was at a version. One row is read, on a desk that is no fork, to see it as it is."""
    for at, shown in ancestry(tx, head):
        slot = _slot_at(tx, at.id, name, shown if version is None else min(shown, version))
        if slot is not None:
            return slot if at is head else versions.inherit(slot)
    return None


def _slot_at(tx: Tx, session: bytes, name: str, version: int) -> Slot | None:
    here = place(tx, session)
    row = tx.one(SLOT, (*here, name))
    if row is None or (slot := versions.shown_at(Slot(*row), version)) is not None:
        return None if row is None else slot
    old = tx.one(
        f"select {_SLOT} from slot_past where {_HERE} and name = ? and version <= ? order by version desc limit 1",
        (*here, name, version),
    )
    return None if old is None else Slot(*old)


def slots_of(tx: Tx, head: Session, *, version: int | None = None, since: int = 0) -> dict[str, Slot]:
    """Every slot as it is, or as it was at a version, that changed after `since`; removals included."""
    found: dict[str, Slot] = {}
    for at, shown in ancestry(tx, head):
        if since >= shown and at is not head:
            break
        rows = _slots_at(tx, at.id, shown if version is None else min(shown, version), since)
        found = versions.overlay(found, rows if at is head else {name: versions.inherit(slot) for name, slot in rows.items()})
    return found


def _slots_at(tx: Tx, session: bytes, version: int, since: int) -> dict[str, Slot]:
    here = place(tx, session)
    rows = [Slot(*row) for row in tx.rows(f"select {_SLOT} from slot where {_HERE} and version > ?", (*here, since))]
    found = {slot.name: present for slot in rows if (present := versions.shown_at(slot, version)) is not None}
    if len(found) < len(rows):
        was = (Slot(*row) for row in tx.rows(_AS_IT_WAS, (*here, version)))
        found = versions.overlay(found, {slot.name: slot for slot in was if slot.version > since})
    return found


def sizes_after(tx: Tx, session: bytes, version: int) -> dict[int, int]:
    """How many bytes each version after one wrote into the desk's own rows."""
    here = place(tx, session)
    rows = tx.rows(f"select version, coalesce(length(body), 0) from slot where {_HERE} and version > ?", (*here, version))
    rows += tx.rows(f"select p.version, coalesce(length(p.body), 0) {_PAST_AFTER}", (*here, version, version))
    sizes: dict[int, int] = {}
    for at, size in rows:
        sizes[at] = sizes.get(at, 0) + size
    return sizes


def rows_after(tx: Tx, session: bytes, version: int, until: int) -> list[Slot]:
    """The desk's own rows of the versions after one, up to another: present and past ones."""
    here = place(tx, session)
    rows = tx.rows(f"select {_SLOT} from slot where {_HERE} and version > ? and version <= ?", (*here, version, until))
    rows += tx.rows(f"select {_PAST} {_PAST_AFTER} and p.version <= ?", (*here, version, version, until))
    return [Slot(*row) for row in rows]


def stored(tx: Tx, head: Session) -> Stored:
    """What a change may have to look up."""

    def schema(digest: str) -> str:
        sql = "select body from slot_schema where tenant = ? and home = ? and lineage = ? and digest = ?"
        row = tx.one(sql, (*place(tx, head.lineage), digest))
        return "" if row is None else str(row[0])

    return Stored(document=lambda slot: document_of(tx, head, slot), schema=schema)


def document_of(tx: Tx, head: Session, slot: Slot) -> bytes:
    """The snapshot of a document as it was when the slot was at its version."""
    for at, _ in ancestry(tx, head):
        sql = f"select body from slot_doc where {_HERE} and name = ? and version = ?"
        if (row := tx.one(sql, (*place(tx, at.id), slot.name, slot.version))) is not None:
            return bytes(row[0])
    return b""


def entries_of(tx: Tx, head: Session, slot: Slot, *, at: int, limit: int) -> list[Entry]:
    """The newest entries of a window up to a time, by time: a fork's own, and what its parents still keep from before it."""
    edge, found = window.horizon(window.of(slot.body), at), list[Entry]()
    for session, shown in ancestry(tx, head):
        rows = tx.rows(
            f"select {_ENTRY} from slot_entry where {_HERE} and name = ? and at <= ? and at > ? and version >= ?"
            " and version <= ? order by at desc, version desc, n desc limit ?",
            (*place(tx, session.id), slot.name, at, edge, slot.epoch, shown, limit),
        )
        found += [Entry(*row) for row in rows]
    return sorted(found, key=lambda entry: (entry.at, entry.version, entry.n))


def checkpoints_of(tx: Tx, session: bytes) -> list[Checkpoint]:
    rows = tx.rows(f"select {CHECKPOINT} from checkpoint where {_HERE}", place(tx, session))
    return [Checkpoint(*row) for row in rows]


def checkpoint_named(tx: Tx, session: bytes, name: str) -> Checkpoint | None:
    row = tx.one(f"select {CHECKPOINT} from checkpoint where {_HERE} and name = ?", (*place(tx, session), name))
    return None if row is None else Checkpoint(*row)


# ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def put_slot(tx: Tx, head: Session, changed: Changed, *, old: Slot | None) -> Slot:
    """The slot's row, `old` moved to the past when it is the desk's own, and what lies beside it."""
    slot, here = changed.slot, place(tx, head.id)
    if old is not None and old.version > head.base and old.kind != "window":
        tx.run(_TO_PAST, (*here, slot.name))
    if (gone_by := versions.left_behind(head, old, slot)) is not None:
        tx.run(_PUT_PAST, (*here, *_values(gone_by, _SLOT_FIELDS)))
    if changed.clear:
        tx.run(f"delete from slot_entry where {_HERE} and name = ?", (*here, slot.name))
    if changed.document is not None:
        tx.run(
            "insert into slot_doc(tenant, home, session, name, version, body) values (?, ?, ?, ?, ?, ?)",
            (*here, slot.name, slot.version, changed.document),
        )
    if changed.schema:
        tx.run(
            "insert into slot_schema(tenant, home, lineage, digest, body) values (?, ?, ?, ?, ?)"
            " on conflict(tenant, home, lineage, digest) do nothing",
            (*place(tx, head.lineage), slot.schema, changed.schema),
        )
    if slot.kind == "window" and slot.body is not None:
        slot = _put_entries(tx, here, changed)
    tx.run(_PUT_SLOT, (*here, *_values(slot, _SLOT_FIELDS)))
    return slot


def _values(record: Slot | Checkpoint, fields: Sequence[str]) -> list[object]:
    """A row's values; absent ids as null."""
    return [nil(value) if name in ("run", "branch") else value for name in fields for value in (getattr(record, name),)]


def _put_entries(tx: Tx, here: Row, changed: Changed) -> Slot:
    """New entries join the window, and those that it no longer keeps leave. They leave first: the new ones take their room on
    the disk, and the commit has less to write."""
    slot, kept = changed.slot, window.of(changed.slot.body)
    coming = sorted((entry.at, slot.version, n, len(entry.body)) for n, entry in enumerate(changed.entries))
    page, going_on = len(coming) + _TRIM_ROWS, True
    while going_on:
        stored = tx.rows(
            f"select at, version, n, size from slot_entry where {_HERE} and name = ? order by at, version, n limit ?",
            (*here, slot.name, page),
        )
        oldest = sorted([*stored, *(row for row in coming if len(stored) < page or row < stored[-1])])
        sizes = [(at, size) for at, _, _, size in oldest]
        if gone := window.leaving(kept, sizes, tx.now):
            last = oldest[gone - 1]
            tx.run(
                f"delete from slot_entry where {_HERE} and name = ? and (at, version, n) <= (?, ?, ?)",
                (*here, slot.name, *last[:3]),
            )
            kept, coming = window.without(kept, sizes[:gone]), [row for row in coming if row > last]
        going_on = gone == len(oldest) and len(stored) == page
    tx.many(
        "insert into slot_entry(tenant, home, session, name, at, version, n, size, media, body)"
        " values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [(*here, slot.name, *row, changed.entries[row[2]].media, changed.entries[row[2]].body) for row in coming],
    )
    return replace(slot, body=window.body(kept))


def add_checkpoint(tx: Tx, session: bytes, checkpoint: Checkpoint) -> Checkpoint:
    names = ", ".join(_CHECKPOINT_FIELDS)
    tx.run(
        f"insert into checkpoint(tenant, home, session, {names}) values ({', '.join('?' * (3 + len(_CHECKPOINT_FIELDS)))})",
        (*place(tx, session), *_values(checkpoint, _CHECKPOINT_FIELDS)),
    )
    return checkpoint


def advance(tx: Tx, head: Session) -> Session:
    """The desk's next version; an interaction, so it lives on."""
    expires_at = lifetime.renewed(head, tx.now)
    after = ephemeral.keep(tx, head, version=head.version + 1, touched_at=tx.at, expires_at=expires_at)
    tx.touched.add(head.id)
    if versions.tidies(head.version, after.version):
        tidy_later(tx, head.id)
    return after


def tidy_later(tx: Tx, session: bytes) -> None:
    """Somebody looks at what of its past may go."""
    tx.run("insert into due(kind, at, tenant, id) values ('tidy', ?, ?, ?) on conflict do nothing", (tx.now, tx.tenant, session))


def clear(tx: Tx, session: bytes, *, known: Session | None = None) -> None:
    """What lay on a desk goes, unless a fork still shows it; with a fork's own goes its hold on its parent. `known`: its head
    was just read."""
    while True:
        here = place(tx, session)
        if known is None:
            if (row := tx.one(SESSION, here)) is None:
                return
            known = Session(*row)
        head, known = known, None
        tx = ephemeral.on(tx, head)  # a fork is as its parent is
        if tx.one(f"select 1 from checkpoint where {_HERE} and kind = 'fork' limit 1", here) is not None:
            return
        for table in LYING:
            tx.run(f"delete from {table} where {_HERE}", here)
        if head.durability == "ephemeral":
            tx.run("delete from ephemeral_session where tenant = ? and home = ? and id = ?", here)
        _clear_schemas(tx, head)
        if head.parent == NIL:
            return
        above = place(tx, head.parent)
        tx.run(f"delete from checkpoint where {_HERE} and name = ?", (*above, versions.fork_name(session)))
        parent = tx.one(f"{SESSION}{tx.lock}", above)  # locked: of its last two forks one sees that it is the last
        if parent is None:
            return
        if (stands_on := ephemeral.beneath(tx, Session(*parent))).status == "active":
            return desk_past.free(tx, above, stands_on, head.base)
        if not lifetime.left(stands_on):  # it is still to be put away
            return
        session = head.parent


def _clear_schemas(tx: Tx, head: Session) -> None:
    """Schemas belong to the line of descent; they go with the last of it."""
    here = place(tx, head.lineage)
    tx.run(_CLEAR_SCHEMAS, (*here, *here))
