"""The Python face: an open store in the words a program needs. Ids are text here, items and slots plain values.

    async with await stateroom.open("sqlite:///shop-data") as room:
        reply = await room.turn("I need black running shoes, size 10")
        again = await room.turn("show me cheaper ones", conversation=reply.conversation)

Every failure is a StateroomError with a stable `code`; `stateroom.blocking` is the same for programs without a loop.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Any, cast, get_args

import msgspec

from stateroom import given, ids, limits, stack
from stateroom.batch import ClaimKey
from stateroom.conversation.model import ItemQuery
from stateroom.desk import Desk
from stateroom.errors import Gone, InvalidInput, KeyReused, Known, NotFound
from stateroom.flows.agent import Agent, Turn, text_of
from stateroom.flows.fork import fork
from stateroom.flows.turn import Answer, Ticket, TurnRequest
from stateroom.hosting.callable import CallableAgent
from stateroom.ids import NIL
from stateroom.principal import LOCAL, Scope
from stateroom.replies import Asked, ConversationHead, Reply, asked, head_of, shown
from stateroom.run.model import DoubleText, Run
from stateroom.session.changes import Changes
from stateroom.session.model import OpenSession, Session
from stateroom.wire import json
from stateroom.wire.json import from_plain as encoded

__all__ = ["AgentLike", "Changes", "Desk", "Room", "agent_of", "double_text", "open"]

AgentLike = Agent | Callable[[Turn], Any]


class Room:
    """An open store. Use as an async context manager, or `close` it."""

    def __init__(self, stateroom: stack.Stateroom, scope: Scope) -> None:
        self.stack = stateroom  # the layers below, for what this face leaves out
        self.scope = scope

    async def __aenter__(self) -> Room:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        await self.close()

    async def close(self, *, grace_s: float = 5.0) -> None:
        """Let running turns end within `grace_s`, then close the store; what is left is recovered at the next start."""
        await self.stack.close(grace_s=grace_s)

    # ── turns ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def turn(
        self,
        input: str | Sequence[Mapping[str, Any]],
        *,
        conversation: str = "",
        previous: str = "",
        agent: str = "",
        key: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Reply:
        """Take a turn and wait for its end.

        `input` is what the user says, or items. Without a place it begins a new conversation; `conversation` goes on
        with one, `previous` (a response or run id) continues from that answer, forking if others came after it. `key`
        makes a retry safe: the same key gives the same answer. `options` reach the agent as they are (model,
        instructions, metadata, …); `store: False` keeps no content, `double_text` says what to do while another turn is
        active (enqueue, reject, merge, latest, interrupt, parallel), `deadline_s` by when it has to end. A turn that
        fails is a Reply with that status, one that waits for somebody has requires_action.
        """
        place = _place(conversation, previous)
        ticket = await self._take(input, place, agent=agent, key=key, options=options or {})
        return await self._reply(await self.stack.turns.outcome(self.scope, ticket.run.id, or_waiting=True))

    async def stream(
        self,
        input: str | Sequence[Mapping[str, Any]],
        *,
        conversation: str = "",
        previous: str = "",
        agent: str = "",
        key: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Like `turn`, and yields the turn's events as they come: `response.output_text.delta` and so on, up to the
        terminal one. A reader that goes away does not stop the turn: `follow` it again from any number."""
        asked = {**(options or {}), "stream": True}
        place = _place(conversation, previous)
        ticket = await self._take(input, place, agent=agent, key=key, options=asked)
        async with aclosing(self.follow(ids.text("run", ticket.run.id))) as events:
            async for event in events:
                yield event

    async def follow(self, run: str, *, after: int = -1) -> AsyncGenerator[dict[str, Any], None]:
        """A run's events with a `sequence_number` greater than `after`, live until its end."""
        row = await self.stack.runs.get(self.scope, ids.parse_any("run", run))
        start = self.stack.followers.at(row, given.whole(after, "after", least=-1) + 1)
        async for found in self.stack.followers.events(self.scope, row.id, start):
            if found is not None:
                yield found[1]

    async def run(self, run: str) -> Reply:
        """A run as it stands now, by its run or response id."""
        row = await self.stack.runs.get(self.scope, ids.parse_any("run", run))
        return await self._reply(Answer(run=row, outputs=await self.stack.turns.outputs(self.scope, row) if row.ended else []))

    async def reply(self, run: str, *, timeout_s: float | None = None) -> Reply:
        """Wait for the end of a run, or until it waits for somebody. TimeoutError after `timeout_s`; the run goes on."""
        waited = self.stack.turns.outcome(self.scope, ids.parse_any("run", run), timeout_s=timeout_s, or_waiting=True)
        return await self._reply(await waited)

    async def resolve(self, action: Asked, answer: Mapping[str, Any]) -> None:
        """Answer what a run waits for: {"approved": True}, {"answer": …}, {"output": …}, {"outcome": "succeeded",
        "result": …}, or what a handoff decided. The run goes on at once where its agent is. Conflict when somebody
        answered differently before, Gone when it is too late."""
        run, key, digest = ids.parse("run", action.run), ids.parse("action", action.id), bytes.fromhex(action.digest)
        await self.stack.answers.resolve(self.scope, run, key, resolution=encoded(answer), digest=digest)

    async def handed_off(self, queue: str, *, limit: int = 100) -> list[Asked]:
        """What was handed to a queue and nobody has decided, oldest first."""
        return [asked(action) for action in await self.stack.answers.queue(self.scope, queue, limit=limit)]

    async def cancel(self, run: str) -> Reply:
        """Ask a run to end. One that has ended is returned as it is."""
        row = await self.stack.cancels.cancel(self.scope, ids.parse_any("run", run))
        return await self.run(ids.text("run", row.id))

    # ── conversations ───────────────────────────────────────────────────────────────────────────────────────────────

    async def create(
        self,
        items: Sequence[Mapping[str, Any]] = (),
        *,
        metadata: Mapping[str, str] | None = None,
        subject: str = "",
        key: str | None = None,
    ) -> ConversationHead:
        """A new conversation, optionally with first items. With a `key` a retry finds what the first try made."""
        conversations = self.stack.conversations
        bodies, tags = [encoded(item) for item in items], encoded(metadata or {})
        id_ = conversations.new_id()
        subject = given.text(subject, "subject")
        claim = None if key is None else self._claim("conversation", given.key(key), id_, (tags, subject.encode(), *bodies))
        try:
            made = await conversations.create(self.scope, metadata=tags, items=bodies, subject=subject, claim=claim, id=id_)
        except Known as known:
            if claim is not None and known.fingerprint != claim.fingerprint:
                raise KeyReused("This idempotency key was used for another request.", param="key") from known
            made = await conversations.get(self.scope, known.ref)
        return head_of(made)

    async def conversation(self, conversation: str) -> ConversationHead:
        """NotFound when there is none."""
        return head_of(await self.stack.conversations.get(self.scope, ids.parse("conversation", conversation)))

    async def conversations(self, *, limit: int = limits.PAGE_ITEMS_DEFAULT, after: str = "") -> list[ConversationHead]:
        """Newest first; `after` is the last one of the page before."""
        start = ids.parse("conversation", after) if after else NIL
        return [head_of(found) for found in await self.stack.conversations.recent(self.scope, after=start, limit=limit)]

    async def items(self, conversation: str) -> AsyncGenerator[dict[str, Any], None]:
        """Everything that was said and done, oldest first, each with its `id` and `type`."""
        branch, seq = ids.parse("conversation", conversation), 0
        await self.stack.conversations.branch(self.scope, branch)
        while True:
            query = ItemQuery(branch=branch, after=seq, limit=limits.READ_ITEMS_MAX)
            page = await self.stack.conversations.items(self.scope, query)
            for item in page:
                yield shown(item)
            if len(page) < limits.READ_ITEMS_MAX:
                return
            seq = page[-1].seq

    async def append(self, conversation: str, items: Sequence[Mapping[str, Any]], *, expected_tail: int | None = None) -> int:
        """Items at the end, all or none; returns the number of the last one. Conflict when `expected_tail` is given and
        something else was appended meanwhile."""
        branch = ids.parse("conversation", conversation)
        bodies = [encoded(item) for item in items]
        tail = given.whole_or_none(expected_tail, "expected_tail")
        appended, _ = await self.stack.conversations.append(self.scope, branch, bodies, expected_tail=tail)
        return appended.tail

    async def fork(self, conversation: str, *, after: str = "", metadata: Mapping[str, str] | None = None) -> ConversationHead:
        """A new conversation that shares the past up to and including the item `after` (default: all of it)."""
        item = ids.parse_any("item", after) if after else NIL
        parent, tags = ids.parse("conversation", conversation), encoded(metadata or {})
        return head_of(await fork(self.stack.backend, self.scope, parent, after=item, metadata=tags))

    async def delete(self, conversation: str) -> None:
        """The conversation stops existing for every reader."""
        await self.stack.conversations.delete(self.scope, ids.parse("conversation", conversation))

    # ── sessions ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def session(self, session: str, *, agent: str = "") -> Desk:
        """The desk as it is now. NotFound when there is none. With `agent` as that agent sees it, and what it changes is
        changed by it: see `Desk.allow`."""
        found = await self.stack.sessions.get(self.scope, ids.parse("session", session))
        desk = Desk(self.stack, self.scope, found, acting=given.text(agent, "agent"))
        await desk.refresh()
        return desk

    async def open_session(
        self, *, state: Mapping[str, Any] | None = None, subject: str = "", ttl_s: float = 0, max_s: float = 0,
        metadata: Mapping[str, str] | None = None, ephemeral: bool = False,
    ) -> Desk:  # fmt: skip
        """A desk of its own, bound to no conversation. It expires `ttl_s` after the last interaction, and `max_s` after its
        opening at the latest; 0: it does not. `ephemeral`: changes wait for no disk, and a crash of the machine (SQLite) or of
        the database (PostgreSQL) loses what lies on it: then it says Gone `state_lost`."""
        encoded(state or {})
        write = OpenSession(
            id=self.stack.sessions.new_id(), owner=self.scope.principal,
            subject=given.text(subject, "subject") or self.scope.principal, metadata=encoded(metadata or {}),
            ttl_ms=given.ms(ttl_s, "ttl_s", code="lifetime_invalid"), max_ms=given.ms(max_s, "max_s", code="lifetime_invalid"),
            durability="ephemeral" if ephemeral else "durable",
        )  # fmt: skip
        return await self._desk(await self.stack.sessions.open_as(self.scope, write, slots=state))

    async def end_session(self, session: str) -> None:
        """No more patches; reading it answers `gone`. Also of one that is lost: its conversation may have another then."""
        await self.stack.sessions.end(self.scope, ids.parse("session", session))

    def prefetch(self, session: str) -> None:
        """The desk will be wanted soon: it is fetched in the background."""
        self.stack.prefetch.hint(self.scope, ids.parse("session", session))

    def stats(self) -> dict[str, int]:
        """How this process's cache of desks has done: `hits`, `deltas`, `misses`, and what was fetched ahead (`ahead`, of
        which `ahead_hits` were asked for and `ahead_waste` were not)."""
        return cast("dict[str, int]", msgspec.to_builtins(self.stack.hydrator.counters))

    async def _desk(self, session: Session) -> Desk:
        desk = Desk(self.stack, self.scope, session)
        await desk.refresh()
        return desk

    # ── inside ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _take(
        self, input: str | Sequence[Mapping[str, Any]], place: tuple[bytes, bytes], *, agent: str, key: str | None,
        options: Mapping[str, Any],
    ) -> Ticket:  # fmt: skip
        items = [{"type": "message", "role": "user", "content": input}] if isinstance(input, str) else input
        stored = options.get("store")
        if stored is not None and not isinstance(stored, bool):
            raise InvalidInput("'store' is True or False.", code="wrong_type", param="store")
        name = agent or self.stack.default_agent
        request = TurnRequest(
            agent=name,
            input=tuple(encoded(item) for item in items),
            options=encoded({"model": name, **options}),
            conversation=place[0],
            previous=place[1],
            key=None if key is None else given.key(key),
            listed=True,
            policy=double_text(options.get("double_text", "enqueue")),
            deadline_ms=given.deadline_ms(options.get("deadline_s"), stored=stored is not False),
            stored=stored is not False,
        )
        return await self.stack.turns.take(self.scope, request)

    async def _reply(self, answer: Answer) -> Reply:
        run = answer.run
        items, waits = [shown(item) for item in answer.outputs], run.status == "requires_action"
        return Reply(
            text="\n".join(text for item in items if item["type"] == "message" and (text := text_of(item))),
            items=items,
            conversation=ids.text("conversation", run.conversation) if run.conversation != NIL else "",
            session=ids.text("session", run.session) if run.session != NIL else "",
            run=ids.text("run", run.id),
            response=ids.text("response", run.id),
            status=run.status,
            error=json.decode_trusted(run.error) if run.error else None,
            slots=await self._slots(run),
            usage=json.decode_trusted(run.usage) if run.usage else {},
            timings=answer.timings,
            actions=[asked(one) for one in await self.stack.answers.pending(self.scope, run.id)] if waits else [],
        )

    async def _slots(self, run: Run) -> dict[str, Any]:
        if run.session == NIL:
            return {}
        try:
            return await self.stack.sessions.state(self.scope, run.session)
        except (NotFound, Gone):  # the answer outlives its desk
            return {}

    def _claim(self, operation: str, key: str, ref: bytes, asked: Sequence[bytes] = ()) -> ClaimKey:
        home = ids.key_home(self.scope.tenant, self.scope.principal, key)
        fingerprint = hashlib.sha256(b"\n".join(asked)).digest()
        return ClaimKey(operation=operation, key=key, fingerprint=fingerprint, ref=ref, home=home)


async def open(url: str = "sqlite:///stateroom-data", *, agents: Iterable[AgentLike] = (), scope: Scope = LOCAL) -> Room:
    """Open a store. `url` as in `stateroom.stack.open`; `agents` answer turns, the first by default: agents, or plain
    async functions and generators, which answer under their own name. Without any the demo assistant `clerk` answers."""
    given.text(scope.tenant, "tenant")
    given.text(scope.principal, "principal")
    return Room(await stack.open(url, agents=_agents(agents)), scope)


def _agents(given: Iterable[AgentLike]) -> list[Agent]:
    agents = [agent_of(one) for one in given]
    names = [agent.name for agent in agents]
    if len(set(names)) < len(names):
        raise InvalidInput(f"Two agents have one name: {', '.join(sorted(names))}.", code="agent_named_twice", param="agents")
    return agents


def agent_of(given: AgentLike) -> Agent:
    """An agent, or an async function made one under its own name."""
    if hasattr(given, "work") and hasattr(given, "name"):
        return cast(Agent, given)
    if callable(given):
        return CallableAgent(getattr(given, "__name__", type(given).__name__), given)
    raise InvalidInput(f"{type(given).__name__} is no agent: give an Agent or an async function.", code="agent_invalid")


def double_text(given: Any) -> DoubleText:
    """One of the six policies. InvalidInput for anything else."""
    for policy in get_args(DoubleText):
        if given == policy:
            return policy  # type: ignore[no-any-return]
    raise InvalidInput(
        f"'double_text' is one of {', '.join(get_args(DoubleText))}.", code="double_text_unknown", param="double_text"
    )


def _place(conversation: str, previous: str) -> tuple[bytes, bytes]:
    """Where a turn goes, as ids; two NILs: nowhere yet."""
    at = ids.parse("conversation", conversation) if conversation else NIL
    return at, ids.parse_any("run", previous) if previous else NIL
