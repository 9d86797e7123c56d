"""Sessions and slots in SQLite: one row per slot, older versions apart."""

from __future__ import annotations

from stateroom import ids
from stateroom.backends.sql import conversation as conversations
from stateroom.backends.sql.tx import Tx, columns, nil
from stateroom.errors import AlreadyExists, Gone
from stateroom.ids import NIL
from stateroom.session import rules
from stateroom.session.model import EndSession, Opened, OpenSession, Patched, PatchSlots, Session, Slot

_SESSION = columns(Session.__struct_fields__)
_SLOT = columns(Slot.__struct_fields__)
_ALL = ", ".join(("tenant", "home", "session", *Slot.__struct_fields__))
SESSION = f"select {_SESSION} from session where tenant = ? and home = ? and id = ?"
SLOT = f"select {_SLOT} from slot where tenant = ? and home = ? and session = ? and name = ?"
_OWNER = Session.__struct_fields__.index("owner")


# ── writes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def open_(tx: Tx, write: OpenSession) -> Opened:
    if tx.one("select 1 from session where tenant = ? and home = ? and id = ?", (tx.tenant, ids.home(write.id), write.id)):
        raise AlreadyExists("A session with this id exists.")
    if write.conversation != NIL:
        conversations.conversation(tx, write.conversation)
        if bound_row(tx, write.conversation, write.agent) is not None:
            raise AlreadyExists("This conversation has a session with this agent.", code="session_bound")
    insert(tx, write)
    return Opened(id=write.id, version=0)


def insert(tx: Tx, write: OpenSession) -> None:
    tx.run(
        "insert into session(tenant, home, id, owner, subject, conversation, agent, lineage, metadata, created_at, touched_at)"
        " values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            tx.tenant, ids.home(write.id), write.id, write.owner, write.subject, nil(write.conversation), write.agent,
            write.id, write.metadata, tx.at, tx.at,
        ),
    )  # fmt: skip


def patch(tx: Tx, write: PatchSlots) -> Patched:
    """O(slots in the patch): only their rows are read."""
    head = session(tx, write.session)
    rules.check_patches(write.patches)
    place = (tx.tenant, ids.home(head.id), head.id)
    current: dict[str, Slot] = {}
    for change in write.patches:
        row = tx.one(SLOT, (*place, change.name))
        if row is not None:
            current[change.name] = Slot(*row)
    rules.check_preconditions(write, current, head.version)
    if added := len(write.patches) - len(current):
        (known,) = tx.rows("select count(*) from slot where tenant = ? and home = ? and session = ?", place)[0]
        rules.check_room(added, known)
    version = head.version + 1
    for change in write.patches:
        if change.name in current:
            tx.run(
                f"insert into slot_past({_ALL}) select {_ALL} from slot"
                " where tenant = ? and home = ? and session = ? and name = ?",
                (*place, change.name),
            )
        tx.run(
            "insert into slot(tenant, home, session, name, version, kind, schema, origin, trust, body, by, run, at)"
            " values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) on conflict(tenant, home, session, name) do update set"
            " version = excluded.version, kind = excluded.kind, schema = excluded.schema, origin = excluded.origin,"
            " trust = excluded.trust, body = excluded.body, by = excluded.by, run = excluded.run, at = excluded.at",
            (
                *place, change.name, version, change.kind, change.schema, change.origin, change.trust, change.body,
                write.by, nil(write.run), tx.at,
            ),
        )  # fmt: skip
    tx.run("update session set version = ?, touched_at = ? where tenant = ? and home = ? and id = ?", (version, tx.at, *place))
    tx.touched.add(head.id)
    return Patched(session=head.id, version=version)


def end(tx: Tx, write: EndSession) -> Opened:
    head = session(tx, write.session)
    tx.run(
        "update session set status = 'ended' where tenant = ? and home = ? and id = ?", (tx.tenant, ids.home(head.id), head.id)
    )
    tx.touched.add(head.id)
    return Opened(id=head.id, version=head.version)


# ── reads ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def session(tx: Tx, id_: bytes) -> Session:
    row = tx.one(f"{SESSION}{tx.lock}", (tx.tenant, ids.home(id_), id_))
    found = Session(*tx.seen("session", id_, row, owner=_OWNER))
    if found.status == "ended":
        raise Gone("This session has ended.", code="session_ended")
    return found


def bound(tx: Tx, conversation: bytes, agent: str) -> Session | None:
    found = bound_row(tx, conversation, agent)
    return found if found is not None and tx.scope.may_see(found.owner) else None


def bound_row(tx: Tx, conversation: bytes, agent: str) -> Session | None:
    """The bound session, whoever owns it."""
    row = tx.one(
        f"select {_SESSION} from session where tenant = ? and home = ? and conversation = ? and agent = ? and status = 'active'",
        (tx.tenant, ids.home(conversation), conversation, agent),
    )
    return None if row is None else Session(*row)


def sessions(tx: Tx, after: bytes, limit: int) -> list[Session]:
    where, values = "", list[object]((tx.tenant,))
    if after != NIL:
        where, values = "and (created_at, id) < (?, ?)", [tx.tenant, session(tx, after).created_at, after]
    if not tx.scope.sees_all:
        where += f" and {tx.of_seen}"
        values += sorted(tx.scope.sees)
    rows = tx.rows(
        f"select {_SESSION} from session where tenant = ? and status = 'active' {where}"
        " order by created_at desc, id desc limit ?",
        (*values, limit),
    )
    return [Session(*row) for row in rows]


def slots(tx: Tx, id_: bytes, since: int) -> list[Slot]:
    head = session(tx, id_)
    gone = "" if since else " and body is not null"
    rows = tx.rows(
        f"select {_SLOT} from slot where tenant = ? and home = ? and session = ? and version > ?{gone} order by name",
        (tx.tenant, ids.home(head.id), head.id, since),
    )
    return [Slot(*row) for row in rows]


def past(tx: Tx, id_: bytes, name: str, limit: int) -> list[Slot]:
    head = session(tx, id_)
    rows = tx.rows(
        f"select {_SLOT} from slot_past where tenant = ? and home = ? and session = ? and name = ? order by version desc limit ?",
        (tx.tenant, ids.home(head.id), head.id, name, limit),
    )
    return [Slot(*row) for row in rows]
