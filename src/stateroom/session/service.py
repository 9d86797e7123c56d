"""What you can ask of sessions: open, read what changed, patch, end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from stateroom import ids, limits
from stateroom.batch import Batch, ClaimKey, Receipt, Write
from stateroom.clock import Clock
from stateroom.ids import NIL
from stateroom.principal import Scope
from stateroom.session import rules
from stateroom.session.model import EndSession, OpenSession, Patched, PatchSlots, Session, Slot, SlotPatch
from stateroom.session.store import SessionStore
from stateroom.wire import json


class Committing(SessionStore, Protocol):
    """The part of a backend this service needs."""

    @property
    def clock(self) -> Clock: ...

    async def commit(self, batch: Batch) -> tuple[Receipt, ...]: ...


class Sessions:
    """The session room's face for the layers above."""

    def __init__(self, store: Committing) -> None:
        self._store = store

    async def open(
        self,
        scope: Scope,
        *,
        id: bytes = NIL,
        subject: str = "",
        metadata: bytes = b"{}",
        slots: Mapping[str, Any] | None = None,
        claim: ClaimKey | None = None,
    ) -> Session:
        """A desk of its own (invocations style), optionally with first slots."""
        id = id if id != NIL else self.new_id()
        write = OpenSession(id=id, owner=scope.principal, subject=subject or scope.principal, metadata=metadata)
        writes: list[Write] = [write] if claim is None else [claim, write]
        if slots:
            writes.append(PatchSlots(session=id, patches=tuple(patches_of(slots)), by=scope.principal))
        await self._commit(scope, id, *writes)
        return await self._store.session(scope, id)

    async def get(self, scope: Scope, session: bytes) -> Session:
        return await self._store.session(scope, session)

    async def bound(self, scope: Scope, conversation: bytes, agent: str) -> Session | None:
        """The desk that a conversation's turns with this agent work on; None before the first one."""
        return await self._store.bound(scope, conversation, agent)

    async def recent(self, scope: Scope, *, after: bytes = NIL, limit: int = 20) -> list[Session]:
        return await self._store.sessions(scope, after=after, limit=limits.page(limit))

    async def slots(self, scope: Scope, session: bytes, *, since: int = 0) -> list[Slot]:
        """Slots changed after version `since`; removals (body None) only when `since` > 0."""
        return await self._store.slots(scope, session, since)

    async def state(self, scope: Scope, session: bytes) -> dict[str, Any]:
        """The desk as plain values."""
        slots = await self._store.slots(scope, session)
        return {slot.name: json.decode_trusted(slot.body) for slot in slots if slot.body is not None}

    async def patch(
        self,
        scope: Scope,
        session: bytes,
        patches: Sequence[SlotPatch],
        *,
        expected_version: int | None = None,
        claim: ClaimKey | None = None,
    ) -> Patched:
        """Change slots, all or none. Conflict with the actual versions when a precondition does not hold."""
        rules.check_patches(patches)
        write = PatchSlots(session=session, patches=tuple(patches), by=scope.principal, expected_version=expected_version)
        receipts = await self._commit(scope, session, *([write] if claim is None else [claim, write]))
        patched = receipts[-1]
        assert isinstance(patched, Patched)
        return patched

    async def end(self, scope: Scope, session: bytes) -> None:
        await self._commit(scope, session, EndSession(session=session))

    def new_id(self) -> bytes:
        return ids.new(ids.new_home(), self._store.clock.wall_ms())

    async def _commit(self, scope: Scope, session: bytes, *writes: Write) -> tuple[Receipt, ...]:
        now = self._store.clock.wall_ms()
        return await self._store.commit(Batch(id=ids.new(ids.home(session), now), scope=scope, at=now, writes=writes))


def patches_of(
    values: Mapping[str, Any], *, removed: Sequence[str] = (), expected: Mapping[str, int] | None = None
) -> list[SlotPatch]:
    """Plain values as patches. `expected` gives the versions the caller saw, per slot."""
    versions = expected or {}
    for value in values.values():
        rules.check_value(value)
    changed = [SlotPatch(name=name, body=json.encode(value), expected=versions.get(name)) for name, value in values.items()]
    return changed + [SlotPatch(name=name, body=None, expected=versions.get(name)) for name in removed]
