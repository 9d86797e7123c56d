"""Writes are values; a batch is atomic (D2).

A backend has one door in: `commit(batch)` takes all writes or none. A refused precondition raises a Conflict with the
actual values; a known key raises Known. Success is one receipt per write, in order. Nothing is answered before the
commit is durable.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from stateroom.errors import Known
from stateroom.ids import ID_BYTES
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

    @property
    def desk_version(self) -> int:
        """The version of a session that came of it; 0: none did."""
        return 0


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
        return self.ref[:ID_BYTES]


class KeyClaimed(Receipt, frozen=True):
    """The key was free and is taken now."""


class KeyRow(Record, frozen=True):
    """A key that was used: what for, and what came of it. `ref` is the object's id, with the session's version behind it
    where the batch made one: a retry is told of that version, whatever became of the session since."""

    operation: str
    key: str
    fingerprint: bytes
    ref: bytes
    at: int

    def known(self) -> Known:
        """What whoever comes with this key again is told."""
        id_, version = self.ref[:ID_BYTES], int.from_bytes(self.ref[ID_BYTES:], "big")
        return Known(ref=id_, fingerprint=self.fingerprint, version=version)


def key_ref(ref: bytes, version: int) -> bytes:
    """What a key keeps: see `KeyRow`."""
    return ref + version.to_bytes(8, "big") if version else ref


def made_by(receipts: Iterable[Receipt]) -> int:
    """The last version that a batch made of its session; 0: it made none."""
    return max((receipt.desk_version for receipt in receipts), default=0)
