"""What a backend keeps of sessions."""

from __future__ import annotations

from typing import Protocol

from stateroom.principal import Scope
from stateroom.session.model import Checkpoint, Document, Entry, Session, Slot, Told
from stateroom.session.remains import Key, Part, Remnant


class SessionStore(Protocol):
    """Versioned desks. Writes go through `Backend.commit`.

    S1. A session's version only grows, by one per patch, and is never reused (P21).
    S2. A patch with a stale precondition is refused with the actual versions, and nothing is written.
    S3. Patches to different slots never collide.
    S4. The delta since v is exactly the slots with version > v, removals included.
    S5. A patch under a stale fence writes nothing (P8).
    S6. Old versions of a slot are kept apart; reading the desk does not pay for them.
    S7. At most one session is bound to a (conversation, agent).
    S8. Changes to slots of commutative kinds never conflict, and none is lost.
    S9. A window shows nothing that is older than it keeps, and nothing past the time it is looked at as of.
    S10. A slot keeps its schema: what breaks it is refused, and nothing is written.
    S11. A version that is kept is read as it was; one that is not is Gone. A named one is always kept.
    S12. A rollback is a new version equal to an old one, and what it undid is a checkpoint (P18).
    S13. A fork writes the same few rows whatever lies on the desk, and neither sees what the other does after it (P25).
    S14. A session that has expired by the store's time is Gone at once, swept or not (P13, P23).
    S15. What a slot was made from bounds how far it is trusted (P32).
    S16. Every version after a kept one is told: each slot that it changed, as it left it.
    S17. An agent changes no slot that the desk's rules keep from it, and is told nothing of what it may not see.
    S18. A desk is in one agent's hands at a time; what was given with older hands is refused (P8).
    S19. An ephemeral session is what a durable one is, until what lay on it is lost: then all of it is, and every use of it
         says `state_lost` until it is ended. Nothing that was recorded beside it is lost.
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
        """Earlier versions of one slot, newest first, those it shares with what the session was forked from included."""
        ...

    async def told(self, scope: Scope, session: bytes, *, after: int, limit: int) -> Told:
        """The versions after `after`, up to `limit` of them and about FOLLOW_BYTES_MAX, at least one. Gone when they are no
        longer whole; InvalidInput for a version that is still to come."""
        ...

    async def slots_at(self, scope: Scope, session: bytes, version: int) -> list[Slot]:
        """The living slots as they were at `version`, by name. Gone when it is no longer kept."""
        ...

    async def checkpoints(self, scope: Scope, session: bytes, limit: int) -> list[Checkpoint]:
        """The versions that have names, newest first; those of what the session was forked from included."""
        ...

    async def checkpoint_at(self, scope: Scope, session: bytes, to: str | int) -> Checkpoint | None:
        """The checkpoint of this name; or, of a version, the newest one up to it that tells of a conversation. None: there
        is none."""
        ...

    async def head(self, scope: Scope, session: bytes) -> Session:
        """The head of a session, living or not. NotFound when unknown or not visible."""
        ...

    async def remains(self, scope: Scope, session: bytes, part: Part, *, after: Key, limit: int) -> list[Remnant]:
        """A page of a part of a desk, living or expiring, in the order of its keys, from after a key on."""
        ...

    async def entries(self, scope: Scope, session: bytes, name: str, *, as_of: int | None, limit: int) -> list[Entry]:
        """What a window shows as of a time (ms; None: now), the newest `limit` entries, oldest first. Never anything later
        than `as_of`, nor than the store's now."""
        ...

    async def document(self, scope: Scope, session: bytes, name: str) -> Document:
        """A `doc` slot's document. NotFound when there is none."""
        ...
