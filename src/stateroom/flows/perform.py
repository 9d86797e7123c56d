"""One run, from hydrate to finish: the desk and the record are read, the agent works, one batch ends it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from msgspec.structs import replace

from stateroom import ids, limits
from stateroom.backends.base import Backend
from stateroom.batch import Batch, Write
from stateroom.context.build import Window, build, call_ids
from stateroom.conversation.model import Item, ItemQuery
from stateroom.errors import Conflict, Gone, IllegalMove, InvalidInput, NotFound, StaleFence, StateroomError, Unavailable
from stateroom.flows.agent import Agent, End, Turn
from stateroom.flows.failpoint import Failpoints
from stateroom.flows.hydrate import Hydrator, placed, unrecorded
from stateroom.flows.job import SUPERSEDED, Job, Outcome, superseded
from stateroom.flows.patches import patches_of
from stateroom.flows.persist import insist, persist
from stateroom.flows.scribe import Scribe
from stateroom.flows.steps import Paused, Steps
from stateroom.ids import NIL
from stateroom.run.model import Claimed, Finish, Finished, Lease, NewRow, Status
from stateroom.run.steps import ActionQuery
from stateroom.session.model import MarkTurn, PatchSlots, Slot, SlotPatch
from stateroom.session.receipts import Patched
from stateroom.wire import json, rows

log = logging.getLogger("stateroom.work")
CANCELLED = "cancelled"  # the reason of an end that was asked for


class Tools(msgspec.Struct, frozen=True):
    """What a performance works with."""

    backend: Backend
    hydrator: Hydrator
    agents: Mapping[str, Agent]
    lease: Lease
    failpoints: Failpoints


class Performance:
    """One run, from hydrate to finish."""

    def __init__(self, tools: Tools, job: Job) -> None:
        self._backend, self._hydrator = tools.backend, tools.hydrator
        self._agents, self._hit, self._lease = tools.agents, tools.failpoints.hit, tools.lease
        self._job, self._work, self._run, self._scope = job, job.work, job.work.run, job.work.scope
        self._options = json.decode_trusted(self._run.options)
        keep = bool(self._options.get("stream") or self._options.get("background"))
        self._scribe = Scribe(self._backend, job, log=keep, failpoints=tools.failpoints)
        self._time = asyncio.get_running_loop().time
        self._failpoints = tools.failpoints
        self._steps: Steps | None = None
        self._interrupted = False
        self._timings: dict[str, float] = {"accept": self._work.accept_ms}

    async def perform(self) -> tuple[Outcome | None, Claimed | None]:
        """The outcome, and the next turn that is ours; no outcome when the run waits for somebody."""
        turn, slots, end = await insist(self._prepare)
        await self._hit("turn.hydrated")
        started = self._time()
        try:
            end = end or await self._listen(turn)
        except Paused:
            if (end := await self._pause()) is None:
                return None, None
        self._timings["model"] = (self._time() - started) * 1000
        await self._hit("turn.answered")
        finished = await self._finish(end, turn, slots)
        await self._hit("turn.finished")
        kept = self._scribe.outputs if end.status != "failed" or self._interrupted else []
        outputs = placed(finished.run, kept, after=finished.run.in_hi, at=finished.run.finished_at)
        ended = finished.run if self._run.stored else replace(finished.run, options=self._run.options)
        return Outcome(run=ended, outputs=outputs, timings=self._timings), finished.next

    async def _prepare(self) -> tuple[Turn, Mapping[str, Slot], End | None]:
        """The turn as its agent gets it, the slots it was hydrated with, and an end when it cannot begin at all."""
        started = self._time()
        run, refused, slots = self._run, None, dict[str, Slot]()
        try:
            slots = await self._hydrator.view(self._scope, run.session, self._work.session_version, agent=run.agent)
        except (Gone, NotFound) as gone:  # the desk was ended while the turn waited; the turn is still a turn
            if gone.reason == "state_lost":  # an agent is not asked as if there had been nothing on it
                refused = End("failed", gone.reason, gone.message)
        items, calls = await self._items()
        hydrated = self._time()
        try:
            window = await self._window(items, calls)
        except InvalidInput as error:
            window, refused = build((), run=run.id, items_max=0, bytes_max=0), End("failed", error.reason, error.message)
        self._timings["hydrate"] = (hydrated - started) * 1000
        self._timings["window"] = (self._time() - hydrated) * 1000
        turn = Turn(
            window=window,
            input=window.input,
            slots={name: json.decode_trusted(slot.body) for name, slot in slots.items() if slot.body is not None},
            request=self._options,
            ids={
                "conversation": ids.text("conversation", run.conversation) if run.conversation != NIL else "",
                "session": ids.text("session", run.session) if run.session != NIL else "",
                "run": ids.text("run", run.id),
                "principal": self._scope.principal,
            },
            attempt=run.attempt,
        )
        turn.steps = self._steps = await self._recall()
        return turn, slots, refused

    async def _recall(self) -> Steps | None:
        """What earlier attempts did and asked. A first attempt has nothing to recall and reads nothing."""
        if not (run := self._run).stored:
            return None
        again = run.attempt > 1 or run.fence > 1
        known = await self._backend.steps(self._scope, run.id) if again else []
        query = ActionQuery(run=run.id, pending=False, limit=limits.READ_ITEMS_MAX)
        asked = await self._backend.actions(self._scope, query) if again else []
        steps = Steps(self._backend, self._job, known=known, asked=asked, failpoints=self._failpoints)
        steps.news = await self._taken_in() if again else []
        return steps

    async def _taken_in(self) -> list[dict[str, Any]]:
        """Input of turns that an earlier attempt merged in: they ended then, and this run owes them their answer."""
        query = ItemQuery(branch=self._run.branch, after=self._run.in_hi, limit=limits.READ_ITEMS_MAX)
        items, merged = await self._backend.items(self._scope, query), set[bytes]()
        for source in {item.run for item in items} - {NIL, self._run.id}:
            with suppress(NotFound):  # deleted since
                if (await self._backend.run(self._scope, source)).merged_into == self._run.id:
                    merged.add(source)
        return [json.decode_trusted(item.body) for item in items if item.run in merged]

    async def _window(self, items: list[Item], calls: list[str | None]) -> Window:
        """What the agent may see. When this turn answers a call that lies further back, the call is looked for there;
        an answer to a call that nobody made is the caller's mistake and fails the turn."""
        items_max, bytes_max = limits.WINDOW_ITEMS_MAX, limits.WINDOW_BYTES_MAX
        window = build(items, run=self._run.id, items_max=items_max, bytes_max=bytes_max, calls=calls)
        if window.unasked and items and items[0].seq > 1:
            query = ItemQuery(branch=self._run.branch, before=items[0].seq, limit=limits.READ_ITEMS_MAX, newest_first=True)
            older = await self._backend.items(self._scope, query)
            window = build(older[::-1] + items, run=self._run.id, items_max=items_max, bytes_max=bytes_max)
        if window.unasked:
            raise InvalidInput(
                f"No call with id {window.unasked[0][:80]!r} is open in this conversation.",
                code="call_unknown",
                param="input",
            )
        return window

    async def _items(self) -> tuple[list[Item], list[str | None]]:
        """The record up to this turn's input, with call ids. A turn that is not stored has its input in this process only."""
        run, work = self._run, self._work
        if run.stored:
            stretch = await self._hydrator.stretch(self._scope, run, work.revision, work.inputs)
            return stretch.items, stretch.calls
        past = [] if run.branch == NIL else (await self._hydrator.stretch(self._scope, run, work.revision)).items
        items = past + unrecorded(run, work.prior, work.inputs)
        return items, call_ids(items)

    async def _listen(self, turn: Turn) -> End:
        """Let the agent work. Whatever it raises ends the run as failed; the record stays sound."""
        agent = self._agents.get(self._run.agent)
        if agent is None:
            return End("failed", "agent_unknown", f"No agent is called {self._run.agent!r} here.")
        if self._job.cancel_asked:
            return await self._cancelled()
        limit = asyncio.timeout(limits.RUN_MS_MAX / 1000)
        self._job.listening = True
        try:
            async with limit:
                async for event in agent.work(turn):
                    await self._scribe.take(event)
                    if self._scribe.cancel_asked:
                        self._job.cancel()
                self._scribe.close()
        except asyncio.CancelledError:
            if not self._job.cancel_asked or self._job.task is None:
                raise
            self._job.task.uncancel()
            return await self._cancelled()
        except (StaleFence, Unavailable):
            raise
        except StateroomError as error:
            return End("failed", error.reason, error.message)
        except Exception as error:  # an agent is foreign code: whatever it raises is its answer
            if limit.expired():
                return End("failed", "run_timeout", f"The agent took longer than {limits.RUN_MS_MAX // 1000} s.")
            log.exception("agent %s failed in run %s", self._run.agent, self._run.id.hex())
            return End("failed", "agent_error", f"{type(error).__name__}: {error}"[:500])
        finally:
            self._job.listening = False
        return self._scribe.end

    async def _cancelled(self) -> End:
        """Why it was asked for: somebody wanted it, or a newer turn interrupts; then what was said so far is kept."""
        row = await self._backend.run(self._scope, self._run.id)
        if not superseded(row):
            return End("failed", CANCELLED, "Cancelled on request.")
        self._interrupted = True
        await self._scribe.break_off()
        return End("failed", SUPERSEDED, "A newer turn took its place.")

    async def _pause(self) -> End | None:
        """The run waits: what was said so far and what was asked are recorded, the lease ends, compute may stop. It does
        not wait when somebody asked to cancel just before: that is its end."""
        assert self._steps is not None
        await self._scribe.flush()
        await self._steps.quiet()
        now = self._backend.clock.wall_ms()
        writes = self._steps.pausing(rows.RESET if self._scribe.telling else ())
        batch = Batch(id=ids.new(ids.home(self._run.id), now), scope=self._scope, at=now, writes=tuple(writes))
        try:
            await persist(self._backend, batch)
        except IllegalMove:
            return await self._cancelled()
        await self._hit("turn.paused")
        return None

    async def _finish(self, end: End, turn: Turn, slots: Mapping[str, Slot]) -> Finished:
        """One batch: outputs, slots, status, usage, the log's end, the next turn's claim. What the desk refuses never
        costs the answer: the state function is asked once more, then the patch is left out and named in `error`."""
        started = self._time()
        rest = await self._scribe.rest()
        if self._steps is not None:
            await self._steps.quiet()
        layers: list[tuple[SlotPatch, ...]] | None = None
        try:
            layers = patches_of(turn, slots, agent=self._run.agent) if end.status != "failed" else []
            finished = await self._commit(end, rest, layers)
        except (StaleFence, IllegalMove, Unavailable):
            raise
        except StateroomError as refused:
            if layers == []:
                raise
            finished = await self._finish_anyway(end, rest, turn, refused)
        self._timings["commit"] = (self._time() - started) * 1000
        if end.status != "failed" and self._run.stored:
            self._hydrator.extend(self._scope, finished.run, self._work.revision, self._scribe.outputs)
        return finished

    async def _finish_anyway(self, end: End, rest: Sequence[NewRow], turn: Turn, refused: StateroomError) -> Finished:
        asked = sorted({*turn.changes, *turn.removed, *turn.operations.names()})
        if turn.state_function is not None and refused.reason == "slot_conflict":
            fresh = await self._hydrator.fresh(self._scope, self._run.session, agent=self._run.agent)
            turn.slots = {name: json.decode_trusted(slot.body) for name, slot in fresh.items() if slot.body is not None}
            turn.changes.clear()
            turn.update(turn.state_function)
            try:
                return await self._commit(end, rest, patches_of(turn, fresh, agent=self._run.agent))
            except StaleFence:
                raise
            except Conflict as again:
                refused = again
        code = "state_conflict" if isinstance(refused, Conflict) else refused.reason
        return await self._commit(end, rest, (), error=json.encode({"code": code, "message": refused.message, "slots": asked}))

    async def _commit(
        self, end: End, rest: Sequence[NewRow], layers: Sequence[tuple[SlotPatch, ...]], *, error: bytes = b""
    ) -> Finished:
        run, now = self._run, self._backend.clock.wall_ms()
        status: Status = "cancelled" if end.reason == CANCELLED or self._interrupted else end.status
        kept = end.status != "failed" or self._interrupted
        if end.status != "completed":
            error = json.encode({"code": end.reason or "agent_error", "message": json.sound(end.message)})
        finish = Finish(
            run=run.id,
            fence=run.fence,
            status=status,
            outputs=tuple(self._scribe.outputs) if run.stored and kept else (),
            keep_input=self._interrupted,
            usage=json.encode(self._scribe.usage) if self._scribe.usage else b"",
            error=error,
            rows=tuple(rest) if kept else (rows.end_row(),),
            next=self._lease,
            next_rows=rows.STARTED,
            compact_ms=limits.LOG_MS if self._scribe.logged else 0,
        )
        writes: list[Write] = [*(self._steps.remaining() if self._steps is not None else ()), finish]
        if run.session != NIL:
            writes[:0] = [
                PatchSlots(session=run.session, patches=patches, by=run.owner, run=run.id, fence=run.fence, agent=run.agent)
                for patches in layers
            ]
        if run.session != NIL and run.stored and end.status in ("completed", "incomplete"):
            writes.append(MarkTurn(session=run.session, run=run.id, by=run.owner, agent=run.agent))
        batch = Batch(id=ids.new(ids.home(run.id), now), scope=self._scope, at=now, writes=tuple(writes))
        receipts = await persist(self._backend, batch)
        for receipt in receipts:
            if isinstance(receipt, Patched):
                self._hydrator.patched(self._scope, receipt)
        return next(receipt for receipt in receipts if isinstance(receipt, Finished))
