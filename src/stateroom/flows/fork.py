"""Fork a conversation: a new conversation that shares the past of another one up to a point, and goes its own way."""

from __future__ import annotations

from stateroom import ids
from stateroom.backends.base import Backend
from stateroom.batch import Batch, ClaimKey, Write
from stateroom.conversation.model import Conversation, Fork
from stateroom.ids import NIL
from stateroom.principal import Scope


async def fork(
    backend: Backend,
    scope: Scope,
    conversation: bytes,
    *,
    after: bytes = NIL,
    metadata: bytes = b"{}",
    claim: ClaimKey | None = None,
) -> Conversation:
    """A new conversation that shows `conversation` up to and including the item `after` (NIL: all of it). A few rows,
    whatever the length (P25). Its desk starts empty: rollback and fork of state come with the session room.
    `claim` is an idempotency key whose `ref` is the id to give."""
    branch = await backend.branch(scope, conversation)
    up_to = branch.tail if after == NIL else (await backend.item(scope, conversation, after)).seq
    now = backend.clock.wall_ms()
    id = claim.ref if claim is not None else ids.new(ids.home(conversation), now)
    write = Fork(id=id, parent=conversation, up_to=up_to, conversation=id, owner=scope.principal, metadata=metadata)
    writes: tuple[Write, ...] = (write,) if claim is None else (claim, write)
    await backend.commit(Batch(id=ids.new(ids.home(id), now), scope=scope, at=now, writes=writes))
    return await backend.conversation(scope, id)
