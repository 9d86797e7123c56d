"""How desks end: found when their time has come, handed to the hook, purged. Never faster than turns can bear (P23).

A desk is unreadable from the moment it expires, swept or not. Its content goes only after the hook has taken it; a hook that
fails keeps it and is asked again, later and later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence

from msgspec.structs import replace

from stateroom import ids, limits
from stateroom.backends.base import Backend
from stateroom.batch import Batch, Receipt, Write
from stateroom.errors import Conflict, Gone, NotFound
from stateroom.flows.failpoint import Failpoints
from stateroom.flows.told import NOTE, Hook
from stateroom.principal import Scope, operator
from stateroom.run.model import Due
from stateroom.session import lifetime
from stateroom.session import remains as r
from stateroom.session.model import CompactPast, Expire, PurgeSession, Session
from stateroom.session.receipts import Aged, Compacted

log = logging.getLogger("stateroom.expire")
_DUTY_MS = 5_000
_PAGES = 32  # of one sweep; the next one comes soon
_HOOKS = 4  # asked at once


class Expiry:
    """Sweeps now and then: what has expired, and what of desks' past may go."""

    def __init__(self, backend: Backend, hook: Hook | None, failpoints: Failpoints, *, rest: int = 1) -> None:
        """`rest`: so many times as long as a page took, the store is left to others."""
        self._backend, self._hook, self._hit, self._rest = backend, hook, failpoints.hit, rest
        self._foreign = False  # as far as we know, it is done by processes that have what we have not

    async def begin(self) -> None:
        """From now on what this process does with desks is what is done with this store's."""
        if self._hook is not None:
            await self._backend.note(NOTE, self._hook.name)

    async def end(self) -> None:
        """Nothing is done any more: any process may purge."""
        await self._backend.note(NOTE, "")

    async def _is_foreign(self) -> bool:
        """Whether somebody said of this store what this process cannot do: it leaves what has expired to those who can."""
        wanted = await self._backend.noted(NOTE)
        foreign = wanted not in ("", self._hook.name if self._hook is not None else "")
        if foreign and not self._foreign:
            log.warning("what expires here is left to processes that have %r: this one has not", wanted)
        self._foreign = foreign
        return foreign

    async def sweep(self) -> int:
        """Look after desks whose time has come, a few pages of them. Returns how many; when it is many, more may wait."""
        leaves = self._foreign and await self._is_foreign()
        if not await self._backend.on_duty("tidy" if leaves else "expire", _DUTY_MS):
            return 0
        handled = 0
        for _ in range(0 if leaves else _PAGES):
            found = await self._backend.due("expire", self._backend.now(), limits.EXPIRE_PAGE)
            if not found or await self._is_foreign():
                break
            handled += await self._timely(self._page(found))
        for due in await self._backend.due("tidy", self._backend.now(), limits.EXPIRE_PAGE):
            await self._timely(self._tidy(due))
        return handled

    async def _page(self, found: Sequence[Due]) -> int:
        if self._hook is None:
            await self._purge(found)
            return len(found)
        gate = asyncio.Semaphore(_HOOKS)
        await asyncio.gather(*(self._one(due, gate) for due in found))
        return len(found)

    async def _purge(self, found: Sequence[Due]) -> None:
        """Nobody wants anything of them: all in one batch; those that need a closer look one by one."""
        for tenant in {due.tenant for due in found}:
            of_tenant = [due for due in found if due.tenant == tenant]
            try:
                await self._commit(tenant, *(write for due in of_tenant for write in _at_once(due)))
            except (Conflict, Gone, NotFound):
                for due in of_tenant:
                    await self._purge_one(due)

    async def _purge_one(self, due: Due) -> None:
        try:
            aged = (await self._commit(due.tenant, Expire(session=due.id, retry_ms=limits.EXPIRE_RETRY_MS)))[0]
            await self._hit("expire.marked")
            if isinstance(aged, Aged) and aged.status == "expiring":
                await self._commit(due.tenant, PurgeSession(session=due.id))
        except (Conflict, Gone, NotFound) as beaten:
            log.debug("session %s needed nothing: %s", due.id.hex(), beaten)

    async def _one(self, due: Due, gate: asyncio.Semaphore) -> None:
        async with gate:
            try:
                await self._expire(operator(due.tenant, "system"), due)
            except (Conflict, Gone, NotFound) as beaten:  # another worker was quicker
                log.debug("session %s needed nothing: %s", due.id.hex(), beaten)

    async def _expire(self, scope: Scope, due: Due) -> None:
        head = await self._backend.head(scope, due.id)
        left = lifetime.places(head) if head.status == "expiring" and head.archive != r.IMPORTING else []
        look = self._look(head)
        await self._drop(left[1:])
        aged = (await self._commit(due.tenant, look))[0]
        if not isinstance(aged, Aged) or aged.status != "expiring":
            return
        await self._drop(left[:1])
        await self._hit("expire.marked")
        place = await self._asked(scope, replace(head, archive=look.archive or head.archive))
        if place is None:
            return
        await self._hit("expire.archived")
        try:
            await self._commit(due.tenant, PurgeSession(session=due.id, archive=place))
        except Conflict:
            if place and self._hook is not None:
                await self._hook.drop(place)
            raise
        await self._hit("expire.purged")

    def _look(self, head: Session) -> Expire:
        """Where it will be put is recorded before it is, so that what a worker that dies leaves there is found."""
        assert self._hook is not None
        look = Expire(session=head.id, retry_ms=self._retry(head))
        if head.archive == r.IMPORTING or head.status not in ("active", "expiring") or not (place := self._hook.place(head)):
            return look
        return replace(look, archive=place, instead=head.archive)

    async def _drop(self, places: Sequence[str]) -> None:
        """What earlier tries left: nobody is believed who would still put it there."""
        assert self._hook is not None
        for place in places:
            await self._hook.drop(place)

    async def _asked(self, scope: Scope, head: Session) -> str | None:
        """Where the hook put it; None when it failed: the desk stays, and is due again."""
        assert self._hook is not None
        if head.archive == r.IMPORTING:  # it never came
            return ""
        if head.status == "lost":
            return _nothing_left(head)
        asked = asyncio.ensure_future(self._hook.take(scope, head))
        try:
            await asyncio.wait({asked}, timeout=limits.HOOK_MS_MAX / 1000)
        finally:
            given_up = asked.cancel()
        error = TimeoutError() if given_up else asked.exception()
        if error is None:
            return asked.result()
        if isinstance(error, Gone) and error.reason == "state_lost":
            return _nothing_left(head)
        log.warning("the hook did not take session %s: %s: %s", head.id.hex(), type(error).__name__, error)
        return None

    def _retry(self, head: Session) -> int:
        """Later and later: after as long as it has waited."""
        waited = self._backend.now() - head.expires_at
        return max(limits.EXPIRE_RETRY_MS, min(waited, limits.EXPIRE_RETRY_MS_MAX))

    async def _tidy(self, due: Due) -> None:
        """What policy does not keep goes, in small batches."""
        try:
            head = await self._backend.head(operator(due.tenant, "system"), due.id)
            before = max(0, head.version - limits.DESK_VERSIONS_KEPT)
            write = CompactPast(
                session=due.id, before=before, turns=limits.DESK_TURNS_KEPT, limit=limits.TIDY_ROWS_MAX, due_at=due.at
            )
            while True:
                done = (await self._commit(due.tenant, write))[0]
                if not isinstance(done, Compacted) or not done.more:
                    return
                await asyncio.sleep(0)
        except (Conflict, Gone, NotFound) as beaten:
            log.debug("session %s needed no tidying: %s", due.id.hex(), beaten)

    async def _timely(self, work: Awaitable[int | None]) -> int:
        """Do it, and then leave the store to others for a multiple of the time that it took."""
        clock = asyncio.get_running_loop().time
        started = clock()
        handled = await work
        await asyncio.sleep(min(self._rest * (clock() - started), 1.0))
        return handled or 0

    async def _commit(self, tenant: str, *writes: Write) -> tuple[Receipt, ...]:
        now = self._backend.clock.wall_ms()
        home = ids.home(writes[0].subject_of_change())
        scope = operator(tenant, "system")
        return await self._backend.commit(Batch(id=ids.new(home, now), scope=scope, at=now, writes=writes))


def _nothing_left(head: Session) -> str:
    log.warning("session %s was lost before it could be put away", head.id.hex())
    return ""


def _at_once(due: Due) -> tuple[Write, Write]:
    return Expire(session=due.id, retry_ms=limits.EXPIRE_RETRY_MS), PurgeSession(session=due.id)
