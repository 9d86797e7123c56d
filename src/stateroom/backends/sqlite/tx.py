"""One batch inside a transaction: what the rooms' write functions are given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import apsw

from stateroom import ids
from stateroom.ids import NIL
from stateroom.principal import Scope
from stateroom.run.model import Run

Row: TypeAlias = tuple[Any, ...]


class Tx:
    """The connection inside its transaction, who asks (`tenant` is the number of the scope's), and what time it is.
    `touched` collects topics to wake."""

    def __init__(self, db: apsw.Connection, scope: Scope, *, tenant: int, at: int = 0, now: int = 0) -> None:
        self.db, self.scope, self.tenant = db, scope, tenant
        self.at, self.now = at, now
        self.touched: set[bytes] = set()
        self.runs: dict[bytes, Run] = {}  # rows of this batch as it has read or written them

    def run(self, sql: str, values: Row) -> None:
        """A statement whose rows nobody wants."""
        self.db.execute(sql, values)

    def rows(self, sql: str, values: Row) -> list[Row]:
        return self.db.execute(sql, values).fetchall()

    def one(self, sql: str, values: Row) -> Row | None:
        return self.db.execute(sql, values).fetchone()

    def seen(self, kind: str, id_: bytes, row: Row | None, *, owner: int) -> Row:
        """The row, if it exists and the scope may see its owner (the column's index); else the one answer for both."""
        if row is None or not self.scope.may_see(row[owner]):
            raise ids.missing(kind, id_)
        return row


Apply: TypeAlias = Callable[[Tx, Any], Any]


def nil(id_: bytes) -> bytes | None:
    """How an absent id is stored."""
    return None if id_ == NIL else id_


def columns(fields: tuple[str, ...]) -> str:
    """Named columns, never `*`; absent ids come back as NIL."""
    return ", ".join(f"ifnull({name}, x'{NIL.hex()}') as {name}" if name in _NULLABLE else name for name in fields)


_NULLABLE = frozenset(
    {"item", "merged_into", "parent", "active_run", "last_run", "run", "conversation", "branch", "session", "previous"}
)
