"""What every backend is: one door in, plain reads out, wake-ups as hints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from stateroom.batch import Batch, Receipt
from stateroom.clock import Clock
from stateroom.connection.store import Wakeups
from stateroom.conversation.store import ConversationStore
from stateroom.copies import CopyClass
from stateroom.run.store import RunStore
from stateroom.session.store import SessionStore


class Backend(ConversationStore, SessionStore, RunStore, Protocol):
    """A store for the rooms (memory has its own).

    B1. `commit` lands all writes of a batch or none; refusals are typed and carry the actual values.
    B2. Nothing is answered, success or refusal, before the transaction's fate is durable (P1).
    B3. Each landed batch has its leaf in the same transaction (P29).
    B4. A full disk or an I/O error is Unavailable or StorageFull; nothing acknowledged is lost (P19).
    B5. Every place that holds something durable is claimed by a copy class.
    """

    @property
    def clock(self) -> Clock: ...

    @property
    def owner(self) -> str:
        """Names this handle as the holder of leases."""
        ...

    @property
    def epoch(self) -> int:
        """Incarnation of the store; cursors of another one are refused."""
        ...

    @property
    def secret(self) -> bytes:
        """32 bytes that belong to this store: effect keys are derived from it."""
        ...

    @property
    def wakeups(self) -> Wakeups: ...

    @property
    def copies(self) -> Mapping[str, CopyClass]:
        """Table, directory or prefix -> its copy class."""
        ...

    async def commit(self, batch: Batch) -> tuple[Receipt, ...]:
        """Take the batch. One receipt per write, in order."""
        ...

    async def landed(self, batch: Batch) -> bool:
        """Whether this batch's leaf is there: how a lost acknowledgement is resolved."""
        ...

    def now(self) -> int:
        """Store time in ms: leases and due times are measured with it."""
        ...

    async def alive(self, owner: str) -> bool | None:
        """Whether the process behind a lease owner is alive; None when this backend cannot know."""
        ...

    async def on_duty(self, duty: str, ms: int) -> bool:
        """Whether this handle does a maintenance duty for the next `ms` of store time: of all handles on a store, one at
        a time. Only to save work: whoever does it relies on its writes being refused when another was quicker."""
        ...

    async def noted(self, name: str) -> str:
        """What was said of the whole store, for all its handles; "": nothing."""
        ...

    async def note(self, name: str, value: str) -> None: ...

    async def check(self) -> None:
        """Raise Unavailable unless reads and writes would work now."""
        ...

    async def close(self) -> None: ...
