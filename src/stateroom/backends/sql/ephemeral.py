"""Ephemeral desks in SQL: the head is durable, what lies on it lies in tables of the same shape that cost no fsync (D10).

There lies with it what changes of the head with every patch: its version, when it was touched, when it expires. A batch
that touches nothing durable leaves its leaf there too. One that does raises the version in the durable head. What is not there,
or is behind that, was lost, and the desk says so.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

from msgspec.structs import replace

from stateroom import ids
from stateroom.backends.sql.tx import Row, Tx
from stateroom.errors import Gone
from stateroom.session import lifetime
from stateroom.session.model import Session

PREFIX: Final = "ephemeral_"
FIELDS: Final = ("version", "touched_at", "expires_at", "kept_from")
_AT: Final = "where tenant = ? and home = ? and id = ?"
HEAD: Final = f"select {', '.join(FIELDS)} from ephemeral_session {_AT}"
_BEGIN: Final = (
    f"insert into ephemeral_session(tenant, home, id, {', '.join(FIELDS)}) values (?, ?, ?, ?, ?, ?, ?)"
    " on conflict(tenant, home, id) do update set " + ", ".join(f"{name} = excluded.{name}" for name in FIELDS)
)
_OF_DESKS = re.compile(r"\b(from|join|into|update) (slot_past|slot_doc|slot_entry|slot_schema|slot|checkpoint|desk_beyond)\b")


@lru_cache(maxsize=256)
def moved(sql: str) -> str:
    """A statement on the tables of durable desks as one on those of ephemeral ones."""
    return _OF_DESKS.sub(rf"\1 {PREFIX}\2", sql)


class EphemeralTx(Tx):
    """The same transaction, for what lies on an ephemeral desk."""

    def __init__(self, tx: Tx) -> None:
        super().__init__(tx.scope, tenant=tx.tenant, at=tx.at, now=tx.now)
        self.lock, self.touched, self.runs, self.made, self.desks = tx.lock, tx.touched, tx.runs, tx.made, tx.desks
        self._tx = tx

    def run(self, sql: str, values: Row) -> None:
        self._tx.run(moved(sql), values)

    def many(self, sql: str, rows: Sequence[Row]) -> None:
        self._tx.many(moved(sql), rows)

    def rows(self, sql: str, values: Row) -> list[Row]:
        return self._tx.rows(moved(sql), values)

    def one(self, sql: str, values: Row) -> Row | None:
        return self._tx.one(moved(sql), values)

    def need_ephemeral(self) -> None:
        self._tx.need_ephemeral()


def on(tx: Tx, head: Session) -> Tx:
    """The transaction as it reaches what lies on this desk."""
    if head.durability == "durable" or isinstance(tx, EphemeralTx):
        return tx
    tx.need_ephemeral()
    return EphemeralTx(tx)


def place(tx: Tx, id_: bytes) -> Row:
    return tx.tenant, ids.home(id_), id_


def seen(tx: Tx, head: Session) -> Session:
    """The head as it is now: of an ephemeral desk with what is kept beside its slots, `lost` when that is not there or
    behind. One that is on its way out stays so."""
    if head.durability == "durable" or head.status not in ("active", "expiring"):
        return head
    row = _beside(tx, head)
    if row is not None:
        return replace(head, **dict(zip(FIELDS, row, strict=True)))
    return replace(head, status="lost") if head.status == "active" else head


def beneath(tx: Tx, head: Session) -> Session:
    """The head of what a fork stands on, living or not."""
    row = tx.one(HEAD, place(tx, head.id)) if head.durability == "ephemeral" else None
    return head if row is None else replace(head, **dict(zip(FIELDS, row, strict=True)))


def _beside(tx: Tx, head: Session) -> Row | None:
    """None: it was lost."""
    tx.need_ephemeral()
    row = None if lifetime.mourned(head) else tx.one(HEAD, place(tx, head.id))
    if row is None or row[0] < head.version:
        tx.doubt()
        return None
    return row


def check_there(tx: Tx, head: Session) -> None:
    """Before what lies on a desk that is on its way out, or in, is looked at or added to: is it there?"""
    if head.durability == "ephemeral" and _beside(tx, head) is None:
        raise Gone("What lay on this ephemeral session was lost.", code="state_lost")


def begin(tx: Tx, head: Session) -> None:
    """The place of an ephemeral desk that is made or comes back."""
    if head.durability == "ephemeral":
        tx.need_ephemeral()
        tx.run(_BEGIN, (*place(tx, head.id), *(getattr(head, name) for name in FIELDS)))
        tx.desks[head.id] = head.version


def keep(tx: Tx, head: Session, **fields: Any) -> Session:
    """What changes of a head with what lies on its desk, kept where that lies."""
    table = "session" if head.durability == "durable" else "ephemeral_session"
    changed = ", ".join(f"{name} = ?" for name in fields)
    tx.run(f"update {table} set {changed} {_AT}", (*fields.values(), *place(tx, head.id)))
    after = replace(head, **fields)
    if head.durability == "ephemeral":
        tx.desks[head.id] = after.version
    return after


def raise_floors(tx: Tx) -> None:
    """Whatever was recorded together with a change of an ephemeral desk tells how far that desk has come at least."""
    for id_, version in tx.desks.items():
        tx.run(f"update session set version = ? {_AT}", (version, *place(tx, id_)))
