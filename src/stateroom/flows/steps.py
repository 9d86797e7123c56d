"""Steps and questions of a running turn: each effect recorded, each answer waited for without holding compute (D5).

An agent that is run again after a crash or a pause calls the same steps in the same order; what is done is answered
from the record, what was asked is answered when it was answered, and the work goes on where it stopped.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import inspect
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from stateroom import ids, limits
from stateroom.backends.base import Backend
from stateroom.batch import Batch, Receipt, Write
from stateroom.errors import Conflict, InvalidInput, StateroomError, Unavailable
from stateroom.flows.failpoint import Failpoints
from stateroom.flows.job import Job
from stateroom.flows.persist import persist
from stateroom.run.model import Drained, Heartbeat, Lease, NewRow
from stateroom.run.steps import Action, ActionKind, Drain, Effect, Pause, Policy, RecordSteps, Step, Stepped
from stateroom.session.changes import Changes
from stateroom.session.model import PatchSlots, SlotPatch
from stateroom.wire import json, rows

log = logging.getLogger("stateroom.steps")


class StepFailed(StateroomError):
    """The step failed in this or an earlier attempt, and its class does not allow to try again by itself."""

    code = "step_failed"


class Paused(BaseException):
    """Ends the agent's work for now: the run waits. Never caught by agents' `except Exception`."""


class Doing(msgspec.Struct):
    """What a step's function is given. `key` is the effect key: the same in every attempt, to be handed to whoever
    performs the effect (an idempotency key). What a transactional step does to the `desk` lands together with its result."""

    key: str
    attempt: int
    desk: Changes = msgspec.field(default_factory=lambda: Changes(origin="agent"))

    def set(self, slot: str, value: Any) -> None:
        """Change a slot of the desk in the same batch as the step's result (transactional steps only)."""
        self.desk.set(slot, value)


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What to ask and how long to wait. `arguments` are what an approval is bound to."""

    kind: ActionKind
    name: str
    arguments: Any = None
    body: Mapping[str, Any] = {}
    queue: str = ""
    wait_s: float = 0.0  # 0: for ever
    policy: Policy = "deny"


class Steps:
    """The steps of one attempt at one run."""

    def __init__(
        self, backend: Backend, job: Job, *, known: Sequence[Step], asked: Sequence[Action], failpoints: Failpoints
    ) -> None:
        self._backend, self._job, self._run, self._scope = backend, job, job.work.run, job.work.scope
        self._known = {step.key: step for step in known}
        self._asked = {action.key: action for action in asked}
        self._hit = failpoints.hit
        self._seen: Counter[str] = Counter()
        self._results: list[Step] = []  # effects that happened, not yet in the record
        self._uses: list[bytes] = []
        self._flusher: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()
        self.news: list[dict[str, Any]] = []  # input of turns that were merged in, in order
        self.cancel_asked = False

    # ── steps ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def step(
        self,
        name: str,
        function: Callable[..., Any],
        *,
        effect: Effect = "once",
        verify: Callable[[Doing], Awaitable[tuple[bool, Any]]] | None = None,
        arguments: Any = None,
        key: str = "",
    ) -> Any:
        """Do something once, as far as its class promises; see `Turn.step`."""
        key = key or self._name(name)
        known, doing = self._known.get(key), self.doing(key)
        step = Step(key=key, name=name, effect=effect, status="intended", digest=digest(arguments), attempt=self._run.attempt)
        if known is not None and known.digest != step.digest:
            raise Conflict(f"Step {key!r} has other arguments than in an earlier attempt.", code="step_changed")
        if known is not None and known.status == "done":
            return json.decode_trusted(known.body)
        if known is not None and known.status == "failed" and effect == "once":
            raise StepFailed(json.decode_trusted(known.body)["message"])
        if known is not None and effect == "once":
            happened, result = await self._find_out(known, step, doing, verify=verify)
            if happened:
                return await self._done(step, result)
        if effect != "pure":
            await self._commit(step)
            await self._hit("step.intended")
        if effect == "once":
            await self._hold()
        return await self._perform(step, doing, function)

    async def _hold(self) -> None:
        """A `once` effect begins under a lease that is alive. When the store was away, or was slow to acknowledge the intent,
        somebody else may have the run by now: the lease is renewed first, or turns out to be lost."""
        while (now := self._backend.now()) + limits.HEARTBEAT_MS > self._job.lease_until:
            lease = Lease(owner=self._run.lease_owner, ms=limits.LEASE_MS)
            await self._send([Heartbeat(run=self._run.id, fence=self._run.fence, lease=lease)])
            self._job.lease_until = now + lease.ms

    async def retrieve(self, search: Callable[[], Awaitable[Any]], arguments: Any) -> None:
        """A pure step that is done anew in every attempt, because its documents are not kept: what it found is."""
        key = self._name("retrieval")
        step = Step(
            key=key, name="retrieval", effect="pure", status="intended", digest=digest(arguments), attempt=self._run.attempt
        )
        result = await search()
        if (known := self._known.get(key)) is None or known.status != "done":
            await self._done(step, result)

    async def _perform(self, step: Step, doing: Doing, function: Callable[..., Any]) -> Any:
        try:
            wants = len(inspect.signature(function).parameters)
            result = function(doing) if wants else function()
            if inspect.isawaitable(result):
                result = await result
        except StateroomError as error:
            await self._settle(step, "failed", {"message": error.message, "code": error.reason})
            raise
        except Exception as error:
            await self._settle(step, "failed", {"message": f"{type(error).__name__}: {error}"[:500]})
            raise
        await self._hit("step.performed")
        if step.effect == "transactional":
            done = msgspec.structs.replace(step, status="done", body=json.encode(result))
            await self._commit(done, layers=doing.desk.layers())
            self._known[step.key] = done
            return result
        return await self._done(step, result)

    async def _done(self, step: Step, result: Any) -> Any:
        await self._settle(step, "done", result)
        return result

    async def _settle(self, step: Step, status: str, body: Any) -> None:
        """The result travels with the next intent, or by itself a moment later: whichever is first."""
        settled = msgspec.structs.replace(step, status=status, body=json.encode(body))
        self._known[step.key] = settled
        self._results.append(settled)
        if self._flusher is None:
            self._flusher = asyncio.create_task(self._flush_soon())

    async def _find_out(
        self, known: Step, step: Step, doing: Doing, *, verify: Callable[[Doing], Awaitable[tuple[bool, Any]]] | None
    ) -> tuple[bool, Any]:
        """A `once` step that began and has no result: nobody knows whether it happened. Ask the outside, or somebody.

        An answer counts for one beginning: a step that began again after "did_not_happen" is asked about again.
        `unknown` lands with the question, so that the last one asked is always about the last beginning.
        """
        if verify is not None:
            return await verify(doing)
        asked = 0
        while f"reconcile:{step.key}:{asked + 1}" in self._asked:
            asked += 1
        if known.status != "unknown":
            asked += 1
            self._results.append(msgspec.structs.replace(step, status="unknown"))
        body = {"step": step.key, "name": step.name, "effect_key": doing.key}
        question = Question(kind="reconcile", name=step.name, body=body, policy="fail")
        answer = await self.ask(question, key=f"reconcile:{step.key}:{asked}")
        match answer.get("outcome"):
            case "succeeded":
                return True, answer.get("result")
            case "did_not_happen":
                return False, None
        raise StepFailed(f"Step {step.key!r} was reconciled as failed.")

    # ── questions ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def ask(self, question: Question, *, key: str = "") -> dict[str, Any]:
        """The answer to a question. While there is none the work ends (Paused) and begins again when it was given."""
        key = key or self._name(f"{question.kind}:{question.name}")
        known = self._asked.get(key)
        bound = digest(question.arguments)
        if known is not None and known.status in ("resolved", "expired", "used"):
            if known.digest != bound:
                raise Conflict(f"{key!r} was asked about other arguments.", code="step_changed")
            if question.kind == "approval" and known.status == "resolved":
                self._uses.append(known.id)
            answer: dict[str, Any] = json.decode_trusted(known.resolution)
            return answer
        now = self._backend.now()
        action = Action(
            id=ids.new(ids.home(self._run.id), self._backend.clock.wall_ms()),
            run=self._run.id,
            key=key,
            kind=question.kind,
            name=question.name,
            digest=bound,
            queue=question.queue,
            body=json.encode({**question.body, "arguments": question.arguments}),
            until=now + int(question.wait_s * 1000) if question.wait_s else 0,
            policy=question.policy,
        )
        self.waits = action
        raise Paused

    waits: Action | None = None

    def pausing(self, told: Sequence[NewRow]) -> list[Write]:
        """The writes that make the run wait: results that are not yet recorded, then the question; `told` goes into its log."""
        assert self.waits is not None
        pause = Pause(run=self._run.id, fence=self._run.fence, actions=(self.waits,), rows=tuple(told))
        return [*self.remaining(), pause]

    # ── the record ──────────────────────────────────────────────────────────────────────────────────────────────────

    def remaining(self, *more: Step) -> list[Write]:
        """What is not yet recorded, and `more`, for the batch that ends or pauses the run. It may be asked for again: a
        batch that was refused recorded nothing."""
        if not (self._results or more or self._uses):
            return []
        steps, uses = (*self._results, *more), tuple(self._uses)
        return [RecordSteps(run=self._run.id, fence=self._run.fence, steps=steps, uses=uses)]

    async def quiet(self) -> None:
        """Wait for a result that is on its way into the record."""
        if self._flusher is not None:
            self._flusher.cancel()
            self._flusher = None
        async with self._writing:
            pass

    async def _commit(self, step: Step, *, layers: Sequence[tuple[SlotPatch, ...]] = ()) -> None:
        """The intent of a step, with the results before it, in one batch. At this boundary waiting turns are merged."""
        run = self._run
        before: list[Write] = [
            PatchSlots(session=run.session, patches=patches, by=run.owner, run=run.id, fence=run.fence, agent=run.agent)
            for patches in layers
        ]
        async with self._writing:
            stepped = await self._record(step, before=before)
        assert isinstance(stepped, Stepped)
        await self._after(stepped)

    async def _flush_soon(self) -> None:
        await asyncio.sleep(limits.DELTA_MS_MAX / 1000)
        self._flusher = None
        async with self._writing:
            if self._results or self._uses:
                try:
                    await self._record()
                except StateroomError as refused:  # whoever writes next meets the same
                    log.debug("results of run %s are not recorded yet: %s", self._run.id.hex(), refused)

    async def _record(self, *more: Step, before: Sequence[Write] = ()) -> Receipt:
        """One batch of what is not yet recorded. A caller that is cancelled meanwhile has recorded it all the same; a
        store that could not take it gets it with the next batch."""
        writes, results, uses = [*before, *self.remaining(*more)], self._results, self._uses
        self._results, self._uses = [], []
        try:
            return (await self._send(writes))[-1]
        except Unavailable:
            self._results, self._uses = results + self._results, uses + self._uses
            raise

    async def _after(self, stepped: Stepped) -> None:
        self.cancel_asked = self.cancel_asked or stepped.cancel
        if stepped.cancel:
            self._job.cancel()
        if stepped.waiting:
            drained = (await self._send([Drain(run=self._run.id, fence=self._run.fence, rows=(rows.end_row(),))]))[0]
            assert isinstance(drained, Drained)
            self.news += [json.decode_trusted(draft.body) for draft in drained.items]

    async def _send(self, writes: Sequence[Write]) -> tuple[Receipt, ...]:
        now = self._backend.clock.wall_ms()
        batch = Batch(id=ids.new(ids.home(self._run.id), now), scope=self._scope, at=now, writes=tuple(writes))
        return await persist(self._backend, batch)

    def doing(self, key: str) -> Doing:
        """The effect key is derived, not stored: every node and every attempt finds the same one."""
        derived = hmac.digest(self._backend.secret, self._run.id + key.encode(), hashlib.sha256).hex()
        return Doing(key=derived, attempt=self._run.attempt, desk=Changes(origin=f"agent:{self._run.agent}"))

    def _name(self, name: str) -> str:
        """Caller's name and its ordinal: never completion order."""
        if not 0 < len(name) <= limits.NAME_CHARS_MAX:
            raise InvalidInput(f"A step's name has 1 to {limits.NAME_CHARS_MAX} characters.", code="step_name_invalid")
        self._seen[name] += 1
        return f"{name}#{self._seen[name]}"


def digest(arguments: Any) -> bytes:
    """What makes two sets of arguments the same; key order does not count."""
    return hashlib.sha256(msgspec.json.encode(arguments, order="deterministic")).digest()
