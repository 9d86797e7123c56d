"""Who takes a desk that has expired: cold storage, or a Python callable. (An address on the web: see `webhook`.)"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from stateroom import ids, limits
from stateroom.backends.base import Backend
from stateroom.flows.archive import Archives
from stateroom.ids import NIL
from stateroom.principal import Scope
from stateroom.session import remains as r
from stateroom.session.model import Session, Slot
from stateroom.wire import json

NOTE = "on_expiry"  # under which a store notes what is done with its desks
NOTHING = "nothing"


class Hook(Protocol):
    """What is done with a desk that has expired, before it is purged. Returns where an archive of it lies, or "". By its name
    the store knows which processes have it."""

    name: str

    def place(self, head: Session) -> str:
        """Where it would be put; the desk's head says so before it is. "": it is put nowhere."""
        ...

    async def take(self, scope: Scope, head: Session) -> str: ...

    async def drop(self, place: str) -> None:
        """Another worker was quicker: what this one took is of no use."""
        ...


class Archive:
    """Put it into cold storage."""

    name = "archive"

    def __init__(self, archives: Archives) -> None:
        self._archives = archives

    def place(self, head: Session) -> str:
        return self._archives.name(head)

    async def take(self, scope: Scope, head: Session) -> str:
        return await self._archives.archive(scope, head)

    async def drop(self, place: str) -> None:
        await self._archives.drop(place)


class Told:
    """A Python callable, with or without `async`, is told: the session as plain values, its state among them. What it
    raises keeps the desk."""

    name = "callable"

    def __init__(self, backend: Backend, told: Callable[[dict[str, Any]], Awaitable[None] | None]) -> None:
        self._backend, self._told = backend, told

    def place(self, head: Session) -> str:
        return ""

    async def take(self, scope: Scope, head: Session) -> str:
        given = await described(self._backend, scope, head)
        if inspect.iscoroutinefunction(self._told):
            await self._told(given)
        else:
            answer = await asyncio.to_thread(self._told, given)
            if inspect.isawaitable(answer):
                await answer
        return ""

    async def drop(self, place: str) -> None:
        """It was told: nothing to take back."""


async def described(backend: Backend, scope: Scope, head: Session) -> dict[str, Any]:
    """A session as plain values, for those who are told of its end."""
    after, state = r.FIRST, dict[str, Any]()
    while page := await backend.remains(scope, head.id, "slot", after=after, limit=limits.ARCHIVE_ROWS):
        state |= {slot.name: json.decode_trusted(slot.body) for slot in page if isinstance(slot, Slot) and slot.body is not None}
        after = r.key(page[-1])
    return {
        "session": ids.text("session", head.id), "tenant": scope.tenant, "owner": head.owner, "subject": head.subject,
        "conversation": ids.text("conversation", head.conversation) if head.conversation != NIL else "",
        "agent": head.agent, "version": head.version, "metadata": json.decode_trusted(head.metadata), "state": state,
    }  # fmt: skip
