"""Cancel a run: in every state, in bounded time, asked once or ten times (P12)."""

from __future__ import annotations

from stateroom import ids, limits
from stateroom.backends.base import Backend
from stateroom.batch import Batch, Write
from stateroom.errors import Conflict
from stateroom.flows.failpoint import Failpoints
from stateroom.flows.turn import Turns
from stateroom.principal import Scope
from stateroom.run.model import Cancel, Finish, Run
from stateroom.wire import json, rows

_ERROR = json.encode({"code": "cancelled", "message": "Cancelled on request."})


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
        if (job := self._turns.workshop.job(run)) is not None:
            job.cancel()
        try:
            return (await self._turns.outcome(scope, run, timeout_s=limits.CANCEL_GRACE_MS / 1000)).run
        except TimeoutError:
            return await self._end(scope, run)

    async def _end(self, scope: Scope, run: bytes) -> Run:
        """The worker is dead or deaf: end the run over its head; its fence is worth nothing from here on."""
        finish = Finish(run=run, fence=None, status="cancelled", error=_ERROR, rows=(rows.end_row(),))
        try:
            await self._commit(scope, run, finish)
        except Conflict:
            pass
        return await self._backend.run(scope, run)

    async def _commit(self, scope: Scope, run: bytes, write: Write) -> None:
        now = self._backend.clock.wall_ms()
        await self._backend.commit(Batch(id=ids.new(ids.home(run), now), scope=scope, at=now, writes=(write,)))
