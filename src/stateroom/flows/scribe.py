"""Writes down what an agent tells: outputs for the record and, when somebody may follow, deltas for the log.

Deltas are grouped (30 ms or 4 KB) and each group is one batch under the run's fence; a reader sees it only after its
commit (P3). Whatever is not yet written when the agent ends travels with the finish.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from stateroom import ids, limits
from stateroom.backends.base import Backend
from stateroom.batch import Batch, Draft
from stateroom.conversation.rules import ANSWERS, draft
from stateroom.errors import InvalidInput, StateroomError
from stateroom.flows.agent import AgentEvent, Delta, Done, End, Output, Start, Usage
from stateroom.flows.failpoint import Failpoints
from stateroom.flows.job import Job
from stateroom.flows.persist import persist
from stateroom.run.model import Log, NewRow, Recorded
from stateroom.wire import json, rows


class Scribe:
    """One run's notes. `log` False keeps outputs only: an ordinary turn then costs no batch of its own."""

    def __init__(self, backend: Backend, job: Job, *, log: bool, failpoints: Failpoints) -> None:
        self._backend, self._scope, self._run, self._log = backend, job.work.scope, job.work.run, log
        self._said, self._number = job.said, job.work.run.head
        self._failpoints = failpoints
        self.outputs: list[Draft] = []
        self._items: list[dict[str, Any]] = []
        self.usage: dict[str, Any] = {}
        self.end = End("completed")
        self._head: dict[str, Any] | None = None
        self._id = b""
        self._pieces: list[str] = []
        self._waiting: list[NewRow] = []
        self._text: list[str] = []  # deltas of the group being gathered
        self._size = 0
        self._timer: asyncio.Task[None] | None = None
        self._failure: StateroomError | None = None  # of a flush that nobody waited for
        self._writing = asyncio.Lock()
        self.cancel_asked = False

    @property
    def telling(self) -> bool:
        """Whether readers hear what is said while it is said."""
        return self._log

    @property
    def logged(self) -> bool:
        """Whether the log holds more than its beginning and end."""
        return self._log and bool(self.outputs)

    async def take(self, event: AgentEvent) -> None:
        """Note one event. Raises what an earlier flush ran into: nothing is noted on a log that has a hole."""
        self._check()
        match event:
            case Delta(text=text):
                if self._head is None:
                    self._start({"type": "message", "role": "assistant"})
                self._delta(text)
            case Start(item=item):
                self._close(None)
                self._start(item)
            case Done(item=item):
                self._close(item)
            case Output(item=item):
                self._close(None)
                self._whole(item)
            case Usage(usage=usage):
                self.usage = added(self.usage, usage)
            case End():
                self.end = event
        if self._size >= limits.DELTA_BYTES_MAX:
            await self.flush()
        elif self._log and (self._waiting or self._text) and self._timer is None:
            self._timer = asyncio.create_task(self._flush_soon())

    def close(self) -> None:
        """The agent has nothing more to say: what is open is complete."""
        self._close(None)

    async def rest(self) -> tuple[NewRow, ...]:
        """Close what is open and hand over what is not yet in the log, with the log's end."""
        self._close(None)
        if self._timer is not None:  # asleep; one that is writing has taken itself out of here
            self._timer.cancel()
        async with self._writing:  # a group on its way lands first
            self._check()
            self._gather()
            waiting, self._waiting = self._waiting, []
        return self._kept((*waiting, rows.end_row(() if self._log else self._items)))

    async def break_off(self) -> None:
        """The agent was interrupted: what is open stays as far as it came, and calls nobody answered get an output that
        says so, because no provider takes a record with a call left open (P17)."""
        if self._head is not None and self._head.get("type") != "message":
            self._head = None  # half a call is no call; its deltas in the log stand for nothing
        self._close(None)
        answered = {item.get("call_id") for item in self._items if item.get("type") in ANSWERS.values()}
        for item in list(self._items):
            if (kind := ANSWERS.get(item.get("type", ""))) is not None and item.get("call_id") not in answered:
                self._whole({"type": kind, "call_id": item.get("call_id"), "output": "Interrupted before it was answered."})

    async def flush(self) -> None:
        """Make the group durable; readers see it now. StaleFence when the run is no longer ours."""
        async with self._writing:
            self._gather()
            waiting, self._waiting, self._size = self._waiting, [], 0
            if not waiting:
                return
            now = self._backend.clock.wall_ms()
            write = Log(run=self._run.id, fence=self._run.fence, rows=self._kept(waiting))
            batch = Batch(id=ids.new(ids.home(self._run.id), now), scope=self._scope, at=now, writes=(write,))
            receipt = (await persist(self._backend, batch))[0]
            assert isinstance(receipt, Recorded)
            self.cancel_asked = receipt.cancel
        await self._failpoints.hit("turn.recorded")

    def _kept(self, new: Sequence[NewRow]) -> tuple[NewRow, ...]:
        """The rows as they may be stored: all of them, or without their bodies, which readers here get from the job."""
        if self._run.stored:
            return tuple(new)
        for row in new:
            self._said[self._number + 1] = row.body
            self._number += row.count
        return tuple(replace(row, body=b"") for row in new)

    async def _flush_soon(self) -> None:
        await asyncio.sleep(limits.DELTA_MS_MAX / 1000)
        self._timer = None
        try:
            await self.flush()
        except StateroomError as error:
            self._failure = error

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _start(self, head: dict[str, Any]) -> None:
        if not isinstance(head.get("type"), str):
            raise InvalidInput("A started item needs a string 'type'.", code="item_type_missing")
        head, _ = json.answered(head)
        self._head, self._id, self._pieces = head, self._new_id(), []
        if self._log:
            self._row(rows.open_row(self._id, head))

    def _delta(self, text: str) -> None:
        if not isinstance(text, str):
            raise InvalidInput(f"A delta is text, not {type(text).__name__}.", code="agent_answer_invalid")
        text = json.sound(text)
        self._pieces.append(text)
        if self._log and text:
            self._text.append(text)
            self._size += len(text)

    def _close(self, whole: Mapping[str, Any] | None) -> None:
        if self._head is None:
            return
        head, self._head = self._head, None
        item = rows.composed(head, "".join(self._pieces))
        body = json.encode(item)
        agreed = True
        if whole is not None:
            given, said = json.answered(whole)
            agreed = said == body
            item, body = (item, body) if agreed else (dict(given), said)
        if self._log:
            self._row(rows.close_row(self._id, head, b"" if agreed else body))
        self._output(self._id, item, body)

    def _whole(self, item: dict[str, Any]) -> None:
        id_ = self._new_id()
        item, body = json.answered(item)
        if self._log:
            self._row(rows.item_row(id_, item, body))
        self._output(id_, item, body)

    def _output(self, id_: bytes, item: dict[str, Any], body: bytes) -> None:
        if len(self.outputs) >= limits.APPEND_ITEMS_MAX:
            raise InvalidInput(f"One turn puts out {limits.APPEND_ITEMS_MAX} items at most.", code="too_many_items")
        self.outputs.append(draft(id_, item, body))
        self._items.append(item)

    def _row(self, row: NewRow) -> None:
        self._gather()
        self._waiting.append(row)
        self._size += len(row.body)

    def _gather(self) -> None:
        if self._text:
            self._waiting.append(rows.delta_row(self._id, "".join(self._text)))
            self._text = []

    def _new_id(self) -> bytes:
        return ids.new(ids.home(self._run.id), self._backend.clock.wall_ms())


def added(total: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Token counts summed, details included."""
    out = dict(total)
    for name, value in more.items():
        before = out.get(name)
        if isinstance(value, dict) and (before is None or isinstance(before, dict)):
            out[name] = added(before or {}, value)
        elif isinstance(value, int) and not isinstance(value, bool) and not name.endswith("_details"):
            out[name] = value + (before if isinstance(before, int) else 0)
    return out
