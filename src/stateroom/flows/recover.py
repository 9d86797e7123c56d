"""Recover what dead workers left: every run reaches a terminal or waiting state within lease + sweep (P9).

Runs are found through the due table (content-free, as `system`), and handled in their own tenant's scope.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from stateroom import ids, limits
from stateroom.backends.base import Backend
from stateroom.batch import Batch, Receipt, Write
from stateroom.conversation.model import ItemQuery
from stateroom.errors import Conflict, Gone, NotFound
from stateroom.flows.failpoint import Failpoints
from stateroom.flows.job import superseded
from stateroom.flows.work import Workshop
from stateroom.ids import NIL
from stateroom.principal import Scope, operator
from stateroom.run import machine
from stateroom.run.model import Claim, Claimed, Due, Finish, Requeue, Resolved, Run, Status
from stateroom.run.steps import Compact, Resolve
from stateroom.wire import json, rows

log = logging.getLogger("stateroom.recover")
_SWEEP_MAX = 10_000
DUTY_MS = 5_000  # who sweeps for all; queued runs each worker looks at, because not every one has every agent


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
        now = self._backend.now()
        for due in await self._backend.due("lease", now, _SWEEP_MAX):
            handled += await self._look_after(due, owner_gone=False)
        if not await self._backend.on_duty("sweep", DUTY_MS):
            return handled
        for kind, look in (("deadline", self._end_late), ("action", self._expire), ("compact", self._compact)):
            for due in await self._backend.due(kind, now, _SWEEP_MAX):
                handled += await self._try(look, due)
        return handled

    async def _try(self, look: Callable[[Scope, Due], Awaitable[None]], due: Due) -> bool:
        """Somebody else may be at it too: whoever is quicker wins."""
        try:
            await look(operator(due.tenant, "system"), due)
        except (Conflict, Gone, NotFound) as beaten:
            log.debug("%s of %s needed nothing: %s", due.kind, due.id.hex(), beaten)
            return False
        return True

    async def _end_late(self, scope: Scope, due: Due) -> None:
        """A run past its deadline ends as expired, whoever works on it."""
        run = await self._backend.run(scope, due.id)
        error = json.encode({"code": "deadline_passed", "message": "The run did not end by its deadline."})
        end = (rows.end_row(),)
        finish = Finish(run=run.id, fence=None, status="expired", error=error, rows=end, compact_ms=limits.LOG_MS)
        await self._commit(scope, run.id, finish)
        if (job := self._workshop.job(run.id)) is not None:
            job.cancel()

    async def _expire(self, scope: Scope, due: Due) -> None:
        """Nobody answered in time, or a timer is over: the action's policy says what follows."""
        run = await self._backend.run_of_action(due.tenant, due.id)
        write = Resolve(run=run, action=due.id, expired=True, rows=(rows.end_row(),))
        resolved = await self._commit(scope, run, write)
        assert isinstance(resolved, Resolved)
        if resolved.run.status == "queued":
            await self.claim(scope, resolved.run)

    async def _compact(self, scope: Scope, due: Due) -> None:
        """The deltas of a run that ended long ago go; what it put out stays readable as a short stream."""
        run = await self._backend.run(scope, due.id)
        query = ItemQuery(branch=run.branch, after=run.in_hi, before=run.out_hi + 1, limit=limits.READ_ITEMS_MAX, run=run.id)
        items = await self._backend.items(scope, query) if run.out_hi > run.in_hi else []
        outputs = [json.decode_trusted(item.body) for item in items]
        await self._commit(scope, run.id, Compact(run=run.id, rows=(*rows.OPENED, rows.end_row(outputs))))

    async def _look_after(self, due: Due, *, owner_gone: bool) -> bool:
        """One run, by what it is now. Whoever is quicker wins; the other's write is refused."""
        scope = operator(due.tenant, "system")
        try:
            run = await self._backend.run(scope, due.id)
            if run.status == "queued":
                return await self.claim(scope, run, due=due)
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
            await self.claim(scope, run)
        return True

    async def claim(self, scope: Scope, run: Run, *, due: Due | None = None) -> bool:
        """Work on a queued run here, when this process can and it is its turn. One whose turn it is and whose agent
        nobody has had for AGENT_WAIT_MS ends as failed: it must not block its conversation for ever."""
        lease = self._workshop.lease()
        if (await self._backend.branch(scope, run.branch)).active_run != NIL:
            return False
        if run.agent not in lease.agents:
            if due is not None and due.at + limits.AGENT_WAIT_MS < self._backend.now():
                await self._commit(scope, run.id, Claim(run=run.id, lease=lease, rows=rows.STARTED))
                mine = await self._backend.run(scope, run.id)
                await self._end(scope, mine, "failed", "agent_unknown", f"No worker has an agent called {run.agent!r}.")
                return True
            return False
        claimed = await self._commit(scope, run.id, Claim(run=run.id, lease=lease, rows=rows.STARTED))
        assert isinstance(claimed, Claimed)
        self._workshop.go_on(scope, claimed)
        return True

    async def _end(self, scope: Scope, run: Run, status: Status, code: str, message: str) -> None:
        """End what its worker cannot end any more. What a run that was interrupted had been asked stays in the window."""
        interrupted = superseded(run)
        error = run.error if interrupted else json.encode({"code": code, "message": message})
        finish = Finish(
            run=run.id, fence=run.fence, status=status, rows=(rows.end_row(),), error=error, keep_input=interrupted,
            compact_ms=limits.LOG_MS,
        )  # fmt: skip
        await self._commit(scope, run.id, finish)

    async def _commit(self, scope: Scope, run: bytes, write: Write) -> Receipt:
        now = self._backend.clock.wall_ms()
        return (await self._backend.commit(Batch(id=ids.new(ids.home(run), now), scope=scope, at=now, writes=(write,))))[0]
