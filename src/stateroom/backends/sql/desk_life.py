"""How desks end in SQL: by word, by time, and what is left of them."""

from __future__ import annotations

from msgspec.structs import replace

from stateroom.backends.sql import ephemeral
from stateroom.backends.sql.desk_rows import advance, clear, locked, place, row_of, session
from stateroom.backends.sql.tx import Tx
from stateroom.session import access, lifetime
from stateroom.session.model import EndSession, Expire, HoldDesk, PurgeSession, Session, SetAccess, Status, TouchSession
from stateroom.session.receipts import Aged, Held, Opened, Patched

_AT = "where tenant = ? and home = ? and id = ?"
_UNWATCH = f"delete from due where kind = 'expire' and tenant = ? and id = ? and at = (select due_at from session {_AT})"


def touch_session(tx: Tx, write: TouchSession) -> Aged:
    head = renew(tx, session(tx, write.session))
    return Aged(session=head.id, status=head.status, expires_at=head.expires_at)


def renew(tx: Tx, head: Session) -> Session:
    """An interaction: the desk lives on. Its line in the due table stays: who finds it early moves it."""
    tx.touched.add(head.id)
    return ephemeral.keep(tx, head, touched_at=tx.at, expires_at=lifetime.renewed(head, tx.now))


def keep_alive(tx: Tx, id_: bytes) -> None:
    """A turn is at work on the desk: that is an interaction."""
    row = tx.one("select ttl_ms from session where tenant = ? and home = ? and id = ? and status = 'active'", place(tx, id_))
    if row is not None and row[0] and lifetime.alive(head := locked(tx, id_), tx.now):
        renew(tx, head)


def set_access(tx: Tx, write: SetAccess) -> Patched:
    head = session(tx, write.session)
    tx.run(f"update session set access = ? {_AT}", (access.granted(head, write), *place(tx, head.id)))
    return Patched(session=head.id, version=advance(tx, head).version)


def hold_desk(tx: Tx, write: HoldDesk) -> Held:
    head = access.held(renew(tx, session(tx, write.session)), write, tx.now)
    values = (head.holder, head.hold, head.held_until, *place(tx, head.id))
    tx.run(f"update session set holder = ?, hold = ?, held_until = ? {_AT}", values)
    return Held(session=head.id, holder=head.holder, hold=head.hold, until=head.held_until)


def end_session(tx: Tx, write: EndSession) -> Opened:
    head = row_of(tx, write.session)
    lifetime.check_end(head, tx.now)
    _set_status(tx, head, "ended")
    watch(tx, head.id, 0)
    _forget(tx, head)
    return Opened(id=head.id, version=head.version)


def expire(tx: Tx, write: Expire) -> Aged:
    head = row_of(tx, write.session)
    if lifetime.over(head, tx.now):
        head = _set_status(tx, head, "expiring")
    elif head.status == "lost" and 0 < head.expires_at <= tx.now:
        head = lifetime.mourn(head, tx.now)
        tx.run(f"update session set kept_from = ?, expires_at = ? {_AT}", (head.kept_from, head.expires_at, *place(tx, head.id)))
    if write.archive and head.status == "expiring":
        head = lifetime.put_elsewhere(head, write)
        tx.run(f"update session set archive = ? {_AT}", (head.archive, *place(tx, head.id)))
    again = head.expires_at if head.status in ("active", "lost") else 0
    watch(tx, head.id, tx.now + write.retry_ms if head.status == "expiring" else again)
    return Aged(session=head.id, status=head.status, expires_at=head.expires_at)


def purge_session(tx: Tx, write: PurgeSession) -> Aged:
    head = row_of(tx, write.session)
    lifetime.check_purge(head, write.archive)
    status: Status = "archived" if write.archive else "expired"
    _set_status(tx, head, status)
    tx.run(f"update session set archive = ? {_AT}", (write.archive, *place(tx, head.id)))
    watch(tx, head.id, 0)
    if write.archive:  # it may come back, and what is said of it is not in the archive alone
        clear(tx, head.id, known=head)
    else:
        _forget(tx, head)
    return Aged(session=head.id, status=status, expires_at=head.expires_at)


def _forget(tx: Tx, head: Session) -> None:
    """Nobody can reach it any more: what lies on it goes, and what was said of it."""
    tx.run(f"update session set metadata = ? {_AT}", (b"{}", *place(tx, head.id)))
    clear(tx, head.id, known=head)


def _set_status(tx: Tx, head: Session, status: Status) -> Session:
    tx.run(f"update session set status = ? {_AT}", (status, *place(tx, head.id)))
    if head.durability == "ephemeral":  # how far it came is known afterwards too
        tx.desks[head.id] = head.version
    tx.touched.add(head.id)
    return replace(head, status=status)


def watch(tx: Tx, id_: bytes, at: int) -> None:
    """When somebody has to look at the desk; 0: never again. Nothing is read for it: many expire at once."""
    here = place(tx, id_)
    tx.run(_UNWATCH, (tx.tenant, id_, *here))
    if at:
        tx.run("insert into due(kind, at, tenant, id) values ('expire', ?, ?, ?)", (at, tx.tenant, id_))
    tx.run(f"update session set due_at = ? {_AT}", (at, *here))
