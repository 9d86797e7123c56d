"""A run that is being worked on in this process: what is known of it, and how those who wait learn its end."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec

from stateroom.batch import Draft
from stateroom.conversation.model import Item
from stateroom.principal import Scope
from stateroom.run.model import Run
from stateroom.wire import json

SUPERSEDED = "superseded"


def superseded(run: Run) -> bool:
    """Whether the run was asked to cancel because a newer turn interrupts it: then what was said stays in the record."""
    return bool(run.error) and json.decode_trusted(run.error).get("code") == SUPERSEDED


def on_behalf(tenant: str, run: Run) -> Scope:
    """The scope a worker acts in: the run's principal asks, and what belongs to the run may be a colleague's."""
    return Scope(tenant, run.owner, sees_all=True)


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """A claimed run, and what is known of it from the claim."""

    scope: Scope
    run: Run
    revision: int
    session_version: int
    inputs: tuple[Draft, ...] = ()  # its input, when this process accepted it
    prior: tuple[Draft, ...] = ()  # what came before it and is not in the record
    accept_ms: float = 0.0


class Outcome(msgspec.Struct, frozen=True):
    """How it ended here. `timings` in ms."""

    run: Run
    outputs: list[Item]
    timings: Mapping[str, float]


class Job:
    """A run that is being worked on in this process."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.task: asyncio.Task[None] | None = None
        self.cancel_asked = False
        self.lease_until = work.run.lease_until  # store time, as far as this process knows
        self.said: dict[int, bytes] = {}  # bodies of log entries that are not stored, by first wire number
        self.listening = False  # to the agent: the only time at which a cancel may interrupt
        self._outcome: asyncio.Future[Outcome | None] = asyncio.get_running_loop().create_future()

    async def done(self) -> Outcome | None:
        """The outcome; None when this worker lost the run or could not finish it (read the store then)."""
        return await asyncio.shield(self._outcome)

    def settle(self, outcome: Outcome | None) -> None:
        if not self._outcome.done():
            self._outcome.set_result(outcome)

    def cancel(self) -> None:
        """Somebody asked to cancel: interrupt the agent; the work then finishes as cancelled. A batch is never
        interrupted, and an answer that is complete already stays complete."""
        if not self.cancel_asked:
            self.cancel_asked = True
            if self.task is not None and self.listening:
                self.task.cancel()

    def lost(self) -> None:
        """Somebody else has the run: what its agent does here is for nothing. One that is past the agent finds out by
        itself: its last batch may have landed, and what that claimed is ours."""
        if self.task is not None and self.listening:
            self.task.cancel()
