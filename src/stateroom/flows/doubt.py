"""An accept whose answer was lost for good: its caller was told that the store is away, and it may have landed all the same.

Then a run is leased to this worker, which does not know of it. So the worker asks, as soon as the store answers, and
works on what is its own, instead of leaving it until the lease ends.
"""

from __future__ import annotations

import asyncio
import logging

from stateroom.backends.base import Backend
from stateroom.batch import Batch
from stateroom.errors import NotFound, StateroomError, Unavailable
from stateroom.flows.work import Workshop
from stateroom.ids import NIL
from stateroom.run.model import Claimed

log = logging.getLogger("stateroom.doubt")
LOOKS_S = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0)  # a lease ends after 30 s; then it is recovery's


class Doubts:
    """Accepts that this worker does not know the fate of."""

    def __init__(self, backend: Backend, workshop: Workshop, *, owner: str) -> None:
        self._backend, self._workshop, self._owner = backend, workshop, owner
        self._tasks: set[asyncio.Task[None]] = set()

    def about(self, batch: Batch, run: bytes) -> None:
        """`batch` accepted `run`, or did not."""
        task = asyncio.create_task(self._look(batch, run), name=f"doubt {run.hex()}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _look(self, batch: Batch, run: bytes) -> None:
        for pause in LOOKS_S:
            await asyncio.sleep(pause)
            try:
                if await self._backend.landed(batch):
                    return await self._work_on(batch, run)
            except Unavailable:
                continue
            except StateroomError as error:
                log.debug("run %s is left to recovery: %s", run.hex(), error)
                return

    async def _work_on(self, batch: Batch, run: bytes) -> None:
        """Only what is leased to us and nobody here works on: not what a retry of the caller, or a sweep, has started."""
        row = await self._backend.run(batch.scope, run)
        if row.status != "in_progress" or row.lease_owner != self._owner or self._workshop.job(run) is not None or not row.stored:
            return
        branch, version = await self._backend.branch(batch.scope, row.branch), 0
        if row.session != NIL:
            try:
                version = (await self._backend.session(batch.scope, row.session)).version
            except NotFound:
                pass
        log.info("run %s had been accepted after all", run.hex())
        self._workshop.go_on(batch.scope, Claimed(run=row, revision=branch.revision, session_version=version))
