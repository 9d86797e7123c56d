"""The workshop: works on claimed runs, one task each, under their leases. The supervisor of agents' code.

A run that is claimed is hydrated, answered and finished in one batch; the same batch may claim the branch's next
queued turn, which then starts here. A worker whose fence went stale stops without a word: the run is somebody else's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from stateroom import ids, limits
from stateroom.backends.base import Backend
from stateroom.batch import Batch
from stateroom.errors import StaleFence, StateroomError, Unavailable
from stateroom.flows.agent import Agent
from stateroom.flows.failpoint import Failpoints
from stateroom.flows.hydrate import Hydrator
from stateroom.flows.job import Job, Work, on_behalf
from stateroom.flows.perform import Performance, Tools
from stateroom.principal import Scope
from stateroom.run.model import Beaten, Claimed, Finish, Heartbeat, Lease, Requeue
from stateroom.wire import json, rows

log = logging.getLogger("stateroom.work")


class Workshop:
    """Every run this process works on, and the heartbeat of their leases."""

    def __init__(
        self, backend: Backend, hydrator: Hydrator, agents: Mapping[str, Agent], *, owner: str, failpoints: Failpoints
    ) -> None:
        self._backend, self._hydrator, self._agents = backend, hydrator, agents
        self._owner, self._failpoints = owner, failpoints
        self._jobs: dict[bytes, Job] = {}
        self._heart: asyncio.Task[None] | None = None
        self.finished: Callable[[Scope, bytes], object] | None = None  # told of the desk of every run that has ended
        self._closing = False

    def lease(self) -> Lease:
        """What this workshop asks for when it takes a run."""
        return Lease(owner=self._owner, ms=limits.LEASE_MS, agents=frozenset(self._agents))

    def job(self, run: bytes) -> Job | None:
        return self._jobs.get(run)

    @property
    def busy(self) -> int:
        """How many runs are being worked on."""
        return len(self._jobs)

    def start(self, work: Work) -> Job:
        """Work on a claimed run, in a task of its own."""
        job = self._jobs[work.run.id] = Job(work)
        job.task = asyncio.create_task(self._supervise(job), name=f"run {work.run.id.hex()}")
        if self._heart is None or self._heart.done():
            self._heart = asyncio.create_task(self._beat(), name="heartbeat")
        return job

    def go_on(self, scope: Scope, claimed: Claimed) -> Job:
        """Work on a run that a batch of ours claimed, for whom it belongs to: not for whoever ended the one before."""
        scope = on_behalf(scope.tenant, claimed.run)
        return self.start(Work(scope=scope, run=claimed.run, revision=claimed.revision, session_version=claimed.session_version))

    async def close(self, grace_s: float) -> None:
        """Let running work end within `grace_s`; what is not done by then is left to recovery."""
        self._closing = True
        tasks = [job.task for job in self._jobs.values() if job.task is not None]
        if tasks and grace_s > 0:
            await asyncio.wait(tasks, timeout=grace_s)
        ending = [task for task in (*tasks, self._heart) if task is not None]
        for task in ending:
            task.cancel()
        unfinished = list(self._jobs.values())
        await asyncio.gather(*ending, return_exceptions=True)
        for job in unfinished:
            await self._let_go(job)

    async def _let_go(self, job: Job) -> None:
        """A planned stop costs the run no attempt: whoever comes next takes it up at once."""
        run, now = job.work.run, self._backend.clock.wall_ms()
        write = Requeue(run=run.id, fence=run.fence, owner_gone=True, planned=True, rows=rows.RESET)
        try:
            await self._backend.commit(Batch(id=ids.new(ids.home(run.id), now), scope=job.work.scope, at=now, writes=(write,)))
        except StateroomError as refused:
            log.debug("run %s is left to recovery: %s", run.id.hex(), refused)

    async def _supervise(self, job: Job) -> None:
        run = job.work.run
        try:
            tools = Tools(self._backend, self._hydrator, self._agents, self.lease(), self._failpoints)
            outcome, following = await Performance(tools, job).perform()
            job.settle(outcome)
            if self.finished is not None and outcome is not None and not self._closing:
                self.finished(job.work.scope, run.session)
            if following is not None and not self._closing:
                self.go_on(job.work.scope, following)
        except StaleFence:
            log.info("run %s was taken over", run.id.hex())
        except Unavailable as error:
            log.warning("run %s could not be finished, recovery will try again: %s", run.id.hex(), error)
        except Exception:  # a fault of ours must not leave the run hanging until its lease ends
            log.exception("run %s met a fault", run.id.hex())
            await self._give_up(job)
        finally:
            self._jobs.pop(run.id, None)
            job.settle(None)

    async def _give_up(self, job: Job) -> None:
        run, now = job.work.run, self._backend.clock.wall_ms()
        error = json.encode({"code": "internal_error", "message": "The server met a fault while it worked on this turn."})
        write = Finish(run=run.id, fence=run.fence, status="failed", error=error, rows=(rows.end_row(),))
        try:
            await self._backend.commit(Batch(id=ids.new(ids.home(run.id), now), scope=job.work.scope, at=now, writes=(write,)))
        except StateroomError as refused:
            log.warning("run %s is left to recovery: %s", run.id.hex(), refused)

    async def _beat(self) -> None:
        """Prolong the leases of everything that takes longer than a heartbeat."""
        while self._jobs:
            await asyncio.sleep(limits.HEARTBEAT_MS / 1000)
            for job in list(self._jobs.values()):
                if job.work.run.id in self._jobs:  # not over by the time its turn has come
                    await self._beat_one(job)

    async def _beat_one(self, job: Job) -> None:
        run, now, asked = job.work.run, self._backend.clock.wall_ms(), self._backend.now()
        write = Heartbeat(run=run.id, fence=run.fence, lease=self.lease())
        try:
            batch = Batch(id=ids.new(ids.home(run.id), now), scope=job.work.scope, at=now, writes=(write,))
            receipt = (await self._backend.commit(batch))[0]
        except StaleFence:  # it was taken over, or ended over our head
            log.info("run %s is no longer ours", run.id.hex())
            job.lost()
            return
        except StateroomError as error:
            log.warning("heartbeat of run %s failed: %s", run.id.hex(), error)
            return
        job.lease_until = asked + limits.LEASE_MS
        if isinstance(receipt, Beaten) and receipt.cancel:
            job.cancel()
