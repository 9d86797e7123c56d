"""The session room: the desk. Typed, versioned slots now; the workspace joins it later.

A session has one integer version; a slot carries the version at which it last changed, so the delta since v is
`version > v`. Older versions lie apart from current ones: reading the desk never walks its past (D6).
"""

from __future__ import annotations

from typing import Literal

from stateroom.batch import Receipt, Record, Write
from stateroom.ids import NIL

SlotKind = Literal["value"]  # counter, set, list, map, window and doc come with the session room
Status = Literal["active", "ended"]


class Session(Record, frozen=True):
    """A desk. Bound to (conversation, agent) when a turn opened it; free when the application chose the id."""

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


class Slot(Record, frozen=True):
    """One named value. `body` is JSON; None means it was removed at this version."""

    name: str
    version: int
    kind: SlotKind
    schema: str
    origin: str
    trust: int
    body: bytes | None
    by: str  # principal or agent
    run: bytes
    at: int


class SlotPatch(Record, frozen=True):
    """One slot's change. `expected` is the slot's version the caller saw (0: it must not exist); None: whatever it is."""

    name: str
    body: bytes | None
    expected: int | None = None
    kind: SlotKind = "value"
    schema: str = ""
    origin: str = "user"
    trust: int = 60


class OpenSession(Write, frozen=True):
    """A desk that belongs to no turn yet. AlreadyExists when the id is taken."""

    id: bytes
    owner: str
    subject: str
    conversation: bytes = NIL
    agent: str = ""
    metadata: bytes = b"{}"

    def subject_of_change(self) -> bytes:
        return self.id


class PatchSlots(Write, frozen=True):
    """Change slots; all or none. Preconditions name slots, so patches to other slots never collide.

    `run` and `fence` are given by a worker: the patch is refused when the run's lease has moved on. `expected_version`
    guards the whole desk (HTTP If-Match on the session's ETag).
    """

    session: bytes
    patches: tuple[SlotPatch, ...]
    by: str
    expected_version: int | None = None
    run: bytes = NIL
    fence: int = 0

    def subject_of_change(self) -> bytes:
        return self.session


class EndSession(Write, frozen=True):
    """No more patches; reads answer `gone`."""

    session: bytes

    def subject_of_change(self) -> bytes:
        return self.session


class Opened(Receipt, frozen=True):
    id: bytes
    version: int


class Patched(Receipt, frozen=True):
    """The session's new version, which is also the version of every slot in the patch."""

    session: bytes
    version: int
