"""What the writes of the session room did."""

from __future__ import annotations

from stateroom.batch import Receipt
from stateroom.session.model import Checkpoint, Slot, Status


class Opened(Receipt, frozen=True):
    id: bytes
    version: int

    @property
    def desk_version(self) -> int:
        return self.version


class Patched(Receipt, frozen=True):
    """The session's new version, which is also the version of every slot in the patch; `slots` are these, as they are now."""

    session: bytes
    version: int
    slots: tuple[Slot, ...] = ()

    @property
    def desk_version(self) -> int:
        return self.version


class Marked(Receipt, frozen=True):
    checkpoint: Checkpoint


class RolledBack(Receipt, frozen=True):
    """`version` is equal to version `to`; `undone` is the checkpoint of what was there before."""

    session: bytes
    version: int
    to: int
    undone: Checkpoint
    slots: tuple[Slot, ...] = ()

    @property
    def desk_version(self) -> int:
        return self.version


class Compacted(Receipt, frozen=True):
    """How many old versions of slots went, and whether there are more to go."""

    session: bytes
    dropped: int
    more: bool = False


class Noted(Receipt, frozen=True):
    """Done; nothing to tell."""


class Aged(Receipt, frozen=True):
    """What became of a desk whose time was looked at; `expires_at` is when it will come."""

    session: bytes
    status: Status
    expires_at: int


class Held(Receipt, frozen=True):
    """In whose hands the desk is, under which fence, and until when (store time)."""

    session: bytes
    holder: str
    hold: int
    until: int
