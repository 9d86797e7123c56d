"""Everything of a desk, as records: what an archive and a bundle hold, and what brings a desk back.

Records come in parts, each in the order of its keys, so that a desk of any size is read and written in pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

from msgspec.structs import replace

from stateroom import limits
from stateroom.batch import Receipt, Record, Write
from stateroom.errors import AlreadyExists, Conflict, Gone
from stateroom.ids import NIL
from stateroom.session import lifetime, window
from stateroom.session.model import Checkpoint, Entry, Session, Slot

Part = Literal["schema", "slot", "past", "document", "entry", "checkpoint", "beyond"]
PARTS: Final[tuple[Part, ...]] = ("schema", "slot", "past", "document", "entry", "checkpoint")  # what an archive is made of
Key: TypeAlias = tuple[str, int, int, int]
FIRST: Final[Key] = ("", -1, -1, -1)
IMPORTING: Final = "importing"  # in place of an archive: the desk is on its way in


class GivenSchema(Record, frozen=True):
    digest: str
    body: str


class PastSlot(Record, frozen=True):
    slot: Slot


class Snapshot(Record, frozen=True):
    """The document of a slot at a version."""

    name: str
    version: int
    body: bytes


class Lying(Record, frozen=True):
    """What lies in a window."""

    name: str
    entry: Entry


class Beyond(Record, frozen=True):
    """What a newer version said of a record, or beside all that are known. `of` is its part (a slot's own follows it into the
    past), `manifest`, or `+` and the name of a part that is not known; name and numbers are the record's key."""

    of: str
    name: str
    k1: int
    k2: int
    k3: int
    body: bytes

    @property
    def place(self) -> str:
        return f"{self.of}/{self.name}"


Remnant: TypeAlias = GivenSchema | Slot | PastSlot | Snapshot | Lying | Checkpoint | Beyond


def set_apart(of: str, key: Key, body: bytes) -> Beyond:
    return Beyond(of, *key, body)


def mark(remnant: Remnant) -> Key:
    """By what is set apart of a record is found again: a slot's is of its version."""
    return (remnant.name, remnant.version, 0, 0) if isinstance(remnant, Slot) else key(remnant)


def from_row(row: tuple[str, int, int, int, bytes]) -> Beyond:
    """As it lies in a table: place, numbers, bytes."""
    of, _, name = row[0].partition("/")
    return Beyond(of, name, *row[1:])


def inherited(beyond: Beyond, shown: int) -> bool:
    """Whether a fork shows what was set apart of its parent's record, when it shows the parent up to `shown`."""
    return beyond.of in ("slot", "past", "document") and beyond.k1 <= shown


def key(remnant: Remnant) -> Key:
    """By what the records of a part are ordered."""
    match remnant:
        case GivenSchema():
            return remnant.digest, 0, 0, 0
        case PastSlot():
            return remnant.slot.name, remnant.slot.version, 0, 0
        case Snapshot():
            return remnant.name, remnant.version, 0, 0
        case Lying():
            return remnant.name, remnant.entry.at, remnant.entry.version, remnant.entry.n
        case Beyond():
            return remnant.place, remnant.k1, remnant.k2, remnant.k3
    return remnant.name, 0, 0, 0


def whole(head: Session) -> Session:
    """A fork's head as that of a desk of its own: from where it left its parent it is all there."""
    if head.parent == NIL:
        return head
    return replace(head, parent=NIL, base=0, lineage=head.id, kept_from=max(head.kept_from, head.base))


def counted(slot: Slot, entries: Sequence[Entry]) -> Slot:
    """A fork's window as one of its own: what its parent's holds is counted as well."""
    kept = replace(
        window.of(slot.body), entries=len(entries), held=sum(len(entry.body) for entry in entries),
        newest=max((entry.at for entry in entries), default=0),
    )  # fmt: skip
    return replace(slot, body=window.body(kept))


# ── coming back ─────────────────────────────────────────────────────────────────────────────────────────────────────


class BeginRestore(Write, frozen=True):
    """A desk is to come back: its place is made, and nobody sees it before `Revive`. AlreadyExists when it lives. What an
    earlier try has brought is cleared away."""

    head: Session

    @property
    def session(self) -> bytes:
        return self.head.id

    def subject_of_change(self) -> bytes:
        return self.head.id


class PutRemnants(Write, frozen=True):
    """Some of it."""

    session: bytes
    remnants: tuple[Remnant, ...]

    @property
    def weight(self) -> int:
        return sum(weight(remnant) for remnant in self.remnants)

    def subject_of_change(self) -> bytes:
        return self.session


class Revive(Write, frozen=True):
    """All of it is there: the desk lives again, and its time to live begins anew. When its conversation has another desk
    now, it is bound to none."""

    head: Session

    def subject_of_change(self) -> bytes:
        return self.head.id


class Restoring(Receipt, frozen=True):
    """`whole`: everything still lies there, because a fork stands on it."""

    session: bytes
    whole: bool


def weight(remnant: Remnant) -> int:
    match remnant:
        case PastSlot():
            return len(remnant.slot.body or b"")
        case Lying():
            return len(remnant.entry.body)
        case Checkpoint():
            return 0
    return len(remnant.body or b"")


def check_place(known: Session | None) -> None:
    """Whether a desk may come back where this one is."""
    if known is not None and not _away(known):
        raise AlreadyExists("A session with this id exists.")


def check_coming(known: Session) -> None:
    if not _away(known):
        raise Conflict(f"The session is {known.status}.", code="session_not_archived", status=known.status)


def check_archived(known: Session) -> None:
    if known.status == "archived":
        return
    if known.status in ("active", "expiring") and known.archive != IMPORTING:
        raise Conflict(f"The session is {known.status}.", code="session_not_archived", status=known.status)
    lifetime.check(known, 0)
    raise Gone("This session has expired, and nothing was kept of it.", code="session_expired")


def _away(known: Session) -> bool:
    return known.status in ("archived", "expired") or (known.status == "expiring" and known.archive == IMPORTING)


def coming(head: Session, at: int) -> Session:
    """The head of a desk that comes from elsewhere, until it is there."""
    return replace(whole(head), status="expiring", archive=IMPORTING, conversation=NIL, created_at=at, touched_at=at)


def revived(head: Session, *, at: int, now: int) -> Session:
    dies_at = head.dies_at if head.dies_at > now else 0
    expires_at = lifetime.next_end(head.ttl_ms, dies_at, now)
    return replace(whole(head), status="active", archive="", touched_at=at, dies_at=dies_at, expires_at=expires_at)


def look_again(now: int) -> int:
    """When somebody looks whether a desk that was on its way in has come."""
    return now + limits.RESTORE_MS
