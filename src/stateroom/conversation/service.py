"""What you can ask of conversations: create, append, read, delete. (Forks move more than one room: see flows.fork.)"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec.structs import replace

from stateroom import ids, limits
from stateroom.batch import Batch, ClaimKey, Draft, Receipt, Write
from stateroom.clock import Clock
from stateroom.conversation.model import (
    Append,
    Appended,
    Branch,
    Conversation,
    CreateConversation,
    DeleteConversation,
    DeleteItem,
    Item,
    ItemQuery,
    SetMetadata,
)
from stateroom.conversation.rules import draft
from stateroom.conversation.store import ConversationStore
from stateroom.errors import InvalidInput, LimitExceeded
from stateroom.ids import NIL
from stateroom.principal import Scope
from stateroom.wire import json


class Committing(ConversationStore, Protocol):
    """The part of a backend this service needs."""

    @property
    def clock(self) -> Clock: ...

    async def commit(self, batch: Batch) -> tuple[Receipt, ...]: ...


class Conversations:
    """The conversation room's face for the layers above."""

    def __init__(self, store: Committing) -> None:
        self._store = store

    async def create(
        self,
        scope: Scope,
        *,
        metadata: bytes = b"{}",
        items: Sequence[bytes] = (),
        subject: str = "",
        claim: ClaimKey | None = None,
        id: bytes = NIL,
    ) -> Conversation:
        """A new conversation, optionally with first items. `claim` (an idempotency key whose ref is `id`) may raise Known."""
        id = id if id != NIL else self.new_id()
        now = self._store.clock.wall_ms()
        subject = subject or scope.principal
        create = CreateConversation(id=id, owner=scope.principal, subject=subject, metadata=metadata)
        writes: list[Write] = [create] if claim is None else [claim, create]
        if items:
            writes.append(Append(branch=id, items=self.drafts(ids.home(id), items)))
        await self._commit(scope, ids.home(id), *writes)
        return Conversation(id=id, owner=scope.principal, subject=subject, kind="managed", metadata=metadata, created_at=now)

    async def get(self, scope: Scope, conversation: bytes) -> Conversation:
        return await self._store.conversation(scope, conversation)

    async def recent(
        self, scope: Scope, *, after: bytes = NIL, limit: int = limits.PAGE_ITEMS_DEFAULT, newest_first: bool = True
    ) -> list[Conversation]:
        """Managed conversations by creation, newest first unless said otherwise."""
        return await self._store.conversations(scope, after=after, limit=limits.page(limit), newest_first=newest_first)

    async def branch(self, scope: Scope, branch: bytes) -> Branch:
        return await self._store.branch(scope, branch)

    async def append(
        self,
        scope: Scope,
        branch: bytes,
        items: Sequence[bytes],
        *,
        expected_tail: int | None = None,
        imported: bool = False,
        claim: ClaimKey | None = None,
    ) -> tuple[Appended, tuple[Draft, ...]]:
        """Items (JSON objects) at the end of a branch; all or none. Returns where they lie, and them with their ids.
        `claim` gets the first item as its ref, and may raise Known."""
        if not items:
            raise InvalidInput("There is nothing to append.", code="items_missing", param="items")
        drafts = self.drafts(ids.home(branch), items, imported=imported)
        write = Append(branch=branch, items=drafts, expected_tail=expected_tail)
        first = () if claim is None else (replace(claim, ref=drafts[0].id),)
        receipts = await self._commit(scope, ids.home(branch), *first, write)
        appended = receipts[-1]
        assert isinstance(appended, Appended)
        return appended, drafts

    async def items(self, scope: Scope, query: ItemQuery) -> list[Item]:
        """A page of a conversation as it goes on now, or of a branch."""
        limits.page(query.limit)
        return await self._store.items(scope, replace(query, current=True))

    async def page(
        self,
        scope: Scope,
        branch: bytes,
        *,
        after: bytes = NIL,
        limit: int = limits.PAGE_ITEMS_DEFAULT,
        newest_first: bool = True,
    ) -> tuple[list[Item], bool]:
        """A page in either order, starting after the item `after`, and whether there is more. NotFound for an `after`
        that the branch does not show."""
        bound = (await self._store.item(scope, branch, after)).seq if after != NIL else 0
        query = ItemQuery(
            branch=branch,
            after=0 if newest_first else bound,
            before=bound if newest_first else 0,
            limit=limits.page(limit) + 1,
            newest_first=newest_first,
            current=True,
        )
        found = await self._store.items(scope, query)
        return found[:limit], len(found) > limit

    async def item(self, scope: Scope, branch: bytes, item: bytes) -> Item:
        return await self._store.item(scope, branch, item)

    async def set_metadata(
        self, scope: Scope, conversation: bytes, metadata: bytes, *, claim: ClaimKey | None = None
    ) -> Conversation:
        write = SetMetadata(conversation=conversation, metadata=metadata)
        await self._commit(scope, ids.home(conversation), *([write] if claim is None else [claim, write]))
        return await self._store.conversation(scope, conversation)

    async def delete_item(self, scope: Scope, branch: bytes, item: bytes) -> None:
        await self._commit(scope, ids.home(branch), DeleteItem(branch=branch, item=item))

    async def delete(self, scope: Scope, conversation: bytes) -> None:
        await self._commit(scope, ids.home(conversation), DeleteConversation(conversation=conversation))

    def new_id(self) -> bytes:
        return ids.new(ids.new_home(), self._store.clock.wall_ms())

    def drafts(self, home: int, items: Sequence[bytes], *, imported: bool = False) -> tuple[Draft, ...]:
        """Items with ids, origin and trust. InvalidInput for what is no item."""
        if len(items) > limits.APPEND_ITEMS_MAX:
            raise LimitExceeded(f"One append takes {limits.APPEND_ITEMS_MAX} items.", code="too_many_items", param="items")
        now = self._store.clock.wall_ms()
        return tuple(draft(ids.new(home, now), parsed(body), body, imported=imported) for body in items)

    async def _commit(self, scope: Scope, home: int, *writes: Write) -> tuple[Receipt, ...]:
        now = self._store.clock.wall_ms()
        return await self._store.commit(Batch(id=ids.new(home, now), scope=scope, at=now, writes=writes))


def parsed(body: bytes) -> dict[str, object]:
    """An item's JSON as an object."""
    item = json.decode_trusted(body)
    if not isinstance(item, dict):
        raise InvalidInput("An item is a JSON object.", code="not_an_object", param="items")
    return item
