"""Tenants as numbers: a name stands once in the file, not in every row and index entry."""

from __future__ import annotations

import apsw

NOBODY = -1  # a tenant that has never written: nothing is found under it


class Tenants:
    """Names and their numbers. A committed number is never reused, so what was read once outside a transaction stays true."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def find(self, db: apsw.Connection, name: str) -> int:
        """The number of a tenant; NOBODY when it has none. Never inside a transaction that writes."""
        number = self._numbers.get(name)
        if number is None:
            row = db.execute("select number from tenant where name = ?", (name,)).fetchone()
            if row is None:
                return NOBODY
            number = self._numbers[name] = row[0]
        return number

    def make(self, db: apsw.Connection, name: str) -> int:
        """The number of a tenant inside a transaction, given now if need be. Nothing that is read here is remembered:
        the transaction may be rolled back, and the number given to somebody else."""
        number = self._numbers.get(name)
        if number is None:
            row = db.execute("select number from tenant where name = ?", (name,)).fetchone()
            row = row or db.execute("insert into tenant(name) values (?) returning number", (name,)).fetchone()
            assert row is not None
            number = int(row[0])
        return number
