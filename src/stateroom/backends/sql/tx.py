"""One batch inside a transaction: what the rooms' write functions are given, whichever SQL store it runs in.

Statements are written once, in what SQLite and PostgreSQL have in common: `?` for values (or `?1`, `?2` … where one is
used twice), `x'…'` for bytes, named columns, upserts with `on conflict`. A store translates the rest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, ClassVar, TypeAlias

from stateroom import ids
from stateroom.conversation.model import Branch
from stateroom.ids import NIL
from stateroom.principal import Scope
from stateroom.run.model import Run

Row: TypeAlias = tuple[Any, ...]
_LOSSY = re.compile(r"\s*(?:insert into|update|delete from) ephemeral_")


class Tx:
    """A transaction, who asks (`tenant` is the number of the scope's), and what time it is.

    `touched` collects topics to wake. `lock` ends every select whose row decides about a write: nothing where one
    writer has the store to itself, a row lock where many do.
    """

    lock: str = ""
    fence_floor: int = 0  # fences given out from now on are higher: what a lost past may have given out is lower
    ACCEPTED: ClassVar[str]  # the column of `run` that grows with every run that is accepted

    def __init__(self, scope: Scope, *, tenant: int, at: int = 0, now: int = 0) -> None:
        self.scope, self.tenant = scope, tenant
        self.at, self.now = at, now
        self.touched: set[bytes] = set()
        self.runs: dict[bytes, Run] = {}  # rows of this batch as it has read or written them
        self.made: dict[bytes, Branch] = {}  # branches that this batch has made and not looked at since
        self.desks: dict[bytes, int] = {}  # ephemeral desks that this batch has changed: their versions
        self.writes = self.lossy = 0  # statements that wrote, and how many of them into what may be lost

    def run(self, sql: str, values: Row) -> None:
        """A statement whose rows nobody wants."""
        raise NotImplementedError

    def many(self, sql: str, rows: Sequence[Row]) -> None:
        """The same statement once per row of values."""
        raise NotImplementedError

    def rows(self, sql: str, values: Row) -> list[Row]:
        """All rows of a statement."""
        raise NotImplementedError

    def one(self, sql: str, values: Row) -> Row | None:
        """Its first row."""
        raise NotImplementedError

    def count(self, sql: str) -> None:
        """A statement that writes is on its way: `run` and `many` of every store say so."""
        self.writes += 1
        self.lossy += into_lossy(sql)

    @property
    def only_lossy(self) -> bool:
        """Whether nothing durable was written, and something that may be lost was."""
        return 0 < self.lossy == self.writes

    @property
    def has_ephemeral(self) -> bool:
        """Whether the store has ever had a place for what may be lost."""
        return True

    def need_ephemeral(self) -> None:
        """Whoever goes there says so first: where it is a place apart, it may not be at hand yet."""

    def doubt(self) -> None:
        """Something seems to be lost: a store whose reads may see one place before the other looks again."""

    @property
    def of_seen(self) -> str:
        """The condition on rows whose owner the scope names, with its `?`s; on none when it names nobody."""
        return f"owner in ({', '.join('?' * len(self.scope.sees)) or 'null'})"

    def seen(self, kind: str, id_: bytes, row: Row | None, *, owner: int) -> Row:
        """The row, if it exists and the scope may see its owner (the column's index); else the one answer for both."""
        if row is None or not self.scope.may_see(row[owner]):
            raise ids.missing(kind, id_)
        return row


Apply: TypeAlias = Callable[[Any, Any], Any]


@lru_cache(maxsize=1024)
def into_lossy(sql: str) -> bool:
    """Whether a statement writes into what may be lost."""
    return _LOSSY.match(sql) is not None


def nil(id_: bytes) -> bytes | None:
    """How an absent id is stored."""
    return None if id_ == NIL else id_


def columns(fields: tuple[str, ...]) -> str:
    """Named columns, never `*`; absent ids come back as NIL."""
    return ", ".join(f"coalesce({name}, x'{NIL.hex()}') as {name}" if name in _NULLABLE else name for name in fields)


_NULLABLE = frozenset(
    {
        "item",
        "merged_into",
        "moved_to",
        "parent",
        "active_run",
        "last_run",
        "run",
        "conversation",
        "branch",
        "session",
        "previous",
    }
)
