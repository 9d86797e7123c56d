"""A connection that only looks: every question in a read-only transaction of its own, and none for long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from stateroom.backends.postgres import schema
from stateroom.backends.postgres.pipe import Pipe
from stateroom.backends.postgres.settings import Settings
from stateroom.backends.sql.tx import Row

LOOK_S_MAX: Final = 30
_BEGIN: Final = "begin isolation level repeatable read read only"


class Patient:
    """Lost when the database cannot be reached, Unavailable when it turns us away."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.pipe = Pipe(settings.conninfo, prepare=settings.prepare, silent_s=2 * LOOK_S_MAX)
        self.above = False  # whether row-level security does not hold this role

    def rows(self, sql: str, values: Row = ()) -> list[Row]:
        """What a question finds. Refused when the role may not ask it, or when it takes too long."""
        with self.snapshot() as ask:
            return ask(sql, values)

    def row(self, sql: str) -> Row:
        """Its only row."""
        (found,) = self.rows(sql)
        return found

    def one(self, sql: str) -> Any:
        """The only value of its only row."""
        ((found,),) = self.rows(sql)
        return found

    @contextmanager
    def snapshot(self, *, tenant: int = 0, walled: bool = False) -> Iterator[Callable[..., list[Row]]]:
        """Several questions about one moment; of a tenant's rows, when one is named. `walled`: even whoever is above the
        wall looks through it."""
        self.pipe.send(_BEGIN)
        self.pipe.send("select set_config('statement_timeout', ?, true)", (str(LOOK_S_MAX * 1000),))
        self.pipe.send("select set_config('search_path', 'stateroom, pg_catalog', true)")
        if walled and self.above:
            self.pipe.send(f"set local role {schema.READER}")
        if tenant:
            self.pipe.send("select set_config('stateroom.tenant', ?, true)", (str(tenant),))
        try:
            self.pipe.gather()
            yield self.pipe.ask
        finally:
            self.pipe.ask("rollback")

    def close(self) -> None:
        self.pipe.close()
