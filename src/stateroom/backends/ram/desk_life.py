"""How desks end in ram: by word, by time, and what is left of them."""

from __future__ import annotations

from msgspec.structs import replace

from stateroom import ids
from stateroom.backends.ram.desk_rows import advance, clear, see_session
from stateroom.backends.ram.store import Transaction
from stateroom.ids import NIL
from stateroom.session import access, lifetime
from stateroom.session.model import EndSession, Expire, HoldDesk, PurgeSession, Session, SetAccess, Status, TouchSession
from stateroom.session.receipts import Aged, Held, Opened, Patched


def touch_session(tx: Transaction, write: TouchSession) -> Aged:
    head = renew(tx, see_session(tx, write.session))
    return Aged(session=head.id, status=head.status, expires_at=head.expires_at)


def renew(tx: Transaction, head: Session) -> Session:
    """An interaction: the desk lives on. Its line in the due table stays: who finds it early moves it."""
    return tx.put_session(replace(head, touched_at=tx.at, expires_at=lifetime.renewed(head, tx.now)))


def keep_alive(tx: Transaction, session: bytes) -> None:
    """A turn is at work on the desk: that is an interaction."""
    head = tx.tables.sessions.get((tx.tenant, session))
    if head is not None and head.ttl_ms and lifetime.alive(head, tx.now):
        renew(tx, head)


def set_access(tx: Transaction, write: SetAccess) -> Patched:
    head = see_session(tx, write.session)
    head = tx.put_session(replace(head, access=access.granted(head, write)))
    return Patched(session=head.id, version=advance(tx, head).version)


def hold_desk(tx: Transaction, write: HoldDesk) -> Held:
    head = tx.put_session(access.held(renew(tx, see_session(tx, write.session)), write, tx.now))
    return Held(session=head.id, holder=head.holder, hold=head.hold, until=head.held_until)


def end_session(tx: Transaction, write: EndSession) -> Opened:
    head = tx.tables.sessions.get((tx.tenant, write.session))
    if head is None or not tx.scope.may_see(head.owner):
        raise ids.missing("session", write.session)
    lifetime.check_end(head, tx.now)
    head = tx.put_session(replace(_leave(tx, head, "ended"), metadata=b"{}"))
    tx.tables.due.drop((tx.tenant, head.id, "expire"))
    clear(tx, head.id)
    return Opened(id=head.id, version=head.version)


def expire(tx: Transaction, write: Expire) -> Aged:
    head = tx.tables.sessions.get((tx.tenant, write.session))
    if head is None or not tx.scope.may_see(head.owner):
        raise ids.missing("session", write.session)
    line = (tx.tenant, head.id, "expire")
    if lifetime.over(head, tx.now):
        head = _leave(tx, head, "expiring")
    elif head.status == "lost" and 0 < head.expires_at <= tx.now:
        head = tx.put_session(lifetime.mourn(head, tx.now))
    if write.archive and head.status == "expiring":
        head = tx.put_session(lifetime.put_elsewhere(head, write))
    if head.status == "expiring":
        tx.tables.due.put(line, tx.now + write.retry_ms)
    elif head.status in ("active", "lost") and head.expires_at:
        tx.tables.due.put(line, head.expires_at)
    else:
        tx.tables.due.drop(line)
    return Aged(session=head.id, status=head.status, expires_at=head.expires_at)


def purge_session(tx: Transaction, write: PurgeSession) -> Aged:
    head = tx.tables.sessions.get((tx.tenant, write.session))
    if head is None or not tx.scope.may_see(head.owner):
        raise ids.missing("session", write.session)
    lifetime.check_purge(head, write.archive)
    status: Status = "archived" if write.archive else "expired"
    tx.put_session(replace(head, status=status, archive=write.archive, metadata=head.metadata if write.archive else b"{}"))
    tx.tables.due.drop((tx.tenant, head.id, "expire"))
    clear(tx, head.id)
    return Aged(session=head.id, status=status, expires_at=head.expires_at)


def _leave(tx: Transaction, head: Session, status: Status) -> Session:
    """The desk is active no more; its conversation and agent may have another."""
    binding = (tx.tenant, head.conversation, head.agent)
    if head.conversation != NIL and tx.tables.bindings.get(binding) == head.id:
        tx.tables.bindings.drop(binding)
    return tx.put_session(replace(head, status=status))
