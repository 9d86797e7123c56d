"""Writes are values; a batch is atomic (D2).

A backend has one door in: `commit(batch)` takes all writes or none. A refused precondition raises a Conflict with the
actual values; a known key raises Known. Success is one receipt per write, in order. Nothing is answered before the
commit is durable.
"""

from __future__ import annotations

import msgspec

from stateroom.principal import Scope


class Record(msgspec.Struct, frozen=True):
    """A row as the core sees it. Never changed, only replaced."""


class Write(Record, frozen=True):
    """One intended change, with what the caller believed (expected tail, slot versions, fence)."""

    def subject_of_change(self) -> bytes:
        """The id of the object it changes; its home is where the batch's leaf is kept."""
        raise NotImplementedError

    @property
    def weight(self) -> int:
        """About how many bytes of content it carries."""
        return 0


class Receipt(Record, frozen=True):
    """What one write did."""


class Batch(Record, frozen=True):
    """Writes that land together. `id` is kept with the leaf: by it a lost acknowledgement learns what landed."""

    id: bytes
    scope: Scope
    at: int  # wall ms, data only
    writes: tuple[Write, ...]

    @property
    def weight(self) -> int:
        """About how many bytes of content it carries: groups of batches are bounded by it."""
        return sum(write.weight for write in self.writes)


class Draft(Record, frozen=True):
    """An item on its way into the record: what inboxes, appends and outputs have in common.

    `body` is the JSON object exactly as it came (D15). `kind` and `role` are its parsed head; `origin` says where it
    came from (user, agent, tool, operator, import) and `trust` how far it may be believed (0..100), by rule, never by claim.
    """

    id: bytes
    kind: str
    role: str
    origin: str
    trust: int
    body: bytes


class ClaimKey(Write, frozen=True):
    """Use an idempotency key for an operation that is not a turn. Refused with Known when it was used before."""

    operation: str
    key: str
    fingerprint: bytes
    ref: bytes  # the object made
    home: int

    def subject_of_change(self) -> bytes:
        return self.ref


class KeyClaimed(Receipt, frozen=True):
    """The key was free and is taken now."""


class KeyRow(Record, frozen=True):
    """A key that was used: what for, and what came of it."""

    operation: str
    key: str
    fingerprint: bytes
    ref: bytes
    at: int
