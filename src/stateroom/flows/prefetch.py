"""Fetch a desk before it is asked for: when somebody attaches to it, when a caller says that it will be needed, and after a
finished run, whose caller is likely to come back. Only a guess: nothing waits for it, and a guess too many is passed over.
"""

from __future__ import annotations

import asyncio
import logging

from stateroom import limits
from stateroom.backends.base import Backend
from stateroom.errors import StateroomError
from stateroom.flows.hydrate import Hydrator
from stateroom.ids import NIL
from stateroom.principal import Scope

log = logging.getLogger("stateroom.prefetch")


class Prefetcher:
    """Desks on their way into this process's cache."""

    def __init__(self, backend: Backend, hydrator: Hydrator) -> None:
        self._backend, self._hydrator = backend, hydrator
        self._coming: dict[tuple[str, bytes], asyncio.Task[None]] = {}

    def hint(self, scope: Scope, session: bytes) -> asyncio.Task[None] | None:
        """This desk may be wanted soon. None when there are too many guesses already."""
        key = (scope.tenant, session)
        if session == NIL or len(self._coming) >= limits.PREFETCHES_MAX:
            return None
        if (task := self._coming.get(key)) is None:
            task = self._coming[key] = asyncio.create_task(self._fetch(scope, session), name=f"prefetch {session.hex()}")
            task.add_done_callback(lambda _: self._coming.pop(key, None))
        return task

    def finished(self, scope: Scope, session: bytes) -> None:
        """A run has ended: its desk is here already, unless it was pushed out or could not be read."""
        if session != NIL and not self._hydrator.has(scope, session):
            self.hint(scope, session)

    async def close(self) -> None:
        for task in (coming := list(self._coming.values())):
            task.cancel()
        await asyncio.gather(*coming, return_exceptions=True)

    async def _fetch(self, scope: Scope, session: bytes) -> None:
        try:
            await self._hydrator.ahead(scope, await self._backend.session(scope, session))
        except StateroomError as error:  # whoever asks for it will be told
            log.debug("session %s was not fetched ahead: %s", session.hex(), error)
