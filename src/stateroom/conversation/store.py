"""What a backend keeps of conversations."""

from __future__ import annotations

from typing import Protocol

from stateroom.conversation.model import Branch, Conversation, Item, ItemQuery
from stateroom.principal import Scope


class ConversationStore(Protocol):
    """Append-only items in branches. Writes go through `Backend.commit`.

    C1. An append is all or nothing, and durable when its receipt is there (P1).
    C2. Seqs are dense along a branch's path, start at 1 and are never reused, however many write (P2).
    C3. A stale `expected_tail` is refused with the actual tail, and nothing is written.
    C4. A fork writes the same few rows at any length (P25) and shows its parent as it was then.
    C5. A tombstone hides an item from its branch and from later forks; earlier forks keep it.
    C6. Bodies come back byte for byte, kinds this version does not know included (P30).
    C7. Another tenant's or owner's id answers like one that does not exist (P28).
    """

    async def conversation(self, scope: Scope, conversation: bytes) -> Conversation:
        """The head. NotFound when unknown, deleted or not visible."""
        ...

    async def conversations(self, scope: Scope, *, after: bytes, limit: int, newest_first: bool = True) -> list[Conversation]:
        """Managed conversations of the scope by creation, exclusive of `after` (NIL: from the start)."""
        ...

    async def branch(self, scope: Scope, branch: bytes) -> Branch:
        """A branch. NotFound as for conversations."""
        ...

    async def items(self, scope: Scope, query: ItemQuery) -> list[Item]:
        """A page of what the branch shows, ancestors included. Cost is O(page), not O(conversation)."""
        ...

    async def item(self, scope: Scope, branch: bytes, item: bytes) -> Item:
        """One item that the branch shows. NotFound otherwise."""
        ...
