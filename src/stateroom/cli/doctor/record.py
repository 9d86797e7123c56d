"""Whether what a store holds hangs together: the same queries for both SQL stores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from stateroom.backends.sql.sound import INVARIANTS
from stateroom.cli.doctor.finding import Finding

SHOWN_MAX: Final = 3
ADVICE: Final = (
    "No write of Stateroom does this: was the store changed by hand, or restored in part? Keep a copy as it is, and report it."
)
Ask = Callable[[str], Sequence[Sequence[Any]]]


def examine(ask: Ask, *, of: str = "") -> Iterator[Finding]:
    """Everything that is not as it must be, in one snapshot; one good word when nothing is. `of`: whose record."""
    found = [finding for code in INVARIANTS for finding in look(ask, code, of=of)]
    yield from found or [Finding("ok", "record", f"the record{of} hangs together: {len(INVARIANTS)} checks found nothing")]


def look(ask: Ask, code: str, *, of: str = "") -> Iterator[Finding]:
    """What one of them finds."""
    invariant = INVARIANTS[code]
    if rows := ask(invariant.first(SHOWN_MAX + 1)):
        names = ", ".join(bytes(row[0]).hex() for row in rows[:SHOWN_MAX]) + (", …" if len(rows) > SHOWN_MAX else "")
        yield Finding("bad", code, f"it is not so that {invariant.says} ({invariant.promise}){of}: {names}", ADVICE)
