"""Sessions in SQL: reads, opening and patching."""

from __future__ import annotations

from stateroom import ids
from stateroom.backends.sql import conversation as conversations
from stateroom.backends.sql import ephemeral
from stateroom.backends.sql.desk_rows import (
    SESSION,
    SLOT,
    advance,
    document_of,
    entries_of,
    place,
    put_slot,
    session,
    slot_of,
    slots_of,
    stored,
)
from stateroom.backends.sql.tx import Tx, columns, nil
from stateroom.errors import AlreadyExists
from stateroom.ids import NIL
from stateroom.session import access, change, lifetime, rules, window
from stateroom.session.model import Document, Entry, OpenSession, PatchSlots, Session, Slot
from stateroom.session.receipts import Opened, Patched

__all__ = ["SESSION", "SLOT", "session"]

_SESSION = columns(Session.__struct_fields__)
BOUND = f"select {_SESSION} from session where tenant = ? and home = ? and conversation = ? and agent = ? and status = 'active'"
_FIELDS = Session.__struct_fields__
_IDS = ("conversation", "parent")
_INSERT = f"insert into session(tenant, home, due_at, {', '.join(_FIELDS)}) values ({', '.join('?' * (3 + len(_FIELDS)))})"


# ── writes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def open_(tx: Tx, write: OpenSession) -> Opened:
    expires_at, dies_at = lifetime.opened(write, tx.now)
    row = Session(
        id=write.id, owner=write.owner, subject=write.subject, conversation=write.conversation, agent=write.agent,
        lineage=write.id, version=0, status="active", metadata=write.metadata, created_at=tx.at, touched_at=tx.at,
        durability=write.durability, ttl_ms=write.ttl_ms, expires_at=expires_at, dies_at=dies_at,
    )  # fmt: skip
    add(tx, row)
    return Opened(id=row.id, version=0)


def add(tx: Tx, row: Session) -> None:
    """A new desk takes its place, and the place of one that has expired."""
    if tx.one("select 1 from session where tenant = ? and home = ? and id = ?", place(tx, row.id)):
        raise AlreadyExists("A session with this id exists.")
    if row.conversation != NIL:
        conversations.conversation(tx, row.conversation)
        if bound_row(tx, row.conversation, row.agent, lock=True) is not None:
            raise AlreadyExists("This conversation has a session with this agent.", code="session_bound")
    insert(tx, row)


def insert(tx: Tx, row: Session) -> None:
    """The desk's row; it is due when its time comes."""
    values = [nil(value) if name in _IDS else value for name in _FIELDS for value in (getattr(row, name),)]
    tx.run(_INSERT, (tx.tenant, ids.home(row.id), row.expires_at, *values))
    ephemeral.begin(tx, row)
    if row.expires_at:
        tx.run("insert into due(kind, at, tenant, id) values ('expire', ?, ?, ?)", (row.expires_at, tx.tenant, row.id))
    tx.touched.add(row.id)


def patch(tx: Tx, write: PatchSlots) -> Patched:
    """O(slots in the patch): only their rows are read."""
    head = session(tx, write.session)
    tx = ephemeral.on(tx, head)
    access.check(head, write)
    rules.check_patches(write.patches)
    known = {name: slot for name in change.names(write) if (slot := slot_of(tx, head, name)) is not None}
    rules.check_preconditions(write, known, head.version)
    if added := sum(patch.name not in known for patch in write.patches):
        rules.check_room(added, _count(tx, head))
    mark = change.stamp(write, head.version + 1, at=tx.at, now=tx.now)
    beside = stored(tx, head)
    changes = [change.change(patch, known, mark, stored=beside) for patch in write.patches]
    slots = tuple(put_slot(tx, head, changed, old=known.get(changed.slot.name)) for changed in changes)
    return Patched(session=head.id, version=advance(tx, head).version, slots=slots)


def _count(tx: Tx, head: Session) -> int:
    """How many slots a desk knows, removed ones included."""
    if head.parent != NIL:
        return len(slots_of(tx, head))
    (known,) = tx.rows("select count(*) from slot where tenant = ? and home = ? and session = ?", place(tx, head.id))[0]
    return int(known)


# ── reads ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def bound(tx: Tx, conversation: bytes, agent: str) -> Session | None:
    row = tx.one(BOUND, (tx.tenant, ids.home(conversation), conversation, agent))
    found = None if row is None else ephemeral.seen(tx, Session(*row))
    return found if found is not None and tx.scope.may_see(found.owner) and not lifetime.over(found, tx.now) else None


def bound_row(tx: Tx, conversation: bytes, agent: str, *, lock: bool = False) -> Session | None:
    """For a write: the bound desk, be it lost, whoever owns it. One that has expired is on its way out from here on."""
    row = tx.one(f"{BOUND}{tx.lock if lock else ''}", (tx.tenant, ids.home(conversation), conversation, agent))
    if row is None:
        return None
    found = ephemeral.seen(tx, Session(*row))
    if lifetime.over(found, tx.now):
        tx.run("update session set status = 'expiring' where tenant = ? and home = ? and id = ?", place(tx, found.id))
        tx.touched.add(found.id)
        return None
    return found


def sessions(tx: Tx, after: bytes, limit: int) -> list[Session]:
    """When an ephemeral one expires, its row does not know: such a page is read on until it is full."""
    found, last = list[Session](), None if after == NIL else (session(tx, after).created_at, after)
    while True:
        page = _listed(tx, last, limit)
        found += [row for row in (ephemeral.seen(tx, row) for row in page) if not lifetime.over(row, tx.now)]
        if len(page) < limit or len(found) >= limit:
            return found[:limit]
        last = page[-1].created_at, page[-1].id


def _listed(tx: Tx, after: tuple[int, bytes] | None, limit: int) -> list[Session]:
    where, values = "", list[object]((tx.tenant, tx.now))
    if after is not None:
        where, values = "and (created_at, id) < (?, ?)", [*values, *after]
    if not tx.scope.sees_all:
        where += f" and {tx.of_seen}"
        values += sorted(tx.scope.sees)
    rows = tx.rows(
        f"select {_SESSION} from session where tenant = ? and status = 'active' and created_at > 0"
        f" and (expires_at = 0 or expires_at > ? or durability = 'ephemeral') {where} order by created_at desc, id desc limit ?",
        (*values, limit),
    )
    return [Session(*row) for row in rows]


def slots(tx: Tx, id_: bytes, since: int) -> list[Slot]:
    head = session(tx, id_)
    found = slots_of(ephemeral.on(tx, head), head, since=since).values()
    return sorted((slot for slot in found if since > 0 or slot.body is not None), key=lambda slot: slot.name)


def past(tx: Tx, id_: bytes, name: str, limit: int) -> list[Slot]:
    head = session(tx, id_)
    tx = ephemeral.on(tx, head)
    now, found = slot_of(tx, head, name), list[Slot]()
    while now is not None and now.version > 0 and len(found) < limit:
        version = (now.epoch if now.kind == "window" and now.body is not None else now.version) - 1
        now = slot_of(tx, head, name, version=version)
        found += [now] if now is not None else []
    return found


def entries(tx: Tx, id_: bytes, name: str, *, as_of: int | None, limit: int) -> list[Entry]:
    head = session(tx, id_)
    tx = ephemeral.on(tx, head)
    slot = rules.of_kind(slot_of(tx, head, name), name, "window")
    at = min(tx.now if as_of is None else as_of, tx.now)
    return window.seen(window.of(slot.body), entries_of(tx, head, slot, at=at, limit=limit), at=at, limit=limit)


def document(tx: Tx, id_: bytes, name: str) -> Document:
    head = session(tx, id_)
    tx = ephemeral.on(tx, head)
    slot = rules.of_kind(slot_of(tx, head, name), name, "doc")
    return Document(name=name, version=slot.version, epoch=slot.epoch, snapshot=document_of(tx, head, slot))
