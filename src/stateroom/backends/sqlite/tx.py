"""A batch inside SQLite's transaction. There is one writer at a time: no row needs a lock."""

from __future__ import annotations

from collections.abc import Sequence

import apsw

from stateroom.backends.sql.tx import Row, Tx, into_lossy
from stateroom.backends.sqlite.ephemeral import Doubtful, Unattached, behind, catch_up, named
from stateroom.principal import Scope


class SqliteTx(Tx):
    """Statements run at once, on the connection that is inside the transaction."""

    ACCEPTED = "rowid"

    beside = ""  # the name of the file for what may be lost that this connection has at hand
    certain = True  # nobody writes meanwhile: what is not there is lost

    def __init__(self, db: apsw.Connection, scope: Scope, *, tenant: int, at: int = 0, now: int = 0) -> None:
        super().__init__(scope, tenant=tenant, at=at, now=now)
        self.db = db
        self._named, self._even = "", False
        self.redo: list[tuple[str, Sequence[Row]]] = []  # what it does to the file for what may be lost

    @property
    def has_ephemeral(self) -> bool:
        self._named = self._named or named(self.db)
        return self._named != ""

    def need_ephemeral(self) -> None:
        if self._even:
            return
        if not self.has_ephemeral or self._named != self.beside:
            raise Unattached
        if steps := behind(self.db):
            if not self.certain:
                raise Doubtful
            if steps != 1:
                raise Unattached
            catch_up(self.db)
        self._even = True

    def doubt(self) -> None:
        if not self.certain:
            raise Doubtful

    def run(self, sql: str, values: Row) -> None:
        self.count(sql)
        if into_lossy(sql):
            self.redo.append((sql, (values,)))
        self.db.execute(sql, values)

    def many(self, sql: str, rows: Sequence[Row]) -> None:
        self.count(sql)
        if into_lossy(sql):
            self.redo.append((sql, rows))
        self.db.executemany(sql, rows)

    def rows(self, sql: str, values: Row) -> list[Row]:
        return self.db.execute(sql, values).fetchall()

    def one(self, sql: str, values: Row) -> Row | None:
        return self.db.execute(sql, values).fetchone()
