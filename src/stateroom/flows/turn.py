"""A turn: accept and claim → hydrate → build → work → finish. Two commits, whatever the length of the conversation.

The work belongs to this object, not to the request that asked for it: a caller that goes away changes nothing (D9).
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Coroutine, Mapping
from typing import Any

import msgspec
from msgspec import structs
from msgspec.structs import replace

from stateroom import ids, limits
from stateroom.backends.base import Backend
from stateroom.batch import Batch, Draft, Receipt
from stateroom.connection.service import wait_for
from stateroom.conversation.model import CreateConversation, Item, ItemQuery, Kind
from stateroom.conversation.rules import draft
from stateroom.conversation.service import parsed
from stateroom.errors import Conflict, Gone, InvalidInput, KeyReused, Known, LimitExceeded, NotFound, Unavailable
from stateroom.flows.agent import Agent
from stateroom.flows.doubt import Doubts
from stateroom.flows.failpoint import Failpoints
from stateroom.flows.hydrate import Hydrator, placed
from stateroom.flows.job import Job, Work, on_behalf, superseded
from stateroom.flows.work import Workshop
from stateroom.ids import NIL
from stateroom.principal import Scope
from stateroom.run.model import Accepted, AcceptTurn, DoubleText, Finish, Finished, Run, TurnKey
from stateroom.wire import json, rows

OPERATION = "turn"
CANCELLED_ERROR = json.encode({"code": "cancelled", "message": "Cancelled on request."})
NEVER_KNOWN = 2**62  # later than any row: such a key is taken over, never Known
UNKEYED = "turn.unkeyed"  # the operation under which turns without a key are remembered, by their fingerprint


class TurnRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller asks for. `input` are JSON objects as they came; `options` the request without its input.

    At most one of `conversation` and `previous` (a response's run id) is given; neither starts a bare chain, or with
    `listed` a conversation that is listed like one made by hand. `retry_ms`
    is > 0 when the client says that it repeats a request that had no key: its first try is looked for that far back.
    `prior` are items of earlier turns that nobody stored either: the agent sees them before the input of this one.
    """

    agent: str
    input: tuple[bytes, ...]
    options: bytes = b"{}"
    conversation: bytes = NIL
    previous: bytes = NIL
    session: bytes = NIL
    subject: str = ""
    listed: bool = False
    key: str | None = None
    retry_ms: int = 0
    stored: bool = True
    prior: tuple[bytes, ...] = ()  # only when it is not stored
    policy: DoubleText = "enqueue"
    deadline_ms: int = 0


class Answer(msgspec.Struct, frozen=True):
    """A run and what it put out. `timings` in ms: accept, hydrate, window, model, commit (empty when it was read back)."""

    run: Run
    outputs: list[Item]
    timings: Mapping[str, float] = {}


class Ticket(msgspec.Struct, frozen=True):
    """A turn was taken on. `replayed` says that its key was known and `run` is what it made then."""

    run: Run
    replayed: bool
    accept_ms: float = 0.0


class Turns:
    """Takes turns for every agent of this process and works on them."""

    def __init__(self, backend: Backend, agents: Mapping[str, Agent], *, owner: str, failpoints: Failpoints) -> None:
        self._backend = backend
        self._agents = agents
        self._owner = owner
        self._failpoints = failpoints
        self.hydrator = Hydrator(backend)
        self._chores: set[asyncio.Task[None]] = set()
        self.workshop = Workshop(backend, self.hydrator, agents, owner=owner, failpoints=failpoints)
        self.doubts = Doubts(backend, self.workshop, owner=owner)

    async def take(self, scope: Scope, request: TurnRequest) -> Ticket:
        """Make the turn durable and start it if its branch is idle. Returns at the first durable moment.

        Raises KeyReused (one key, two requests), NotFound, Busy, InvalidInput; then nothing was written.
        """
        if request.agent not in self._agents:
            raise InvalidInput(
                f"No agent is called {request.agent[:80]!r}; there are {', '.join(sorted(self._agents))}.",
                code="agent_unknown", param="model",
            )  # fmt: skip
        accept, *before = self._writes(scope, request)
        started, now = asyncio.get_running_loop().time(), self._wall()
        batch = Batch(id=ids.new(ids.home(accept.run), now), scope=scope, at=now, writes=(*before, accept))
        try:
            receipts = await self._backend.commit(batch)
        except Known as known:
            ticket = await self._known(scope, known, accept.key)
            if ticket is None:  # what it seemed to repeat is over and was answered: this is a turn of its own
                return await self.take(scope, structs.replace(request, retry_ms=0))
            return ticket
        except Unavailable as away:
            if away.reason == "store_away":
                self.doubts.about(batch, accept.run)
            raise
        accept_ms = (asyncio.get_running_loop().time() - started) * 1000
        await self._failpoints.hit("turn.accepted")
        return self._start(scope, request, receipts[-1], inputs=accept.input, accept_ms=accept_ms)

    def outcome(
        self, scope: Scope, run: bytes, *, timeout_s: float | None = None, or_waiting: bool = False
    ) -> Coroutine[Any, Any, Answer]:
        """Wait for the end of a run and return what it put out. TimeoutError after `timeout_s`; the run goes on.
        `or_waiting`: also return when it waits for somebody to answer (requires_action); it has put out nothing then.

        The run is looked up when this is called, not when it is awaited: an answer that is not stored is still there.
        """
        job = self.workshop.job(run)
        return self._outcome(scope, run, job, timeout_s=timeout_s, or_waiting=or_waiting)

    async def _outcome(self, scope: Scope, run: bytes, job: Job | None, *, timeout_s: float | None, or_waiting: bool) -> Answer:
        def enough(row: Run) -> bool:
            return row.ended or (or_waiting and row.status == "requires_action")

        async with asyncio.timeout(timeout_s):
            if job is not None:
                done = await job.done()
                if done is not None:
                    return Answer(run=done.run, outputs=done.outputs, timings=done.timings)
            row = await wait_for(lambda: self._backend.run(scope, run), enough, self._backend.wakeups, topic=run)
        if row.merged_into != NIL:  # its input was answered by the run that took it in
            return await self.outcome(scope, row.merged_into, timeout_s=timeout_s, or_waiting=or_waiting)
        return Answer(run=row, outputs=await self.outputs(scope, row))

    async def outputs(self, scope: Scope, run: Run) -> list[Item]:
        """The items a run put into the record."""
        if run.branch == NIL or run.out_hi <= run.in_hi or not run.stored:
            return []
        query = ItemQuery(branch=run.branch, after=run.in_hi, before=run.out_hi + 1, limit=limits.READ_ITEMS_MAX, run=run.id)
        return await self._backend.items(scope, query)

    async def inputs(self, scope: Scope, run: Run) -> list[Item]:
        """The items a run was given: from the record, or from the inbox while it waits."""
        if run.fence == 0:
            return placed(run, await self._backend.inbox(scope, run.id), after=run.in_hi, at=run.created_at)
        query = ItemQuery(branch=run.branch, after=run.in_lo, before=run.in_hi + 1, limit=limits.READ_ITEMS_MAX, run=run.id)
        return await self._backend.items(scope, query)

    def _writes(self, scope: Scope, request: TurnRequest) -> tuple[AcceptTurn] | tuple[AcceptTurn, CreateConversation]:
        """The accept, and the chain it starts when it has no place yet."""
        if request.conversation != NIL and request.previous != NIL:
            raise InvalidInput("Give 'conversation' or 'previous_response_id', not both.", code="place_given_twice")
        if not request.stored and json.decode_trusted(request.options).get("background"):
            raise InvalidInput("A background turn must be stored: nobody waits for its answer.", code="background_not_stored")
        if len(request.input) > limits.APPEND_ITEMS_MAX:
            raise LimitExceeded(f"One turn takes {limits.APPEND_ITEMS_MAX} items.", code="too_many_items", param="input")
        chain = request.stored and request.conversation == NIL and request.previous == NIL
        context = next((id for id in (request.conversation, request.previous) if id != NIL), NIL)
        home = ids.home(context) if context != NIL else ids.new_home()
        now, subject = self._wall(), request.subject or scope.principal
        inputs = tuple(draft(ids.new(home, now), parsed(body), body) for body in request.input)
        conversation = ids.new(home, now) if chain else request.conversation
        accept = AcceptTurn(
            run=ids.new(home, now),
            agent=request.agent,
            owner=scope.principal,
            subject=subject,
            conversation=conversation,
            previous=request.previous,
            fork=ids.new(home, now),
            session=(request.session if request.session != NIL else ids.new(home, now)) if request.stored else NIL,
            key=self._key(scope, request),
            input=inputs,
            options=request.options if request.stored else b"{}",
            stored=request.stored,
            policy=request.policy,
            deadline_at=self._backend.now() + request.deadline_ms if request.deadline_ms else 0,
            dropped_rows=(rows.end_row(),),
            queue_max=limits.QUEUE_TURNS_MAX,
            claim=self.workshop.lease(),
            claimed_rows=rows.OPENED,
            queued_rows=rows.QUEUED,
        )
        if not chain:
            return (accept,)
        kind: Kind = "managed" if request.listed else "chain"
        create = CreateConversation(id=conversation, owner=scope.principal, subject=subject, kind=kind, agent=request.agent)
        return accept, create

    def _key(self, scope: Scope, request: TurnRequest) -> TurnKey:
        print_ = fingerprint(request)
        key = request.key if request.key is not None else print_.hex()
        home = ids.key_home(scope.tenant, scope.principal, key)
        if request.key is not None:
            return TurnKey(operation=OPERATION, key=key, fingerprint=print_, home=home)
        # A turn without a key is a new turn, whatever the clocks say, unless its client says that it repeats one.
        window = min(request.retry_ms, limits.RETRY_ATTACH_MS_MAX)
        renew_before = self._wall() - window if window else NEVER_KNOWN
        return TurnKey(operation=UNKEYED, key=key, fingerprint=print_, home=home, renew_before=renew_before)

    async def _known(self, scope: Scope, known: Known, key: TurnKey | None) -> Ticket | None:
        """The run that the key made. None for a repeated request without a key whose likely first try ended too long
        ago to be the one: a client comes back within its back-off, "yes" is said again later."""
        if key is not None and known.fingerprint != key.fingerprint:
            raise KeyReused("This idempotency key was used for another request.", param="Idempotency-Key")
        try:
            run = await self._backend.run(scope, known.ref)
        except NotFound as missing:
            raise Gone("The answer under this key was deleted.", code="answer_deleted") from missing
        unkeyed = key is not None and key.operation == UNKEYED
        if unkeyed and run.ended and self._wall() - run.finished_at > limits.RETRY_AFTER_END_MS:
            return None
        return Ticket(run=run, replayed=True)

    def _start(
        self, scope: Scope, request: TurnRequest, accepted: Receipt, *, inputs: tuple[Draft, ...], accept_ms: float
    ) -> Ticket:
        assert isinstance(accepted, Accepted)
        run = accepted.run if request.stored else replace(accepted.run, options=request.options)  # known here, kept nowhere
        if run.status == "in_progress":
            self.workshop.start(
                Work(
                    scope=on_behalf(scope.tenant, run), run=run, revision=accepted.revision,
                    session_version=accepted.session_version, inputs=inputs, accept_ms=accept_ms,
                    prior=tuple(draft(ids.new(ids.home(run.id), run.created_at), parsed(body), body) for body in request.prior),
                )
            )  # fmt: skip
        if accepted.interrupted != NIL:
            self._interrupt(scope, accepted.interrupted)
        return Ticket(run=run, replayed=False, accept_ms=accept_ms)

    def _interrupt(self, scope: Scope, run: bytes) -> None:
        """The run that has to give way: its worker is told, and ended over its head if it does not listen (P12)."""
        task = asyncio.create_task(self.give_way(scope, run), name=f"interrupt {run.hex()}")
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)

    async def give_way(self, scope: Scope, run: bytes) -> None:
        """Wait for a cancelled run to end; end it when its worker does not."""
        if (job := self.workshop.job(run)) is not None:
            job.cancel()
        try:
            await self.outcome(scope, run, timeout_s=limits.CANCEL_GRACE_MS / 1000)
        except TimeoutError:
            await self._end_over(scope, run)

    async def _end_over(self, scope: Scope, run: bytes) -> None:
        now = self._wall()
        lease = self.workshop.lease()
        row = await self._backend.run(scope, run)
        interrupted = superseded(row)
        finish = Finish(
            run=run, fence=None, status="cancelled", error=row.error if interrupted else CANCELLED_ERROR, keep_input=interrupted,
            rows=(rows.end_row(),), next=lease, next_rows=rows.STARTED, compact_ms=limits.LOG_MS,
        )  # fmt: skip
        try:
            batch = Batch(id=ids.new(ids.home(run), now), scope=scope, at=now, writes=(finish,))
            finished = (await self._backend.commit(batch))[0]
        except Conflict:  # it ended in between
            return
        assert isinstance(finished, Finished)
        if finished.next is not None:
            self.workshop.go_on(scope, finished.next)

    def _wall(self) -> int:
        return self._backend.clock.wall_ms()


def fingerprint(request: TurnRequest) -> bytes:
    """What makes two requests the same: everything but how the answer travels. Key order and spacing do not count."""
    options = json.decode_trusted(request.options)
    for transport in ("stream", "stream_options", "background"):
        options.pop(transport, None)
    parts = [
        request.agent,
        request.conversation.hex(),
        request.previous.hex(),
        options,
        [json.decode_trusted(i) for i in request.input],
    ]
    return hashlib.sha256(msgspec.json.encode(parts, order="deterministic")).digest()[:16]
