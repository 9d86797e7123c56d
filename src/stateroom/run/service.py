"""What you can ask of runs: read one, list them, read its log, delete its answer. (Taking a turn opens several rooms:
see flows.turn.)"""

from __future__ import annotations

from typing import Protocol

from stateroom import ids, limits
from stateroom.batch import Batch, Draft, Receipt
from stateroom.clock import Clock
from stateroom.principal import Scope
from stateroom.run.model import DeleteRun, LogRow, Run, RunQuery
from stateroom.run.store import RunStore


class Committing(RunStore, Protocol):
    """The part of a backend this service needs."""

    @property
    def clock(self) -> Clock: ...

    async def commit(self, batch: Batch) -> tuple[Receipt, ...]: ...


class Runs:
    """The run room's face for the layers above."""

    def __init__(self, store: Committing) -> None:
        self._store = store

    async def get(self, scope: Scope, run: bytes) -> Run:
        return await self._store.run(scope, run)

    async def recent(self, scope: Scope, query: RunQuery) -> list[Run]:
        limits.page(query.limit)
        return await self._store.runs(scope, query)

    async def log(self, scope: Scope, run: bytes, *, after: int = 0, limit: int = 256) -> list[LogRow]:
        """Log entries whose last wire number is greater than `after`."""
        return await self._store.log(scope, run, after=after, limit=limits.page(limit))

    async def inbox(self, scope: Scope, run: bytes) -> list[Draft]:
        """Input that waits for its turn."""
        return await self._store.inbox(scope, run)

    async def delete(self, scope: Scope, run: bytes) -> None:
        """The run and its answer. Conflict while it is going on."""
        now = self._store.clock.wall_ms()
        await self._store.commit(Batch(id=ids.new(ids.home(run), now), scope=scope, at=now, writes=(DeleteRun(run=run),)))
