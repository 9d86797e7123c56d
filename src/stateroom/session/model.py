"""The session room: the desk. Typed, versioned slots now; the workspace joins it later.

A session has one integer version; a slot carries the version at which it last changed, so the delta since v is
`version > v`. Older versions lie apart from current ones: reading the desk never walks its past (D6).
"""

from __future__ import annotations

from typing import Literal

from stateroom.batch import Record, Write
from stateroom.ids import NIL

SlotKind = Literal["value", "counter", "set", "list", "map", "window", "doc"]
Status = Literal["active", "ended", "expiring", "expired", "archived", "lost"]
Durability = Literal["durable", "ephemeral"]
CheckpointKind = Literal["named", "turn", "undone", "fork"]


class Session(Record, frozen=True):
    """A desk. Bound to (conversation, agent) when a turn opened it; free when the application chose the id.

    A fork shows its `parent` as that was at version `base`, but for what it changed itself. `kept_from` is the oldest
    version that is still whole; older ones are kept where a checkpoint names them. Times that decide are store time, ms:
    `expires_at` (0: never) moves with every interaction, up to `dies_at` (0: no maximum). `lost`: it is ephemeral, and what
    lay on it did not survive.
    """

    id: bytes
    owner: str
    subject: str
    conversation: bytes
    agent: str
    lineage: bytes  # the desk's own line of descent: forks share it, sealing keys cover it
    version: int
    status: Status
    metadata: bytes
    created_at: int
    touched_at: int
    parent: bytes = NIL
    base: int = 0
    kept_from: int = 0
    durability: Durability = "durable"
    ttl_ms: int = 0
    expires_at: int = 0
    dies_at: int = 0
    archive: str = ""  # where an archived one lies; of one that is expiring, see `lifetime.places`
    access: str = ""  # what agents may, as JSON; "": everything
    holder: str = ""  # the agent in whose hands it is, until `held_until`
    hold: int = 0  # the fence of these hands: it only grows
    held_until: int = 0


class Slot(Record, frozen=True):
    """One named value. `body` is JSON; None means it was removed at this version.

    The body of a `window` tells what is kept of it and how much lies there, that of a `doc` what it says; entries and
    documents lie apart. `epoch` is the version at which the slot began: what was made for another epoch does not fit.
    """

    name: str
    version: int
    kind: SlotKind
    schema: str
    origin: str
    trust: int
    body: bytes | None
    by: str  # principal
    run: bytes
    at: int
    agent: str = ""
    epoch: int = 0


class NewEntry(Record, frozen=True):
    """Something for a window. `at` is when it was observed, ms since 1970; 0: now, by the store's time."""

    body: bytes
    at: int = 0
    media: str = ""  # what the bytes are, e.g. application/json


class Entry(Record, frozen=True):
    """An entry of a window. `version` is the session's when it came; `n` its number in that patch."""

    at: int
    version: int
    n: int
    media: str
    body: bytes


class SlotPatch(Record, frozen=True):
    """One slot's change. `expected` is the slot's version the caller saw (0: it must not exist); None: whatever it is.

    Without an `op` the slot is set to `body`, or removed when that is None. With one, `body` is its operand: see
    `kinds.OPERATIONS`. `trust` is what the writer would give; the store takes no more than `rules.trust` allows.
    `schema` "" keeps the slot's schema; else the name of one, or a JSON Schema.
    """

    name: str
    body: bytes | None
    expected: int | None = None
    kind: SlotKind = "value"
    schema: str = ""
    origin: str = "user"
    trust: int = 60
    op: str = ""
    sources: tuple[str, ...] = ()  # slots that the new content was derived from
    entries: tuple[NewEntry, ...] = ()  # of a window's append
    epoch: int | None = None  # of the document that an update was made on


class Checkpoint(Record, frozen=True):
    """A version with a name. The desk's versions are compacted, one that has a checkpoint never. `branch` and `seq` tell
    how far the conversation had come."""

    name: str
    version: int
    kind: CheckpointKind
    by: str
    agent: str
    run: bytes
    branch: bytes
    seq: int
    at: int


class Change(Record, frozen=True):
    """How a slot differs between two versions; None: it was not there."""

    name: str
    before: Slot | None
    after: Slot | None


class Document(Record, frozen=True):
    """A `doc` slot as bytes that Loro reads: a snapshot."""

    name: str
    version: int
    epoch: int
    snapshot: bytes


class Told(Record, frozen=True):
    """What changed after one version and up to another: each slot as each version left it, by version and name. Of a window
    only its present row is told. `head` is how far the desk is."""

    after: int
    until: int
    head: int
    slots: tuple[Slot, ...]


# ── writes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class OpenSession(Write, frozen=True):
    """A desk that belongs to no turn yet. AlreadyExists when the id is taken.

    `ttl_ms` after the last interaction it expires, `max_ms` after its opening at the latest; 0: it does not.
    """

    id: bytes
    owner: str
    subject: str
    conversation: bytes = NIL
    agent: str = ""
    metadata: bytes = b"{}"
    durability: Durability = "durable"
    ttl_ms: int = 0
    max_ms: int = 0

    def subject_of_change(self) -> bytes:
        return self.id


class ForkSession(Write, frozen=True):
    """A desk that begins as another one was at `version` (None: as it is). A few rows, whatever lies on it (P25). Its
    versions go on from there. Id and parent share a home. Lifetimes are the parent's unless given."""

    id: bytes
    parent: bytes
    owner: str
    version: int | None = None
    conversation: bytes = NIL
    agent: str = ""
    metadata: bytes = b"{}"
    ttl_ms: int | None = None
    max_ms: int | None = None

    def subject_of_change(self) -> bytes:
        return self.id


class PatchSlots(Write, frozen=True):
    """Change slots; all or none. Preconditions name slots, so patches to other slots never collide.

    `run` and `fence` are given by a worker: the patch is refused when the run's lease has moved on. `expected_version`
    guards the whole desk (HTTP If-Match on the session's ETag), `seen` the versions of slots that were only read.
    """

    session: bytes
    patches: tuple[SlotPatch, ...]
    by: str
    expected_version: int | None = None
    run: bytes = NIL
    fence: int = 0
    agent: str = ""
    seen: tuple[tuple[str, int], ...] = ()
    hold: int = 0  # given by whoever holds the desk: refused when it is in other hands

    @property
    def weight(self) -> int:
        return sum(len(patch.body or b"") + sum(len(entry.body) for entry in patch.entries) for patch in self.patches)

    def subject_of_change(self) -> bytes:
        return self.session


class MakeCheckpoint(Write, frozen=True):
    """Name a version (None: the present one), so that it is kept. The same name twice is AlreadyExists, but for the same
    version. `run` without a name is a turn's own checkpoint."""

    session: bytes
    name: str
    by: str
    version: int | None = None
    kind: CheckpointKind = "named"
    agent: str = ""
    run: bytes = NIL
    branch: bytes = NIL
    seq: int = 0

    def subject_of_change(self) -> bytes:
        return self.session


class MarkTurn(Write, frozen=True):
    """The checkpoint that the end of a turn makes, in the batch that ends it: one row. A desk that is gone gets none."""

    session: bytes
    run: bytes
    by: str
    agent: str

    def subject_of_change(self) -> bytes:
        return self.session


class DropCheckpoint(Write, frozen=True):
    """The name goes; the version is kept as long as policy says. NotFound when there is none. The name by
    which a fork holds the version that it stands on cannot go; any other may, the fork keeps its own."""

    session: bytes
    name: str

    def subject_of_change(self) -> bytes:
        return self.session


class RollBack(Write, frozen=True):
    """A new version equal to an old one: that of `checkpoint`, or `version`. What is undone becomes a checkpoint."""

    session: bytes
    by: str
    version: int | None = None
    checkpoint: str = ""
    expected_version: int | None = None
    agent: str = ""
    run: bytes = NIL
    fence: int = 0
    branch: bytes = NIL  # how far the conversation had come, for the checkpoint of what is undone
    seq: int = 0
    hold: int = 0

    def subject_of_change(self) -> bytes:
        return self.session


class CompactPast(Write, frozen=True):
    """Versions before `before` go, and the automatic checkpoints among them; those with a name, and those that forks stand
    on, never. `turns`: of the turns' checkpoints so many, the newest, are kept (0: all). `limit`: about so many old versions
    of slots go (0: all), the oldest; what is left is whole until it goes. `due_at`: the line of the due table that asked for
    it goes when there is no more to do; then a desk that is gone is no fault."""

    session: bytes
    before: int
    turns: int = 0
    limit: int = 0
    due_at: int = 0

    def subject_of_change(self) -> bytes:
        return self.session


class TouchSession(Write, frozen=True):
    """An interaction that changes no slot: the desk lives on."""

    session: bytes

    def subject_of_change(self) -> bytes:
        return self.session


class SetAccess(Write, frozen=True):
    """What an agent (or `*`: any that is not named) may read and write: slots by name, or by how their names begin
    (`files.*`). Both None: nothing is said of it any more. A version in which no slot changes."""

    session: bytes
    agent: str
    read: tuple[str, ...] | None = None
    write: tuple[str, ...] | None = None

    def subject_of_change(self) -> bytes:
        return self.session


class HoldDesk(Write, frozen=True):
    """An agent takes a desk into its hands for `ms`, when nobody else has it. With `hold`, the fence it got: it keeps it,
    hands it to another `holder`, or lets it go (`ms` 0)."""

    session: bytes
    holder: str
    ms: int
    hold: int = 0

    def subject_of_change(self) -> bytes:
        return self.session


class EndSession(Write, frozen=True):
    """No more patches; reads answer `gone`."""

    session: bytes

    def subject_of_change(self) -> bytes:
        return self.session


class Expire(Write, frozen=True):
    """The desk's time seems to have come: look. One that has expired is `expiring` from here on, until it is purged, and due
    again after `retry_ms`, should that not happen. One that was used meanwhile is due later.

    `archive` is where it will be put away, recorded before anything lies there; `instead` is what was recorded until now.
    Conflict when that is something else: another worker is at it."""

    session: bytes
    retry_ms: int = 60_000
    archive: str = ""
    instead: str = ""

    def subject_of_change(self) -> bytes:
        return self.session


class PurgeSession(Write, frozen=True):
    """What lay on an expiring desk goes; its head stays and says `expired`, or `archived` when `archive` says where."""

    session: bytes
    archive: str = ""

    def subject_of_change(self) -> bytes:
        return self.session


# ── receipts ────────────────────────────────────────────────────────────────────────────────────────────────────────
