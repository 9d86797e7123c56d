"""What a backend keeps of sessions."""

from __future__ import annotations

from typing import Protocol

from stateroom.principal import Scope
from stateroom.session.model import Session, Slot


class SessionStore(Protocol):
    """Versioned desks. Writes go through `Backend.commit`.

    S1. A session's version only grows, by one per patch, and is never reused (P21).
    S2. A patch with a stale precondition is refused with the actual versions, and nothing is written.
    S3. Patches to different slots never collide.
    S4. The delta since v is exactly the slots with version > v, removals included.
    S5. A patch under a stale fence writes nothing (P8).
    S6. Old versions of a slot are kept apart; reading the desk does not pay for them.
    S7. At most one session is bound to a (conversation, agent).
    """

    async def session(self, scope: Scope, session: bytes) -> Session:
        """The head. NotFound when unknown or not visible; Gone when ended."""
        ...

    async def bound(self, scope: Scope, conversation: bytes, agent: str) -> Session | None:
        """The session bound to a conversation and agent, if a turn or the caller made one."""
        ...

    async def sessions(self, scope: Scope, *, after: bytes, limit: int) -> list[Session]:
        """Sessions of the scope, newest first, exclusive of `after` (NIL: from the start)."""
        ...

    async def slots(self, scope: Scope, session: bytes, since: int = 0) -> list[Slot]:
        """Slots changed after version `since`, by name; removals only when `since` > 0."""
        ...

    async def past(self, scope: Scope, session: bytes, name: str, limit: int) -> list[Slot]:
        """Earlier versions of one slot, newest first."""
        ...
