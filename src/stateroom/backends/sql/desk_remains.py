"""A desk as a whole in SQL: read in pages, and brought back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from stateroom import ids
from stateroom.backends.sql import desk_rows as rows
from stateroom.backends.sql import ephemeral
from stateroom.backends.sql.desk_life import watch
from stateroom.backends.sql.session import bound_row, insert
from stateroom.backends.sql.tx import Row, Tx, columns, nil
from stateroom.ids import NIL
from stateroom.session import remains as r
from stateroom.session import versions
from stateroom.session.model import Checkpoint, Entry, Session, Slot
from stateroom.session.receipts import Aged

_HERE = "tenant = ? and home = ? and session = ?"
_AT = "where tenant = ? and home = ? and id = ?"
_SLOT = columns(Slot.__struct_fields__)
_ENTRY = ", ".join(Entry.__struct_fields__)
_FAR = 2**62

# ── reads ───────────────────────────────────────────────────────────────────────────────────────────────────────────

_PAGES: Mapping[r.Part, tuple[str, int, Callable[[Row], r.Remnant]]] = {
    "slot": (f"select {_SLOT} from slot where {_HERE} and name > ? order by name limit ?", 1, lambda row: Slot(*row)),
    "past": (
        f"select {_SLOT} from slot_past where {_HERE} and (name, version) > (?, ?) order by name, version limit ?",
        2, lambda row: r.PastSlot(Slot(*row)),
    ),
    "document": (
        f"select name, version, body from slot_doc where {_HERE} and (name, version) > (?, ?) order by name, version limit ?",
        2, lambda row: r.Snapshot(*row),
    ),
    "entry": (
        f"select name, {_ENTRY} from slot_entry where {_HERE} and (name, at, version, n) > (?, ?, ?, ?)"
        " order by name, at, version, n limit ?",
        4, lambda row: r.Lying(row[0], Entry(*row[1:])),
    ),
    "checkpoint": (
        f"select {rows.CHECKPOINT} from checkpoint where {_HERE} and name > ? and kind <> 'fork' order by name limit ?",
        1, lambda row: Checkpoint(*row),
    ),
    "beyond": (
        f"select place, k1, k2, k3, body from desk_beyond where {_HERE} and (place, k1, k2, k3) > (?, ?, ?, ?)"
        " order by place, k1, k2, k3 limit ?",
        4, lambda row: r.from_row((row[0], row[1], row[2], row[3], row[4])),
    ),
}  # fmt: skip


def remains(tx: Tx, id_: bytes, part: r.Part, *, after: r.Key, limit: int) -> list[r.Remnant]:
    """A page of a part of a desk, living or not."""
    head = rows.row_of(tx, id_)
    if head.status in ("expiring", "lost"):
        ephemeral.check_there(tx, head)
    tx = ephemeral.on(tx, head)
    if part == "schema":
        sql = "select digest, body from slot_schema where tenant = ? and home = ? and lineage = ? and digest > ?"
        found = tx.rows(f"{sql} order by digest limit ?", (*rows.place(tx, head.lineage), after[0], limit))
        return [r.GivenSchema(*row) for row in found]
    if head.parent != NIL and part != "checkpoint":
        gathered = sorted(_of_fork(tx, head, part), key=r.key)
        return [remnant for remnant in gathered if r.key(remnant) > after][:limit]
    sql, width, made = _PAGES[part]
    return [made(row) for row in tx.rows(sql, (*rows.place(tx, head.id), *after[:width], limit))]


def _of_fork(tx: Tx, head: Session, part: r.Part) -> list[r.Remnant]:
    """A fork shows its parent's: gathered as if it were its own."""
    if part == "beyond":
        return _beyond(tx, head)
    now, then = rows.slots_of(tx, head), rows.slots_of(tx, head, version=head.base)
    if part in ("slot", "entry"):
        windows = {
            name: _entries(tx, head, slot) for name, slot in now.items() if slot.kind == "window" and slot.body is not None
        }
        if part == "slot":
            return [r.counted(slot, windows[name]) if name in windows else slot for name, slot in now.items()]
        return [r.Lying(name, entry) for name, entries in windows.items() for entry in entries]
    before = [slot for name, slot in then.items() if slot.kind != "window" and now[name].version > head.base]
    here, own = rows.place(tx, head.id), list[r.Remnant]()
    sql, width, made = _PAGES[part]
    own += [made(row) for row in tx.rows(sql, (*here, *r.FIRST[:width], _FAR))]
    if part == "past":
        return [*(r.PastSlot(slot) for slot in before), *own]
    inherited = [slot for slot in then.values() if slot.kind == "doc" and slot.body is not None]
    return [*(r.Snapshot(slot.name, slot.version, rows.document_of(tx, head, slot)) for slot in inherited), *own]


def _beyond(tx: Tx, head: Session) -> list[r.Remnant]:
    found = dict[r.Key, r.Remnant]()
    for at, shown in rows.ancestry(tx, head):
        sql = f"select place, k1, k2, k3, body from desk_beyond where {_HERE}"
        for one in (r.from_row((row[0], row[1], row[2], row[3], row[4])) for row in tx.rows(sql, rows.place(tx, at.id))):
            if at is head or r.inherited(one, shown):
                found.setdefault(r.key(one), one)
    return list(found.values())


def _entries(tx: Tx, head: Session, slot: Slot) -> list[Entry]:
    """All that lies in a fork's window, its parents' included."""
    found = list[Entry]()
    for at, shown in rows.ancestry(tx, head):
        sql = f"select {_ENTRY} from slot_entry where {_HERE} and name = ? and version >= ? and version <= ?"
        found += [Entry(*row) for row in tx.rows(sql, (*rows.place(tx, at.id), slot.name, slot.epoch, shown))]
    return found


# ── writes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def begin(tx: Tx, write: r.BeginRestore) -> r.Restoring:
    row = tx.one(f"{rows.SESSION}{tx.lock}", rows.place(tx, write.head.id))
    known = None if row is None else rows.row_of(tx, write.head.id)
    r.check_place(known)
    if known is None:
        insert(tx, r.coming(write.head, tx.at))
        watch(tx, write.head.id, r.look_again(tx.now))
        return r.Restoring(session=write.head.id, whole=False)
    here = rows.place(tx, known.id)
    sql = f"select 1 from checkpoint where {_HERE} and kind = 'fork' limit 1"
    held = ephemeral.on(tx, known).one(sql, here)
    if held is None:
        known = replace(known, durability=write.head.durability, kept_from=0)
        tx.run(f"update session set durability = ?, kept_from = 0 {_AT}", (known.durability, *here))
        for table in rows.LYING:
            ephemeral.on(tx, known).run(f"delete from {table} where {_HERE}", here)
    ephemeral.begin(tx, known)
    return r.Restoring(session=known.id, whole=held is not None)


def put(tx: Tx, write: r.PutRemnants) -> r.Restoring:
    head = rows.row_of(tx, write.session)
    r.check_coming(head)
    ephemeral.check_there(tx, head)
    tx = ephemeral.on(tx, head)
    lineage = head.id if head.parent != NIL else head.lineage
    for remnant in write.remnants:
        _put(tx, head.id, lineage, remnant=remnant)
    return r.Restoring(session=head.id, whole=False)


def _put(tx: Tx, session: bytes, lineage: bytes, *, remnant: r.Remnant) -> None:
    here = rows.place(tx, session)
    match remnant:
        case r.GivenSchema():
            values: tuple[Any, ...] = (*rows.place(tx, lineage), remnant.digest, remnant.body)
            sql = "insert into slot_schema(tenant, home, lineage, digest, body) values (?, ?, ?, ?, ?) on conflict do nothing"
            tx.run(sql, values)
        case Slot():
            _insert(tx, "slot", (*here, *_values(remnant)), Slot.__struct_fields__)
        case r.PastSlot():
            _insert(tx, "slot_past", (*here, *_values(remnant.slot)), Slot.__struct_fields__)
        case r.Snapshot():
            _insert(tx, "slot_doc", (*here, remnant.name, remnant.version, remnant.body), ("name", "version", "body"))
        case r.Lying():
            entry = remnant.entry
            fields = ("name", "at", "version", "n", "size", "media", "body")
            values = (*here, remnant.name, entry.at, entry.version, entry.n, len(entry.body), entry.media, entry.body)
            _insert(tx, "slot_entry", values, fields)
        case Checkpoint():
            rows.add_checkpoint(tx, session, remnant)
        case r.Beyond():
            values = (*here, remnant.place, remnant.k1, remnant.k2, remnant.k3, remnant.body)
            _insert(tx, "desk_beyond", values, ("place", "k1", "k2", "k3", "body"))


def _values(slot: Slot) -> list[object]:
    return [nil(value) if name == "run" else value for name in Slot.__struct_fields__ for value in (getattr(slot, name),)]


def _insert(tx: Tx, table: str, values: tuple[object, ...], fields: Sequence[str]) -> None:
    names = ", ".join(("tenant", "home", "session", *fields))
    tx.run(f"insert into {table}({names}) values ({', '.join('?' * len(values))})", values)


def revive(tx: Tx, write: r.Revive) -> Aged:
    known = rows.row_of(tx, write.head.id)
    r.check_coming(known)
    ephemeral.check_there(tx, known)
    head = r.revived(write.head, at=tx.at, now=tx.now)
    lying, here = ephemeral.on(tx, known), rows.place(tx, known.id)
    held = lying.one(f"select 1 from checkpoint where {_HERE} and kind = 'fork' limit 1", here) is not None
    conversation = known.conversation
    if conversation != NIL and bound_row(tx, conversation, known.agent, lock=True) is not None:
        conversation = NIL
    version = max(head.version, known.version) if held else head.version
    tx.run(
        "update session set status = 'active', archive = '', version = ?, kept_from = ?, ttl_ms = ?, expires_at = ?, dies_at = ?,"
        f" touched_at = ?, conversation = ? {_AT}",
        (version, head.kept_from, head.ttl_ms, head.expires_at, head.dies_at, tx.at, nil(conversation), *here),
    )
    ephemeral.begin(tx, replace(head, id=known.id, version=version, durability=known.durability))
    if known.parent != NIL and not _holds(lying, known):
        values = (known.id, *rows.place(tx, known.id))
        tx.run(f"update session set parent = null, base = 0, lineage = ? {_AT}", values)
    watch(tx, known.id, head.expires_at)
    tx.touched.add(known.id)
    return Aged(session=known.id, status="active", expires_at=head.expires_at)


def _holds(tx: Tx, head: Session) -> bool:
    """Whether a fork's parent still keeps what it stands on."""
    sql = f"select 1 from checkpoint where {_HERE} and name = ?"
    return tx.one(sql, (tx.tenant, ids.home(head.parent), head.parent, versions.fork_name(head.id))) is not None
