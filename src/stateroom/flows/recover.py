"""Recover what dead workers left: every run reaches a terminal or waiting state within lease + sweep (P9).

Runs are found through the due table (content-free, as `system`), and handled in their own tenant's scope.
"""

from __future__ import annotations

import logging

from stateroom import ids, limits
from stateroom.backends.base import Backend
from stateroom.batch import Batch, Receipt, Write
from stateroom.errors import Conflict, NotFound
from stateroom.flows.failpoint import Failpoints
from stateroom.flows.job import Work
from stateroom.flows.work import Workshop
from stateroom.principal import Scope, operator
from stateroom.run import machine
from stateroom.run.model import Claim, Claimed, Due, Finish, Requeue, Run, Status
from stateroom.wire import json, rows

log = logging.getLogger("stateroom.recover")
_SWEEP_MAX = 1_000


class Recovery:
    """Sweeps once at start and then now and then."""

    def __init__(self, backend: Backend, workshop: Workshop, failpoints: Failpoints) -> None:
        self._backend, self._workshop, self._failpoints = backend, workshop, failpoints

    async def sweep(self) -> int:
        """Look after every run whose lease has ended or whose owner is dead, and every queued one that nobody takes.
        Returns how many were taken up."""
        handled = 0
        for owner in await self._backend.owners():
            if await self._backend.alive(owner) is False:
                for due in await self._backend.leased_by(owner, _SWEEP_MAX):
                    handled += await self._look_after(due, owner_gone=True)
        for due in await self._backend.due("lease", self._backend.now(), _SWEEP_MAX):
            handled += await self._look_after(due, owner_gone=False)
        return handled

    async def _look_after(self, due: Due, *, owner_gone: bool) -> bool:
        """One run, by what it is now. Whoever is quicker wins; the other's write is refused."""
        scope = operator(due.tenant, "system")
        try:
            run = await self._backend.run(scope, due.id)
            if run.status == "queued":
                return await self._claim(scope, run)
            if run.status not in ("in_progress", "cancelling"):
                return False
            if not owner_gone and run.lease_until > self._backend.now():
                return False
            return await self._take_over(scope, run, owner_gone=owner_gone)
        except (Conflict, NotFound) as beaten:
            log.debug("run %s needed no recovery: %s", due.id.hex(), beaten)
            return False

    async def _take_over(self, scope: Scope, run: Run, *, owner_gone: bool) -> bool:
        if run.status == "cancelling":
            await self._end(scope, run, "cancelled", "cancelled", "Cancelled on request.")
        elif not run.stored or machine.gives_up(run, limits.ATTEMPTS_MAX):
            await self._end(scope, run, "failed", "run_lost", f"The worker was lost {run.attempt} times.")
        else:
            reset = rows.RESET if run.head > 0 else ()
            await self._commit(scope, run.id, Requeue(run=run.id, fence=run.fence, owner_gone=owner_gone, rows=reset))
            await self._failpoints.hit("recover.requeued")
            log.info("run %s is queued again after attempt %d", run.id.hex(), run.attempt)
            await self._claim(scope, run)
        return True

    async def _claim(self, scope: Scope, run: Run) -> bool:
        """Work on a queued run here, when this process can and it is its turn."""
        lease = self._workshop.lease()
        if run.agent not in lease.agents:
            return False
        claimed = await self._commit(scope, run.id, Claim(run=run.id, lease=lease, rows=rows.STARTED))
        assert isinstance(claimed, Claimed)
        own = Scope(scope.tenant, claimed.run.owner, sees_all=True)
        self._workshop.start(Work(scope=own, run=claimed.run, revision=claimed.revision, session_version=claimed.session_version))
        return True

    async def _end(self, scope: Scope, run: Run, status: Status, code: str, message: str) -> None:
        error = json.encode({"code": code, "message": message})
        finish = Finish(run=run.id, fence=run.fence, status=status, rows=(rows.end_row(),), error=error)
        await self._commit(scope, run.id, finish)

    async def _commit(self, scope: Scope, run: bytes, write: Write) -> Receipt:
        now = self._backend.clock.wall_ms()
        return (await self._backend.commit(Batch(id=ids.new(ids.home(run), now), scope=scope, at=now, writes=(write,))))[0]
