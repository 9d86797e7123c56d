"""Ids are never given twice: not to threads, and not to a process that another one turned into two."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

from stateroom import ids


def some(count: int) -> list[bytes]:
    return [ids.new(1, 1) for _ in range(count)]


def test_threads_get_ids_of_their_own() -> None:
    with ThreadPoolExecutor(8) as pool:
        found = [id_ for made in pool.map(some, [2_000] * 16) for id_ in made]
    assert len(set(found)) == len(found) == 32_000


def test_a_forked_process_draws_anew() -> None:
    """It has its parent's memory; what the parent had drawn in advance is the parent's."""
    some(1)
    readable, writable = os.pipe()
    if (child := os.fork()) == 0:
        os.write(writable, b"".join(some(100)) + ids.salt())
        os._exit(0)
    os.close(writable)
    with os.fdopen(readable, "rb") as told:
        theirs = told.read()
    assert os.waitpid(child, 0)[1] == 0
    own = set(some(600))
    assert len(theirs) == 1_616
    assert not own & {theirs[at : at + 16] for at in range(0, 1_600, 16)}
    assert theirs[-16:] not in {ids.salt() for _ in range(600)}
