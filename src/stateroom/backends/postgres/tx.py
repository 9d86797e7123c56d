"""A batch inside PostgreSQL's transaction: reads that were fetched ahead, writes that travel together.

What a write function reads was mostly asked for before it runs (`ahead`), in one round trip for everything; what was
not is asked for then. Its writes wait here and go out in one go. Rows fetched ahead are used once, and only as long as
nothing was written to their table: a missing hint costs a round trip, never an answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache

from stateroom.backends.postgres.pipe import Encoded, Pipe, encode
from stateroom.backends.sql.tx import Row, Tx
from stateroom.principal import Scope

Statement = tuple[str, Row]

_READ = re.compile(r"\b(?:from|join) (\w+)")
_WRITTEN = re.compile(r"\s*(?:insert into|update|delete from) (\w+)")


class OnPrimary(Exception):
    """What is looked for is not logged, and so not on a standby."""


class PostgresTx(Tx):
    """`lock`: whether rows that decide about a write are locked. `before` is called once, before the first statement of
    this batch that does not wait for its end: from there on only a savepoint can take it back."""

    ACCEPTED = "accepted"
    standby = False

    def __init__(self, pipe: Pipe, scope: Scope, *, tenant: int, at: int = 0, now: int = 0, locking: bool = False) -> None:
        super().__init__(scope, tenant=tenant, at=at, now=now)
        self.lock = " for update" if locking else ""
        self.before: Callable[[], None] | None = None
        self._pipe = pipe
        self._ahead: dict[Statement, list[Row]] = {}
        self._waiting: list[tuple[str, Encoded]] = []  # writes on their way out

    def need_ephemeral(self) -> None:
        if self.standby:
            raise OnPrimary

    def knows(self, statement: Statement, rows: list[Row]) -> None:
        """What a statement answered already."""
        self._ahead[statement] = rows

    def run(self, sql: str, values: Row) -> None:
        self.count(sql)
        self._forget(sql)
        self._waiting.append((sql, encode(values)))

    def many(self, sql: str, rows: Sequence[Row]) -> None:
        """Several rows to a statement, in few lengths, so that few statements are kept prepared."""
        self.count(sql)
        self._forget(sql)
        start, left = 0, len(rows)
        for count in (8, 4, 2, 1) if sql.startswith("insert") else (1,):
            while left >= count:
                values = tuple(value for row in rows[start : start + count] for value in row)
                self._waiting.append((several(sql, count), encode(values)))
                start, left = start + count, left - count

    def rows(self, sql: str, values: Row) -> list[Row]:
        known = self._ahead.pop((sql, values), None)
        if known is not None:
            return known
        self._forget(sql)
        if self.before is not None:
            self.before()
            self.before = None
        self.send()
        return self._pipe.ask(sql, values)

    def one(self, sql: str, values: Row) -> Row | None:
        found = self.rows(sql, values)
        return found[0] if found else None

    def send(self) -> None:
        """Put the waiting writes on their way."""
        for sql, encoded in self._waiting:
            self._pipe.put(sql, encoded)
        self._waiting.clear()

    def _forget(self, sql: str) -> None:
        """A table that is written to is not as it was."""
        if self._ahead and (table := written(sql)):
            for statement in [known for known in self._ahead if table in tables(known[0])]:
                del self._ahead[statement]


@lru_cache(maxsize=256)
def several(sql: str, count: int) -> str:
    """An insert of one row as one of `count` rows."""
    head, values, row = sql.rpartition(" values ")
    return f"{head}{values}{', '.join([row] * count)}"


@lru_cache(maxsize=1024)
def tables(sql: str) -> frozenset[str]:
    """The tables that a statement reads."""
    return frozenset(_READ.findall(sql))


@lru_cache(maxsize=1024)
def written(sql: str) -> str:
    """The table that a statement writes to."""
    found = _WRITTEN.match(sql)
    return found[1] if found else ""
