"""What a migration is, on both SQL stores: forward, in steps that commit by themselves and are recorded one by one.

Old and new workers share a store while it runs and afterwards: a step adds what an older worker need not know (a column
with a default, a table, an index), fills it in batches, and only a later version, when no older worker is left, takes
something away. `needs` says who is left behind. A migration that was released is never edited: a test holds its digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias

import msgspec

from stateroom.errors import InvalidInput

Say: TypeAlias = Callable[[str], None]


class Step(msgspec.Struct, frozen=True):
    """One statement or script. `batched`: it is one statement that changes a bounded number of rows and none once it is
    done; it runs again and again, each time in a transaction of its own. On PostgreSQL, `outside`: it may not run inside a
    transaction (an index made concurrently); should it be cut short, `again` clears up what it left."""

    sql: str
    batched: bool = False
    outside: bool = False
    again: str = ""


class Migration(msgspec.Struct, frozen=True):
    """`needs` is the oldest worker (schema version it knows) that may still use the store afterwards."""

    version: int
    name: str
    needs: int
    steps: tuple[Step, ...]

    def title(self, number: int) -> str:
        """A step as people are told about it."""
        return f"schema {self.version} ({self.name}), step {number + 1} of {len(self.steps)}"

    @property
    def digest(self) -> str:
        """Changes with anything that it does."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()


def left(migrations: Sequence[Migration], done: Collection[tuple[int, int]]) -> list[tuple[Migration, int]]:
    """The steps that have not run, in order. `done` has (version, step)."""
    return [
        (migration, number)
        for migration in migrations
        for number in range(len(migration.steps))
        if (migration.version, number) not in done
    ]


def refuse_newer(needs: int | None, knows: int) -> None:
    """InvalidInput when a store needs a worker that knows more than this one."""
    if needs is not None and needs > knows:
        raise InvalidInput(
            f"This store needs a worker that knows schema {needs}; this one knows {knows}. Upgrade stateroom.",
            code="store_too_new",
        )
