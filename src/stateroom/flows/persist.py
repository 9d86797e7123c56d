"""Get a worker's words into the store although the store has no room just now.

What an agent said was paid for. A caller who is refused can come back; a worker cannot, so it waits for space with its
words in hand, as long as its lease is worth anything.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from stateroom import limits
from stateroom.backends.base import Backend
from stateroom.batch import Batch, Receipt
from stateroom.errors import Closed, Unavailable

log = logging.getLogger("stateroom.persist")
T = TypeVar("T")
LONG_S = 0.4  # a store that was busy for a moment is no news


async def persist(backend: Backend, batch: Batch) -> tuple[Receipt, ...]:
    """Commit, and try again while the store is Unavailable, up to PERSIST_MS_MAX. The batch's id keeps a try whose
    answer was lost from landing twice: it is then refused as landed, and recovery finds the run ended."""
    return await insist(lambda: backend.commit(batch))


async def insist(act: Callable[[], Awaitable[T]]) -> T:
    """What a worker needs for a run it has taken on, a read too: a store that is away or busy is asked again, up to
    PERSIST_MS_MAX. Only for what may be done again."""
    clock = asyncio.get_running_loop().time
    give_up, pause = clock() + limits.PERSIST_MS_MAX / 1000, 0.05
    while True:
        try:
            return await act()
        except Closed:
            raise
        except Unavailable as error:
            if clock() + pause > give_up:
                raise
            log.log(logging.WARNING if pause >= LONG_S else logging.DEBUG, "trying again in %.2f s: %s", pause, error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, 1.0)
