"""Builds that are broken on purpose, in a child only: every campaign has to find them out (else it proves nothing)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from stateroom import ids
from stateroom.backends.postgres import ahead
from stateroom.backends.postgres.lane import Lane
from stateroom.backends.postgres.pipe import Lost
from stateroom.backends.postgres.tx import PostgresTx
from stateroom.backends.sqlite.wakeups import SqliteWakeups
from stateroom.backends.writer import Entry
from stateroom.connection.model import Cursor
from stateroom.flows.follow import Followers
from stateroom.flows.steps import Steps
from stateroom.principal import Scope
from stateroom.run import machine


def no_fence() -> None:
    """Nobody looks whether a worker still has its lease."""
    machine.check_fence = lambda run, fence: None  # type: ignore[assignment]


def notify_only() -> None:
    """Readers trust in being told: what another process wrote is never looked for."""
    SqliteWakeups._look = lambda self: None  # type: ignore[method-assign]


def one_too_far() -> None:
    """Readers who come back begin one event too late."""
    events: Any = Followers.events

    def behind(self: Followers, scope: Scope, run: bytes, start: Cursor, **given: Any) -> Any:
        return events(self, scope, run, replace(start, seq=start.seq + 1) if start.seq else start, **given)

    Followers.events = behind  # type: ignore[method-assign,assignment]


def no_intent() -> None:
    """Effects are begun without saying so before."""
    commit: Any = Steps._commit

    async def later(self: Steps, step: Any, **given: Any) -> None:
        if step.status == "intended":
            return
        await commit(self, step, **given)

    Steps._commit = later  # type: ignore[method-assign]


def no_memory() -> None:
    """A worker that takes a run over does not look at what was done before."""
    init: Any = Steps.__init__

    def forgetful(self: Steps, *args: Any, known: Any, **given: Any) -> None:
        init(self, *args, known=(), **given)

    Steps.__init__ = forgetful  # type: ignore[method-assign,assignment]


def blind_retry() -> None:
    """A batch whose acknowledgement was lost is sent again as a new one: nobody looks whether it landed."""

    def blind(self: Lane, entries: list[Entry], lost: Lost | None) -> list[Entry]:
        if lost is not None:
            self._link.drop()
        for entry in entries:
            entry.batch = replace(entry.batch, id=ids.new(ids.home(entry.batch.id), entry.batch.at))
        return entries

    Lane._look = blind  # type: ignore[method-assign]


def no_locks() -> None:
    """Rows that decide about a write may change until it lands."""
    init: Any = PostgresTx.__init__

    def loose(self: PostgresTx, *args: Any, **given: Any) -> None:
        init(self, *args, **{**given, "locking": False})

    PostgresTx.__init__ = loose  # type: ignore[method-assign]
    ahead.LOCK = ""  # type: ignore[misc]


BUILDS: Mapping[str, Callable[[], None]] = {
    "no fence": no_fence, "notify only": notify_only, "one too far": one_too_far, "no intent": no_intent,
    "no memory": no_memory, "blind retry": blind_retry, "no locks": no_locks,
}  # fmt: skip


def break_it(build: str) -> None:
    if build:
        BUILDS[build]()
