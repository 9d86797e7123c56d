"""Sentences for tests: an `Actor` opens, appends, asks, answers and reads through one handle of a store.

Each method commits one batch (or reads) and gives the receipt back; `refusal` gives the error instead. All ids share
one home: what is made in an object's context inherits its home (D3).
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar

from stateroom import ids
from stateroom.backends.base import Backend
from stateroom.batch import Batch, Draft, Receipt, Write
from stateroom.conversation import rules
from stateroom.conversation.model import (
    Append,
    Appended,
    CreateConversation,
    DeleteItem,
    Fork,
    Forked,
    Item,
    ItemQuery,
    Kind,
)
from stateroom.errors import StateroomError
from stateroom.ids import NIL
from stateroom.limits import LEASE_MS
from stateroom.principal import Scope, own
from stateroom.run.model import (
    Accepted,
    AcceptTurn,
    Cancel,
    Cancelled,
    Claim,
    Claimed,
    Drained,
    Finish,
    Finished,
    Lease,
    LogRow,
    NewRow,
    Paused,
    Requeue,
    Requeued,
    Resolved,
    Run,
    Status,
    TurnKey,
)
from stateroom.run.steps import Action, ActionKind, ActionQuery, Drain, Pause, RecordSteps, Resolve, Step, Stepped
from stateroom.session.model import OpenSession, PatchSlots, SlotPatch
from stateroom.session.receipts import Patched
from stateroom.wire import json

R = TypeVar("R", bound=Receipt)

HOME = 7
ACME = own("acme", "alice")
WORKER = Lease("worker-1", LEASE_MS)
OTHER_WORKER = Lease("worker-2", LEASE_MS)


def row(kind: str = "event", count: int = 1, body: bytes = b"") -> NewRow:
    """A log entry on its way in."""
    return NewRow(kind=kind, count=count, body=body)


def turn_key(key: str, *, principal: str = "alice", fingerprint: bytes = b"same", renew_before: int = 0) -> TurnKey:
    home = ids.key_home("acme", principal, key)
    return TurnKey(operation="turn", key=key, fingerprint=fingerprint, home=home, renew_before=renew_before)


def text_of(item: Item | Draft) -> str:
    """What a message of this kit says; a purged body says nothing."""
    return str(json.decode_trusted(item.body).get("content", ""))


async def refusal(act: Awaitable[Any]) -> StateroomError:
    """The error that this act must end with."""
    try:
        done = await act
    except StateroomError as error:
        return error
    raise AssertionError(f"this should have been refused, and did {done!r}")


def facts(error: StateroomError) -> tuple[type[StateroomError], str, dict[str, Any]]:
    """What a caller can tell one refusal from another by, apart from the words."""
    return type(error), error.reason, error.facts


class Actor:
    """Somebody at one handle."""

    def __init__(self, store: Backend, scope: Scope = ACME) -> None:
        self.store = store
        self.scope = scope

    # ── batches ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def new_id(self) -> bytes:
        return ids.new(HOME, self.store.clock.wall_ms())

    def batch(self, *writes: Write) -> Batch:
        return Batch(id=self.new_id(), scope=self.scope, at=self.store.clock.wall_ms(), writes=writes)

    async def does(self, *writes: Write) -> tuple[Receipt, ...]:
        """One batch."""
        return await self.store.commit(self.batch(*writes))

    async def gets(self, kind: type[R], write: Write) -> R:
        """One write, and its receipt of the kind it has to have."""
        (receipt,) = await self.does(write)
        assert isinstance(receipt, kind)
        return receipt

    def says(self, text: str, role: str = "user") -> Draft:
        """A message."""
        item = {"type": "message", "role": role, "content": text}
        return rules.draft(self.new_id(), item, json.encode(item))

    def talk(self, texts: Sequence[str], role: str = "user") -> tuple[Draft, ...]:
        return tuple(self.says(text, role) for text in texts)

    # ── conversations ───────────────────────────────────────────────────────────────────────────────────────────────

    async def opens_conversation(self, *texts: str, kind: Kind = "managed") -> bytes:
        """A conversation with these items in it; its id is its main branch's."""
        new = CreateConversation(id=self.new_id(), owner=self.scope.principal, subject="someone", kind=kind)
        await self.does(new, *([Append(branch=new.id, items=self.talk(texts))] if texts else []))
        return new.id

    async def appends(self, branch: bytes, *texts: str, expected_tail: int | None = None) -> Appended:
        return await self.gets(Appended, Append(branch=branch, items=self.talk(texts), expected_tail=expected_tail))

    async def forks(self, parent: bytes, up_to: int) -> bytes:
        """A branch of the same conversation."""
        return (await self.gets(Forked, Fork(id=self.new_id(), parent=parent, up_to=up_to))).id

    async def forks_away(self, parent: bytes, up_to: int) -> bytes:
        """A conversation of its own."""
        id_ = self.new_id()
        return (await self.gets(Forked, Fork(id=id_, parent=parent, up_to=up_to, conversation=id_))).id

    async def deletes(self, branch: bytes, text: str) -> None:
        """Delete the item that says `text`."""
        item = next(item for item in await self.items(branch) if text_of(item) == text)
        await self.does(DeleteItem(branch=branch, item=item.id))

    async def items(self, branch: bytes, *, limit: int = 1000, **query: Any) -> list[Item]:
        return await self.store.items(self.scope, ItemQuery(branch=branch, limit=limit, **query))

    async def reads(self, branch: bytes, **query: Any) -> list[str]:
        """What the items say, in the order they come."""
        return [text_of(item) for item in await self.items(branch, **query)]

    async def marks(self, branch: bytes) -> list[tuple[str, str]]:
        """Text and mark of every item."""
        return [(text_of(item), item.mark) for item in await self.items(branch)]

    # ── turns ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def turn(self, *texts: str, **fields: Any) -> AcceptTurn:
        """A turn to accept; it wants to start at once unless `claim` says otherwise."""
        given = {"agent": "clerk", "owner": self.scope.principal, "subject": "someone", "claim": WORKER, **fields}
        return AcceptTurn(run=given.pop("run", None) or self.new_id(), input=self.talk(texts), **given)

    async def asks(self, conversation: bytes, *texts: str, **fields: Any) -> Accepted:
        return await self.gets(Accepted, self.turn(*texts, conversation=conversation, **fields))

    async def follows(self, previous: Run, *texts: str, **fields: Any) -> Accepted:
        """A turn after a previous response."""
        return await self.gets(Accepted, self.turn(*texts, previous=previous.id, fork=self.new_id(), **fields))

    async def answers(self, run: Run, *texts: str, status: Status = "completed", **fields: Any) -> Finished:
        """The end of a run by its worker."""
        outputs = self.talk(texts, "assistant")
        return await self.gets(Finished, Finish(run=run.id, fence=run.fence, status=status, outputs=outputs, **fields))

    async def ends(self, run: Run, status: Status, **fields: Any) -> Finished:
        """The end of a run by somebody who does not hold it."""
        return await self.gets(Finished, Finish(run=run.id, fence=None, status=status, **fields))

    async def claims(self, run: Run, lease: Lease = WORKER) -> Claimed:
        return await self.gets(Claimed, Claim(run=run.id, lease=lease))

    async def cancels(self, run: Run) -> Run:
        return (await self.gets(Cancelled, Cancel(run=run.id, rows=(row("ended"),)))).run

    async def requeues(self, run: Run, *, owner_gone: bool = True, rows: tuple[NewRow, ...] = ()) -> Run:
        return (await self.gets(Requeued, Requeue(run=run.id, fence=run.fence, owner_gone=owner_gone, rows=rows))).run

    # ── steps and actions ───────────────────────────────────────────────────────────────────────────────────────────

    async def records(self, run: Run, *steps: Step, **fields: Any) -> Stepped:
        return await self.gets(Stepped, RecordSteps(run=run.id, fence=run.fence, steps=steps, **fields))

    async def steps(self, run: Run) -> list[Step]:
        return await self.store.steps(self.scope, run.id)

    def question(self, run: Run, key: str = "ask", kind: ActionKind = "input", **fields: Any) -> Action:
        """Something to wait for."""
        return Action(id=self.new_id(), run=run.id, key=key, kind=kind, name=key, **fields)

    async def pauses(self, run: Run, *actions: Action, **fields: Any) -> Run:
        return (await self.gets(Paused, Pause(run=run.id, fence=run.fence, actions=actions, **fields))).run

    async def resolves(self, action: Action, resolution: bytes = b"{}", **fields: Any) -> Run:
        """Answer an action with what it was asked about. The run after it."""
        given = {"run": action.run, "digest": action.digest, **fields}
        return (await self.gets(Resolved, Resolve(action=action.id, resolution=resolution, **given))).run

    async def actions(self, run: Run) -> list[Action]:
        """Everything a run ever asked."""
        return await self.store.actions(self.scope, ActionQuery(run=run.id, pending=False))

    async def drains(self, run: Run) -> Drained:
        return await self.gets(Drained, Drain(run=run.id, fence=run.fence, rows=(row("ended"),)))

    # ── looking ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def run(self, run: Run) -> Run:
        """The row as it is now."""
        return await self.store.run(self.scope, run.id)

    async def due(self, kind: str, until: int) -> list[bytes]:
        """What maintenance would look at."""
        lines = await self.store.due(kind, until, 1000)
        assert [line.at for line in lines] == sorted(line.at for line in lines)
        assert {line.tenant for line in lines} <= {self.scope.tenant}
        return [line.id for line in lines]

    async def log(self, run: Run, *, after: int = 0, limit: int = 1000) -> list[LogRow]:
        return await self.store.log(self.scope, run.id, after=after, limit=limit)

    # ── sessions ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def opens_session(self, *, conversation: bytes = NIL, agent: str = "") -> bytes:
        id_ = self.new_id()
        owner = self.scope.principal
        await self.does(OpenSession(id=id_, owner=owner, subject="someone", conversation=conversation, agent=agent))
        return id_

    async def patches(self, session: bytes, *patches: SlotPatch, **fields: Any) -> int:
        """The session's new version."""
        write = PatchSlots(session=session, patches=patches, by=self.scope.principal, **fields)
        return (await self.gets(Patched, write)).version

    async def sets(self, session: bytes, **values: Any) -> int:
        """Slots by name, whatever they were; None removes one."""
        return await self.patches(session, *(put(name, value) for name, value in values.items()))

    async def desk(self, session: bytes, since: int = 0) -> dict[str, Any]:
        """Slots by name; removed ones are None."""
        slots = await self.store.slots(self.scope, session, since)
        return {slot.name: None if slot.body is None else json.decode_trusted(slot.body) for slot in slots}


def put(name: str, value: Any, expected: int | None = None) -> SlotPatch:
    """A slot's new value; None removes it."""
    return SlotPatch(name=name, body=None if value is None else json.encode(value), expected=expected)
