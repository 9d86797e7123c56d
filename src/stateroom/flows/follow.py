"""Follow a run: its wire events by cursor, live until its end, the same ones however often the reader comes back."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any
from weakref import WeakValueDictionary

from stateroom.backends.base import Backend
from stateroom.connection.model import Cursor, epoch_of, parse
from stateroom.connection.service import follow
from stateroom.connection.store import Bell
from stateroom.errors import CursorInvalid, Gone
from stateroom.flows.feed import Feed, Reader, Teller
from stateroom.flows.job import Job
from stateroom.flows.turn import Turns
from stateroom.principal import Scope
from stateroom.run.model import Run

Events = AsyncGenerator[tuple[Cursor, dict[str, Any]] | None, None]


class Followers:
    """Opens readers on runs. A reader costs its cursor; those of one run share what is read and rendered."""

    def __init__(self, backend: Backend, turns: Turns) -> None:
        self._backend, self._turns = backend, turns
        self._feeds: WeakValueDictionary[tuple[str, bytes, str], Feed] = WeakValueDictionary()

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

    def events(self, scope: Scope, run: bytes, start: Cursor, *, poll_s: float | None = 1.0, bell: Bell | None = None) -> Events:
        """Every event after `start`: (cursor, event), or None each time `poll_s` passes without one or `bell` is rung.
        Ends with the run.

        The run's worker is looked up when this is called, not at the first event: what is not stored is still there.
        """
        return self._events(scope, run, start, job=self._turns.workshop.job(run), poll_s=poll_s, bell=bell)

    async def _open(self, scope: Scope, run: bytes, job: Job | None) -> Reader:
        row = await self._backend.run(scope, run)
        if not row.stored and row.ended and job is None:
            raise Gone("This response was not stored; its stream is over.", code="answer_not_kept")
        place = (scope.tenant, run, epoch_of(self._backend.epoch, run, row.epoch))
        if (feed := self._feeds.get(place)) is None:
            feed = self._feeds[place] = Feed(Teller(self._backend, self._turns, scope, row, job=job), self._backend)
        return feed.attach()

    async def _events(
        self, scope: Scope, run: bytes, start: Cursor, *, job: Job | None, poll_s: float | None, bell: Bell | None
    ) -> Events:
        reader = await self._open(scope, run, job)
        try:
            async for event in follow(reader.page, self._backend.wakeups, topic=run, start=start, poll_s=poll_s, bell=bell):
                yield event
        finally:
            reader.leave()
