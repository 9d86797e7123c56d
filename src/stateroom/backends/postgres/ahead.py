"""What a write will read, asked for before it runs: a batch then takes two round trips, however much it touches.

The order is the order in which rows are locked: a branch before its runs, so that two workers never wait for each
other. These are hints: the rows are the same that the write functions ask for in the same words.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any, TypeAlias

from stateroom import ids
from stateroom.backends.postgres.tx import Statement
from stateroom.backends.sql.conversation import BRANCH, HEAD
from stateroom.backends.sql.ephemeral import HEAD as HEAD_BESIDE
from stateroom.backends.sql.ephemeral import moved
from stateroom.backends.sql.run_read import KEY, RUN
from stateroom.backends.sql.session import BOUND, SESSION, SLOT
from stateroom.backends.sql.tx import Row
from stateroom.batch import Batch, Write
from stateroom.conversation.model import Append, CreateConversation
from stateroom.ids import NIL
from stateroom.run.model import AcceptTurn, Cancel, Finish, Heartbeat, Log
from stateroom.run.steps import Pause, RecordSteps
from stateroom.session.change import names
from stateroom.session.model import PatchSlots

LOCK = " for update"
Same: TypeAlias = Callable[[Row], Statement]  # what a row answers when it was found by another statement
Hint: TypeAlias = tuple[str, Row, Same | None]

_BRANCH_OF_RUN = BRANCH.replace(
    "id = ?", "id = (select branch from run where tenant = ?1 and home = ?2 and id = ?3)"
).replace("tenant = ? and home = ?", "tenant = ?1 and home = ?2")  # fmt: skip


def hints(batch: Batch, tenant: int, ephemeral: Collection[bytes] = ()) -> Iterator[Hint]:
    """For every write of a batch, each row once. `ephemeral`: desks that are known to be."""
    seen = set[tuple[str, Row]]()
    for write in batch.writes:
        found = _HINTS.get(type(write), _nothing)(batch, tenant, write)
        if isinstance(write, PatchSlots) and write.session in ephemeral:
            found = _beside(found, (tenant, ids.home(write.session), write.session))
        for hint in found:
            if hint[:2] not in seen:
                seen.add(hint[:2])
                yield hint


def _nothing(batch: Batch, tenant: int, write: Write) -> Iterator[Hint]:
    return iter(())


def _create(batch: Batch, tenant: int, write: CreateConversation) -> Iterator[Hint]:
    yield HEAD, (tenant, ids.home(write.id), write.id), None


def _accept(batch: Batch, tenant: int, write: AcceptTurn) -> Iterator[Hint]:
    if write.key is not None:
        key = write.key
        yield f"{KEY}{LOCK}", (tenant, key.home, batch.scope.principal, key.operation, key.key), None
    if write.previous != NIL:
        yield from _branch_and_run(tenant, write.previous)
    elif (branch := write.branch if write.branch != NIL else write.conversation) != NIL and write.stored:
        yield _branch(tenant, branch)
    if write.conversation != NIL:
        yield f"{BOUND}{LOCK}", (tenant, ids.home(write.conversation), write.conversation, write.agent), None


def _append(batch: Batch, tenant: int, write: Append) -> Iterator[Hint]:
    yield _branch(tenant, write.branch)


def _finish(batch: Batch, tenant: int, write: Finish | Cancel | Pause | RecordSteps) -> Iterator[Hint]:
    yield from _branch_and_run(tenant, write.run)


def _log(batch: Batch, tenant: int, write: Log | Heartbeat) -> Iterator[Hint]:
    yield _run(tenant, write.run)


def _patch(batch: Batch, tenant: int, write: PatchSlots) -> Iterator[Hint]:
    if write.fence:
        yield _run(tenant, write.run)
    place = (tenant, ids.home(write.session), write.session)
    yield f"{SESSION}{LOCK}", place, None
    for name in names(write):
        yield SLOT, (*place, name), None


def _beside(found: Iterator[Hint], place: Row) -> Iterator[Hint]:
    """The same for what lies on an ephemeral desk, and what of its head does."""
    for sql, values, same in found:
        yield moved(sql), values, same
        if values == place:
            yield HEAD_BESIDE, place, None


def _branch(tenant: int, branch: bytes) -> Hint:
    return f"{BRANCH}{LOCK}", (tenant, ids.home(branch), branch), None


def _run(tenant: int, run: bytes) -> Hint:
    return f"{RUN}{LOCK}", (tenant, ids.home(run), run), None


def _branch_and_run(tenant: int, run: bytes) -> Iterator[Hint]:
    def same(row: Row) -> Statement:
        return f"{BRANCH}{LOCK}", (tenant, ids.home(row[0]), row[0])

    yield f"{_BRANCH_OF_RUN}{LOCK}", (tenant, ids.home(run), run), same
    yield _run(tenant, run)


_HINTS: dict[type, Callable[[Batch, int, Any], Iterator[Hint]]] = {
    CreateConversation: _create,
    AcceptTurn: _accept,
    Append: _append,
    Finish: _finish,
    Cancel: _finish,
    Pause: _finish,
    RecordSteps: _log,
    Log: _log,
    Heartbeat: _log,
    PatchSlots: _patch,
}
