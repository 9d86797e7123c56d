"""PostgreSQL's statements without the tenant that they ask for: what is left is row-level security."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from stateroom.backends.postgres import check, pipe

_FILTER = re.compile(r"\b(?:\w+\.)?tenant = (\$\d+)")
_REAL = pipe.dollars
_JOIN = re.compile(r"\b\w+\.tenant = \w+\.tenant\b")


def blinded(sql: str) -> str:
    """The same statement for whichever tenant. Its parameters stay: what is written is written for the right one."""
    return _JOIN.sub("true", _FILTER.sub(r"\1 is not null", sql))


@contextmanager
def blind() -> Iterator[list[str]]:
    """From now on, every connection of this process; which statements lost their filter."""
    changed = list[str]()

    def dollars(sql: str) -> str:
        if (mutated := blinded(_REAL(sql))) != _REAL(sql):
            changed.append(mutated)
        return mutated

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipe, "dollars", dollars)
        yield changed


@contextmanager
def unwalled() -> Iterator[None]:
    """Whoever must not serve may."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(check, "refuse", lambda found: None)
        yield
