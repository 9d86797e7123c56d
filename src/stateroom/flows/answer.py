"""Answer what a run waits for, and go on with it at once where this process can."""

from __future__ import annotations

from stateroom import given, ids, limits
from stateroom.backends.base import Backend
from stateroom.batch import Batch, ClaimKey, Write
from stateroom.errors import Conflict
from stateroom.flows.recover import Recovery
from stateroom.principal import Scope
from stateroom.run.model import Resolved, Run
from stateroom.run.steps import Action, ActionQuery, Resolve
from stateroom.wire import rows


class Answers:
    """Pending actions of runs: what is asked, and what somebody says to it."""

    def __init__(self, backend: Backend, recovery: Recovery) -> None:
        self._backend, self._recovery = backend, recovery

    async def pending(self, scope: Scope, run: bytes) -> list[Action]:
        """What this run waits for now."""
        return await self._backend.actions(scope, ActionQuery(run=run))

    async def all(self, scope: Scope, run: bytes) -> list[Action]:
        """Everything this run ever asked, with the answers."""
        return await self._backend.actions(scope, ActionQuery(run=run, pending=False, limit=limits.READ_ITEMS_MAX))

    async def queue(self, scope: Scope, queue: str, *, limit: int = 100) -> list[Action]:
        """What was handed to a queue and is not answered, oldest first."""
        return await self._backend.actions(scope, ActionQuery(queue=given.text(queue, "queue"), limit=limits.page(limit)))

    async def resolve(
        self, scope: Scope, run: bytes, action: bytes, *, resolution: bytes, digest: bytes = b"", claim: ClaimKey | None = None
    ) -> Run:
        """Answer one action (`resolution`: a JSON object). The same answer again changes nothing; another one is
        Conflict; an approval needs the digest it was asked with. `claim` (an idempotency key) may raise Known. The run
        after it."""
        now = self._backend.clock.wall_ms()
        write = Resolve(run=run, action=action, resolution=resolution, digest=digest, rows=(rows.end_row(),))
        writes: tuple[Write, ...] = (write,) if claim is None else (claim, write)
        batch = Batch(id=ids.new(ids.home(run), now), scope=scope, at=now, writes=writes)
        resolved = (await self._backend.commit(batch))[-1]
        assert isinstance(resolved, Resolved)
        if resolved.run.status == "queued":
            try:
                await self._recovery.claim(scope, resolved.run)
            except Conflict:  # another worker was quicker
                pass
        return resolved.run
