"""A handle whose sessions are all ephemeral: whatever is promised of durable ones holds for them too, until they are lost."""

from __future__ import annotations

from msgspec.structs import replace

from stateroom.backends.base import Backend
from stateroom.batch import Batch, Receipt, Write
from stateroom.session.model import OpenSession


def ephemeral(handle: Backend) -> Backend:
    """The same handle; desks that are opened with it may be lost."""
    commit = handle.commit

    async def lightly(batch: Batch) -> tuple[Receipt, ...]:
        return await commit(replace(batch, writes=tuple(_light(write) for write in batch.writes)))

    handle.commit = lightly  # type: ignore[method-assign]
    return handle


def _light(write: Write) -> Write:
    return replace(write, durability="ephemeral") if isinstance(write, OpenSession) else write
