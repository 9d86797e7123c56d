"""Fork: a conversation, a desk, or both together, which share the past up to a point and go their own ways (P25)."""

from __future__ import annotations

from stateroom import given, ids
from stateroom.backends.base import Backend
from stateroom.batch import Batch, ClaimKey, Write
from stateroom.conversation.model import Conversation, Fork
from stateroom.errors import InvalidInput
from stateroom.ids import NIL
from stateroom.principal import Scope
from stateroom.session import rules
from stateroom.session.model import ForkSession, Session


class Forks:
    """Each is one batch of a few rows, whatever the length of the conversation and whatever lies on the desk."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def conversation(
        self,
        scope: Scope,
        conversation: bytes,
        *,
        after: bytes = NIL,
        metadata: bytes = b"{}",
        claim: ClaimKey | None = None,
    ) -> Conversation:
        """A new conversation that shows `conversation` up to and including the item `after` (NIL: all of it). Its desk
        starts empty; see `both`. `claim` is an idempotency key whose `ref` is the id to give."""
        return await fork(self._backend, scope, conversation, after=after, metadata=metadata, claim=claim)

    async def session(
        self,
        scope: Scope,
        session: bytes,
        *,
        to: str | int | None = None,
        metadata: bytes = b"{}",
        claim: ClaimKey | None = None,
    ) -> Session:
        """A desk of its own that begins as this one was at a checkpoint (its name) or a version (None: as it is). It is
        bound to no conversation."""
        version, _ = await self._place(scope, session, to)
        made = self._made(session, claim)
        write = ForkSession(id=made, parent=session, owner=scope.principal, version=version, metadata=metadata)
        await self._commit(scope, made, write, claim=claim)
        return await self._backend.session(scope, made)

    async def both(
        self,
        scope: Scope,
        session: bytes,
        *,
        to: str | int | None = None,
        metadata: bytes = b"{}",
        claim: ClaimKey | None = None,
    ) -> tuple[Session, Conversation]:
        """The desk and the conversation that it is bound to, together, as they were at a checkpoint or a version (None: as
        they are; what an active turn was asked is left out). The claim's ref is the id of the desk."""
        head = await self._backend.session(scope, session)
        if head.conversation == NIL:
            raise InvalidInput("This session is bound to no conversation.", code="session_unbound")
        version, place = await self._place(scope, session, to)
        parent, up_to = place if place is not None else await self._now(scope, head.conversation)
        made = self._made(session, claim)
        conversation = ids.new(ids.home(head.conversation), self._backend.clock.wall_ms())
        branch = Fork(
            id=conversation, parent=parent, up_to=up_to, conversation=conversation, owner=scope.principal, metadata=metadata
        )
        desk = ForkSession(
            id=made, parent=session, owner=scope.principal, version=version, conversation=conversation, agent=head.agent,
            metadata=metadata,
        )  # fmt: skip
        await self._commit(scope, made, branch, desk, claim=claim)
        return await self._backend.session(scope, made), await self._backend.conversation(scope, conversation)

    async def _place(self, scope: Scope, session: bytes, to: str | int | None) -> tuple[int | None, tuple[bytes, int] | None]:
        """The version that is meant, and how far the conversation had come, where a checkpoint tells."""
        if to is None:
            return None, None
        given.place(to)
        mark = await self._backend.checkpoint_at(scope, session, to)
        if mark is None and isinstance(to, str):
            raise rules.no_checkpoint(to)
        version = to if isinstance(to, int) else mark.version if mark is not None else None
        return version, None if mark is None or mark.branch == NIL else (mark.branch, mark.seq)

    async def _now(self, scope: Scope, conversation: bytes) -> tuple[bytes, int]:
        at = await self._backend.branch(scope, conversation)
        if at.active_run == NIL:
            return at.id, at.tail
        return at.id, (await self._backend.run(scope, at.active_run)).in_lo

    def _made(self, session: bytes, claim: ClaimKey | None) -> bytes:
        return claim.ref if claim is not None else ids.new(ids.home(session), self._backend.clock.wall_ms())

    async def _commit(self, scope: Scope, made: bytes, *writes: Write, claim: ClaimKey | None) -> None:
        now = self._backend.clock.wall_ms()
        given = writes if claim is None else (claim, *writes)
        await self._backend.commit(Batch(id=ids.new(ids.home(made), now), scope=scope, at=now, writes=given))


async def fork(
    backend: Backend,
    scope: Scope,
    conversation: bytes,
    *,
    after: bytes = NIL,
    metadata: bytes = b"{}",
    claim: ClaimKey | None = None,
) -> Conversation:
    """A conversation alone: see `Forks.conversation`."""
    branch = await backend.branch(scope, conversation)
    up_to = branch.tail if after == NIL else (await backend.item(scope, conversation, after)).seq
    now = backend.clock.wall_ms()
    id = claim.ref if claim is not None else ids.new(ids.home(conversation), now)
    write = Fork(id=id, parent=branch.id, up_to=up_to, conversation=id, owner=scope.principal, metadata=metadata)
    writes: tuple[Write, ...] = (write,) if claim is None else (claim, write)
    await backend.commit(Batch(id=ids.new(ids.home(id), now), scope=scope, at=now, writes=writes))
    return await backend.conversation(scope, id)
