"""A run's log as events: read and rendered once for everybody who is at its end.

Thousands who follow one run share a feed: it reads each new entry once and keeps the last few events for those who are
a little behind. Who is further behind reads the log for itself, from its beginning, until it has caught up. A reader
owns its cursor and nothing else; what everybody has taken is forgotten.
"""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec.structs import replace

from stateroom import limits
from stateroom.backends.base import Backend
from stateroom.connection.service import Page
from stateroom.errors import Gone
from stateroom.flows.job import Job
from stateroom.flows.turn import Turns
from stateroom.principal import Scope
from stateroom.run.model import Run
from stateroom.wire.openai import EventRenderer

Events = list[tuple[int, dict[str, Any]]]


class Teller:
    """Reads a run's log forward, once, and tells its events: what one shows may depend on entries before it."""

    def __init__(self, backend: Backend, turns: Turns, scope: Scope, run: Run, *, job: Job | None) -> None:
        self._backend, self._turns, self._scope, self.run, self._job = backend, turns, scope, run, job
        self._said = None if run.stored or job is None else job.said  # what a run that is not stored leaves out of its log
        self._renderer = EventRenderer(run if run.stored or job is None else job.work.run)
        self._epoch = backend.epoch
        self.told = 0  # the number of the last event
        self.ended = False

    def anew(self) -> Teller:
        """Another one, at the beginning of the same log."""
        return Teller(self._backend, self._turns, self._scope, self.run, job=self._job)

    async def more(self) -> Events:
        """The next events, a page at most; none when nothing more is in the log."""
        found = await self._backend.log(self._scope, self.run.id, after=self.told, limit=limits.FOLLOW_ROWS_MAX)
        if self._backend.epoch != self._epoch:
            raise Gone("The store is another one since this stream began: read it from the start.", code="cursor_gone")
        if not found and self.run.ended:
            self._check_epoch(await self._backend.run(self._scope, self.run.id))
        events, size = Events(), 0
        for row in found:
            if row.kind == "end":
                await self._settle()
            whole = row if self._said is None else replace(row, body=self._said.get(row.first, b""))
            events += [(event["sequence_number"] + 1, event) for event in self._renderer.events(whole)]
            self.told = row.first + row.count - 1
            self.ended = row.kind == "end"
            size += len(whole.body)
            if size > limits.FOLLOW_BYTES_MAX:  # the rest is read again: a page is small whatever an entry weighs
                break
        return events

    async def _settle(self) -> None:
        """The run is over: its final row and outputs are what the last events show."""
        run = await self._backend.run(self._scope, self.run.id)
        self._check_epoch(run)
        outcome = await self._job.done() if self._job is not None else None
        if outcome is None:
            self._renderer.settle(run, await self._turns.outputs(self._scope, run))
        else:
            self._renderer.settle(outcome.run, outcome.outputs)

    def _check_epoch(self, run: Run) -> None:
        """The log was compacted under a reader that took very long: its numbers mean something else now (P6)."""
        if run.epoch != self.run.epoch:
            raise Gone("The deltas of this run were compacted: read its stream from the start.", code="cursor_gone")


class Feed:
    """One teller for everybody who is at the end of a run's log."""

    def __init__(self, teller: Teller, backend: Backend) -> None:
        self._teller, self._wakeups = teller, backend.wakeups
        self._recent = Events()  # the last ones, without a gap up to …
        self._told = 0  # … this one, which is the teller's when it is not reading
        self._ended = False
        self._looked: int | None = None  # the topic's generation when the log's end was seen
        self._reading = asyncio.Lock()
        self._readers = self._caught_up = 0

    def attach(self) -> Reader:
        self._readers += 1
        return Reader(self)

    def leave(self, reader: Reader) -> None:
        self._readers -= 1
        self._caught_up -= reader.caught_up_at == self._told
        self._forget()

    async def after(self, seq: int, reader: Reader) -> Page | None:
        """A page of events beyond `seq`; None when they are no longer kept here. A reader that just came, or
        read further by itself, may know of more than this process was told: for it the log is read whatever the hints say."""
        if self._told <= seq:
            await self._read_up_to(seq, anyway=not reader.begun or self._told < seq)
        reader.begun = True
        if seq >= self._told:
            if reader.caught_up_at != self._told:
                reader.caught_up_at = self._told
                self._caught_up += 1
                self._forget()
            return [], self._ended, self._told
        first = self._told - len(self._recent)
        if seq < first:
            return None
        return self._recent[seq - first :], self._ended, self._told

    def anew(self) -> Teller:
        return self._teller.anew()

    async def _read_up_to(self, seq: int, *, anyway: bool) -> None:
        """Read on until there is something beyond `seq`, unless nothing was touched since the log's end was seen."""
        async with self._reading:
            while self._told <= seq and not self._ended:
                generation = self._wakeups.generation(self._teller.run.id)
                if generation == self._looked and not anyway:
                    return
                if events := await self._more():
                    self._caught_up, self._told, self._ended = 0, self._teller.told, self._teller.ended
                    self._recent += events
                    del self._recent[: -max(limits.FOLLOW_ROWS_MAX, len(events))]
                else:
                    self._looked, anyway = generation, False
                await asyncio.sleep(0)  # a long log is read in pages, and others get their turn between them

    async def _more(self) -> Events:
        """The teller's next events. One that is interrupted (the store failed, this reader left) may have lost some on the
        way: then another one begins at the log's beginning."""
        try:
            return await self._teller.more()
        except BaseException:
            self._teller, self._told, self._caught_up = self._teller.anew(), 0, 0
            self._recent.clear()
            raise

    def _forget(self) -> None:
        if self._caught_up >= self._readers:
            self._recent.clear()


class Reader:
    """One reader of a feed: by its cursor from what the feed keeps, else from a teller of its own."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._own: Teller | None = None
        self.begun = False
        self.caught_up_at = -1  # how far the feed was when this reader had everything

    async def page(self, after: int) -> Page:
        """Rendered events beyond `after`, whether the stream has ended, and how far the log goes."""
        if (found := await self._feed.after(after, self)) is not None:
            self._own = None
            return found
        self._own = self._own or self._feed.anew()
        events = Events()
        while not events and not self._own.ended and (more := await self._own.more()):
            events = [(seq, event) for seq, event in more if seq > after]
            await asyncio.sleep(0)
        return events, self._own.ended, self._own.told

    def leave(self) -> None:
        self._feed.leave(self)
