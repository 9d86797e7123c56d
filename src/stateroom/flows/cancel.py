"""Cancel a run: in every state, in bounded time, asked once or ten times (P12)."""

from __future__ import annotations

from stateroom import ids
from stateroom.backends.base import Backend
from stateroom.batch import Batch, Write
from stateroom.errors import Conflict
from stateroom.flows.failpoint import Failpoints
from stateroom.flows.turn import Turns
from stateroom.principal import Scope
from stateroom.run.model import Cancel, Run
from stateroom.wire import rows


class Cancels:
    """Asks the worker first, and ends the run itself when the worker does not answer."""

    def __init__(self, backend: Backend, turns: Turns, failpoints: Failpoints) -> None:
        self._backend, self._turns, self._failpoints = backend, turns, failpoints

    async def cancel(self, scope: Scope, run: bytes) -> Run:
        """The run after the cancel: cancelled, or whatever end came first. A run that has ended is returned as it is."""
        row = await self._backend.run(scope, run)
        if row.ended:
            return row
        try:
            await self._commit(scope, run, Cancel(run=run, rows=(rows.end_row(),)))
        except Conflict:  # it ended in between
            return await self._backend.run(scope, run)
        await self._failpoints.hit("cancel.asked")
        await self._turns.give_way(scope, run)
        return await self._backend.run(scope, run)

    async def _commit(self, scope: Scope, run: bytes, write: Write) -> None:
        now = self._backend.clock.wall_ms()
        await self._backend.commit(Batch(id=ids.new(ids.home(run), now), scope=scope, at=now, writes=(write,)))
