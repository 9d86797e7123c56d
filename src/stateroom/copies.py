"""Copy classes: every place where something durable lies belongs to exactly one (D11).

Erasure walks these classes; a table, directory or prefix that no class claims fails the build, because what nobody
claims nobody erases. The engines (find, export, erase, verify) come with governance; the claims are made from the first
table on.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class CopyClass(msgspec.Struct, frozen=True):
    """A kind of copy. `key_unit` names what its data key will cover when sealing is on; "" holds no content."""

    name: str
    holds: str
    key_unit: str


CONVERSATION_HEADS = CopyClass("conversation_heads", "ids, owners, metadata of conversations and branches", "conversation")
TENANTS = CopyClass("tenants", "names of tenants", "")
ITEMS = CopyClass("items", "what was said and done", "segment")
TOMBSTONES = CopyClass("tombstones", "which items were deleted, no content", "")
DESKS = CopyClass("desks", "session heads, slots now and before, what lies in them, checkpoints", "desk lineage")
ARCHIVES = CopyClass("archives", "desks that have expired, whole and signed, in cold storage", "desk lineage")
RUNS = CopyClass("runs", "one execution each: options, usage, error", "run")
RUN_LOGS = CopyClass("run_logs", "deltas and references of a run", "run")
STEPS = CopyClass("steps", "arguments' digests, results and answers of a run's steps and actions", "run")
INBOX = CopyClass("inbox", "input accepted and not yet run", "run")
KEYS = CopyClass("turn_keys", "idempotency keys and the objects they made", "")
LEAVES = CopyClass("leaves", "audit leaves: digests, no content", "")
MAINTENANCE = CopyClass("maintenance", "due times, schema versions, clock mark: no content", "")
OWNERSHIP = CopyClass("ownership", "lock files of live processes, empty", "")

EPHEMERAL: Mapping[str, CopyClass] = {  # tables beside the others, or in a file of their own: without fsync
    "ephemeral_session": DESKS,
    "ephemeral_slot": DESKS,
    "ephemeral_slot_past": DESKS,
    "ephemeral_slot_entry": DESKS,
    "ephemeral_slot_doc": DESKS,
    "ephemeral_slot_schema": DESKS,
    "ephemeral_checkpoint": DESKS,
    "ephemeral_desk_beyond": DESKS,
    "ephemeral_leaf": LEAVES,
}

ALL = (
    TENANTS, CONVERSATION_HEADS, ITEMS, TOMBSTONES, DESKS, ARCHIVES, RUNS, RUN_LOGS, STEPS, INBOX, KEYS, LEAVES, MAINTENANCE,
    OWNERSHIP,
)  # fmt: skip
