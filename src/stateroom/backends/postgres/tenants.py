"""Tenants are stored as numbers; a number is given in a transaction of its own, so that no rollback takes it back."""

from __future__ import annotations

from stateroom.backends.postgres.pipe import Pipe

NOBODY = 0  # owns no row


class Tenants:
    """Names to numbers, remembered: they never change."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def find(self, pipe: Pipe, name: str) -> int:
        """The number of a tenant that has written something; NOBODY for others. Between transactions, or in one."""
        number = self._numbers.get(name)
        if number is None:
            rows = pipe.ask("select number from tenant where name = ?", (name,))
            if not rows:
                return NOBODY
            number = self._numbers[name] = rows[0][0]
        return number

    def make(self, pipe: Pipe, name: str) -> int:
        """The number of a tenant, given now if need be. Between transactions only."""
        if number := self.find(pipe, name):
            return number
        pipe.ask("insert into tenant(name) values (?) on conflict do nothing", (name,))
        return self.find(pipe, name)
