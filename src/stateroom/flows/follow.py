"""Follow a run: its wire events by cursor, live until its end, the same ones however often the reader comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from msgspec.structs import replace

from stateroom import limits
from stateroom.backends.base import Backend
from stateroom.connection.model import Cursor, epoch_of, parse
from stateroom.connection.service import Page, follow
from stateroom.errors import CursorInvalid, Gone
from stateroom.flows.job import Job
from stateroom.flows.turn import Turns
from stateroom.principal import Scope
from stateroom.run.model import Run
from stateroom.wire.openai import EventRenderer

Events = AsyncGenerator[tuple[Cursor, dict[str, Any]] | None, None]


class Followers:
    """Opens readers on runs. A reader costs its cursor and one page."""

    def __init__(self, backend: Backend, turns: Turns) -> None:
        self._backend, self._turns = backend, turns

    def cursor(self, run: Run, given: str | None) -> Cursor:
        """The cursor a client gave for this run (`Last-Event-ID`), or the start."""
        epoch = epoch_of(self._backend.epoch, run.id, run.epoch)
        return Cursor(epoch, 0) if not given else parse(given, epoch=epoch)

    def at(self, run: Run, seq: int) -> Cursor:
        """The cursor after event number `seq` of this run. A bare number does not say which incarnation of the log it
        counted in: after a compaction it is Gone, never other content (P6)."""
        if seq < 0:
            raise CursorInvalid("A stream starts at 0.", param="starting_after")
        if seq and run.epoch:
            raise Gone("The deltas of this run were compacted: read its stream from the start.", code="cursor_gone")
        return Cursor(epoch_of(self._backend.epoch, run.id, run.epoch), seq)

    def events(self, scope: Scope, run: bytes, start: Cursor, *, poll_s: float = 1.0) -> Events:
        """Every event after `start`: (cursor, event), or None each time `poll_s` passes without one. Ends with the run.

        The run's worker is looked up when this is called, not at the first event: what is not stored is still there.
        """
        return self._events(scope, run, start, self._turns.workshop.job(run), poll_s)

    async def _events(self, scope: Scope, run: bytes, start: Cursor, job: Job | None, poll_s: float) -> Events:
        row = await self._backend.run(scope, run)
        if not row.stored and row.ended and job is None:
            raise Gone("This response was not stored; its stream is over.", code="answer_not_kept")
        reader = _Reader(self._backend, self._turns, scope, row, job)
        async for event in follow(reader.page, self._backend.wakeups, topic=run, start=start, poll_s=poll_s):
            yield event


class _Reader:
    """Reads the log forward once, from its beginning: what an event shows may depend on entries before the cursor."""

    def __init__(self, backend: Backend, turns: Turns, scope: Scope, run: Run, job: Job | None) -> None:
        self._backend, self._turns, self._scope, self._run, self._job = backend, turns, scope, run, job
        self._said = None if run.stored or job is None else job.said  # what a run that is not stored leaves out of its log
        self._renderer = EventRenderer(run if run.stored or job is None else job.work.run)
        self._read = 0
        self._ended = False

    async def page(self, after: int) -> Page:
        """Rendered events beyond `after`, whether the stream has ended, and how far the log goes."""
        events: list[tuple[int, Any]] = []
        while not events and not self._ended:
            found = await self._backend.log(self._scope, self._run.id, after=self._read, limit=limits.FOLLOW_ROWS_MAX)
            if not found:
                break
            for row in found:
                if row.kind == "end":
                    await self._settle()
                whole = row if self._said is None else replace(row, body=self._said.get(row.first, b""))
                events += [(event["sequence_number"] + 1, event) for event in self._renderer.events(whole)]
                self._read = row.first + row.count - 1
            events = [(seq, event) for seq, event in events if seq > after]
            await asyncio.sleep(0)  # a long log is read in pages, and others get their turn between them
        return events, self._ended, self._read

    async def _settle(self) -> None:
        """The run is over: its final row and outputs are what the last events show."""
        run = await self._backend.run(self._scope, self._run.id)
        outcome = await self._job.done() if self._job is not None else None
        if outcome is None:
            self._renderer.settle(run, await self._turns.outputs(self._scope, run))
        else:
            self._renderer.settle(outcome.run, outcome.outputs)
        self._ended = True
