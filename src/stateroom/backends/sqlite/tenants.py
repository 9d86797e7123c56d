"""Tenants as numbers: a name stands once in the file, not in every row and index entry."""

from __future__ import annotations

import apsw

NOBODY = -1  # a tenant that has never written: nothing is found under it


class Tenants:
    """Names and their numbers. Numbers are never reused, so what was looked up once stays true."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def find(self, db: apsw.Connection, name: str) -> int:
        """The number of a tenant; NOBODY when it has none."""
        number = self._numbers.get(name)
        if number is None:
            row = db.execute("select number from tenant where name = ?", (name,)).fetchone()
            if row is None:
                return NOBODY
            number = self._numbers[name] = row[0]
        return number

    def make(self, db: apsw.Connection, name: str) -> int:
        """The number of a tenant, given in this transaction if need be. A new one is remembered once it is read back:
        the transaction may still be rolled back."""
        number = self.find(db, name)
        if number == NOBODY:
            row = db.execute("insert into tenant(name) values (?) returning number", (name,)).fetchone()
            assert row is not None
            number = row[0]
        return number
