"""The conversation room: the durable, ordered record of what was said and done.

A conversation is a set of branches. A branch is its own segment of items plus (parent branch, up to), so a fork shares
its past instead of copying it (D7). The main branch has the conversation's own id.
"""

from __future__ import annotations

from typing import Literal

from stateroom.batch import Draft, Receipt, Record, Write
from stateroom.ids import NIL

Kind = Literal["managed", "chain"]  # chain: the unseen record behind a bare chain of responses
Mark = Literal["", "failed", "not_run"]  # input the window leaves out: of a failed turn, of a turn that never ran


class Conversation(Record, frozen=True):
    """The head of a record. `metadata` is a JSON object of strings."""

    id: bytes
    owner: str
    subject: str  # about whom; the unit of erasure
    kind: Kind
    metadata: bytes
    created_at: int
    agent: str = ""  # who answers by default


class Branch(Record, frozen=True):
    """A segment and where it leaves its parent.

    `tail` is the highest seq, dense along the path from the root. `deletions` counts tombstones written on this
    branch; `parent_count` is the parent's count when this branch left it, so a parent's later tombstones do not reach
    it. `revision` grows whenever something already read may look different (a tombstone, a mark). A branch that
    was left (`moved_to`) never changes again: it is what a rollback has undone.
    """

    id: bytes
    conversation: bytes
    owner: str
    parent: bytes = NIL
    up_to: int = 0
    parent_count: int = 0
    tail: int = 0
    deletions: int = 0
    revision: int = 0
    active_run: bytes = NIL
    queued: int = 0
    last_run: bytes = NIL  # newest run that did not fail and after which nothing else was appended
    moved_to: bytes = NIL  # of a main branch: where the conversation goes on since it was taken back


class Item(Record, frozen=True):
    """One element of the record, in the order the store assigned."""

    seq: int
    id: bytes
    branch: bytes
    run: bytes
    kind: str
    role: str
    origin: str
    trust: int
    mark: Mark
    at: int
    body: bytes  # the JSON object as it came


class ItemQuery(Record, frozen=True):
    """A page of a branch. `after` and `before` are exclusive seqs; `newest_first` reads backwards from the end."""

    branch: bytes
    limit: int
    after: int = 0
    before: int = 0  # 0: no bound
    newest_first: bool = False
    run: bytes = NIL  # only items of this run
    current: bool = False  # a conversation is meant: the branch that it goes on in


# ── writes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class CreateConversation(Write, frozen=True):
    """A new record and its main branch. AlreadyExists when the id is taken."""

    id: bytes
    owner: str
    subject: str
    kind: Kind = "managed"
    metadata: bytes = b"{}"
    agent: str = ""

    def subject_of_change(self) -> bytes:
        return self.id


class SetMetadata(Write, frozen=True):
    """Replace a conversation's metadata."""

    conversation: bytes
    metadata: bytes

    def subject_of_change(self) -> bytes:
        return self.conversation


class Append(Write, frozen=True):
    """Items at the end of a branch; all or none. Conflict when `expected_tail` is given and is not the tail."""

    branch: bytes
    items: tuple[Draft, ...]
    expected_tail: int | None = None

    @property
    def weight(self) -> int:
        return sum(len(draft.body) for draft in self.items)

    def subject_of_change(self) -> bytes:
        return self.branch


class Fork(Write, frozen=True):
    """A branch `id` that shows `parent` up to and including `up_to`. A few rows, whatever the length."""

    id: bytes
    parent: bytes
    up_to: int
    conversation: bytes = NIL  # NIL: stays in the parent's conversation; else the new conversation's id
    owner: str = ""
    metadata: bytes = b"{}"

    def subject_of_change(self) -> bytes:
        return self.id


class MoveBranch(Write, frozen=True):
    """The conversation goes on in a new branch `id`, which shows `parent` up to and including `up_to`. Conflict when it has
    moved or grown meanwhile (`expected` is the branch it goes on in now), Busy while a turn is active or waits there."""

    id: bytes
    conversation: bytes
    parent: bytes
    up_to: int
    expected: bytes
    expected_tail: int

    def subject_of_change(self) -> bytes:
        return self.conversation


class DeleteItem(Write, frozen=True):
    """A tombstone. Forks that exist keep the item; its payload goes when no live branch shows it."""

    branch: bytes
    item: bytes

    def subject_of_change(self) -> bytes:
        return self.item


class DeleteConversation(Write, frozen=True):
    """The conversation and all its branches stop existing for every reader; payloads are purged with it, except what
    a fork that became a conversation of its own still shows."""

    conversation: bytes

    def subject_of_change(self) -> bytes:
        return self.conversation


# ── receipts ────────────────────────────────────────────────────────────────────────────────────────────────────────


class Created(Receipt, frozen=True):
    id: bytes


class Appended(Receipt, frozen=True):
    """The items got seqs first..tail."""

    branch: bytes
    first: int
    tail: int


class Forked(Receipt, frozen=True):
    """`parent` is the nearest ancestor that owns an item or tombstone the fork shows."""

    id: bytes
    parent: bytes
    up_to: int


class Changed(Receipt, frozen=True):
    """Done; nothing to tell."""


class Segment(Record, frozen=True):
    """One stretch of a branch's path: items of `branch` with lo < seq <= hi, seen with its first `count` deletions."""

    branch: bytes
    lo: int
    hi: int
    count: int
