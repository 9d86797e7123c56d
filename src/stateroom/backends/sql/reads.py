"""What a SQL store is asked, in one snapshot each: the read half of a backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from stateroom.backends.sql import conversation, desk_remains, desk_rows, desk_versions, run_read, session, steps
from stateroom.backends.sql.tx import Tx
from stateroom.batch import Draft, KeyRow
from stateroom.conversation import model as c
from stateroom.principal import Scope, operator
from stateroom.run import model as r
from stateroom.run import steps as st
from stateroom.session import model as s
from stateroom.session import remains as rm

T = TypeVar("T")
SYSTEM = operator("", "system")


class SqlReads:
    """Every read of a Backend, over one method that a store brings."""

    async def read(self, scope: Scope, look: Callable[[Tx], T]) -> T:
        """One snapshot of the store, for the time of `look`."""
        raise NotImplementedError

    async def read_list(self, scope: Scope, look: Callable[[Tx], T]) -> T:
        """Like `read`, for lists, which may be a few seconds old where a store has copies of itself."""
        return await self.read(scope, look)

    async def conversation(self, scope: Scope, conversation_: bytes) -> c.Conversation:
        return await self.read(scope, lambda tx: conversation.conversation(tx, conversation_))

    async def conversations(self, scope: Scope, *, after: bytes, limit: int, newest_first: bool = True) -> list[c.Conversation]:
        return await self.read_list(scope, lambda tx: conversation.conversations(tx, after, limit, newest_first))

    async def branch(self, scope: Scope, branch: bytes) -> c.Branch:
        return await self.read(scope, lambda tx: conversation.main(tx, branch))

    async def items(self, scope: Scope, query: c.ItemQuery) -> list[c.Item]:
        return await self.read(scope, lambda tx: conversation.items(tx, query))

    async def item(self, scope: Scope, branch: bytes, item: bytes) -> c.Item:
        return await self.read(scope, lambda tx: conversation.item(tx, branch, item))

    async def session(self, scope: Scope, session_: bytes) -> s.Session:
        return await self.read(scope, lambda tx: session.session(tx, session_))

    async def bound(self, scope: Scope, conversation_: bytes, agent: str) -> s.Session | None:
        return await self.read(scope, lambda tx: session.bound(tx, conversation_, agent))

    async def sessions(self, scope: Scope, *, after: bytes, limit: int) -> list[s.Session]:
        return await self.read_list(scope, lambda tx: session.sessions(tx, after, limit))

    async def slots(self, scope: Scope, session_: bytes, since: int = 0) -> list[s.Slot]:
        return await self.read(scope, lambda tx: session.slots(tx, session_, since))

    async def past(self, scope: Scope, session_: bytes, name: str, limit: int) -> list[s.Slot]:
        return await self.read(scope, lambda tx: session.past(tx, session_, name, limit))

    async def told(self, scope: Scope, session_: bytes, *, after: int, limit: int) -> s.Told:
        return await self.read(scope, lambda tx: desk_versions.told(tx, session_, after=after, limit=limit))

    async def slots_at(self, scope: Scope, session_: bytes, version: int) -> list[s.Slot]:
        return await self.read(scope, lambda tx: desk_versions.slots_at(tx, session_, version))

    async def checkpoints(self, scope: Scope, session_: bytes, limit: int) -> list[s.Checkpoint]:
        return await self.read(scope, lambda tx: desk_versions.checkpoints(tx, session_, limit))

    async def checkpoint_at(self, scope: Scope, session_: bytes, to: str | int) -> s.Checkpoint | None:
        return await self.read(scope, lambda tx: desk_versions.checkpoint_at(tx, session_, to))

    async def head(self, scope: Scope, session_: bytes) -> s.Session:
        return await self.read(scope, lambda tx: desk_rows.row_of(tx, session_))

    async def remains(self, scope: Scope, session_: bytes, part: rm.Part, *, after: rm.Key, limit: int) -> list[rm.Remnant]:
        return await self.read(scope, lambda tx: desk_remains.remains(tx, session_, part, after=after, limit=limit))

    async def entries(self, scope: Scope, session_: bytes, name: str, *, as_of: int | None, limit: int) -> list[s.Entry]:
        return await self.read(scope, lambda tx: session.entries(tx, session_, name, as_of=as_of, limit=limit))

    async def document(self, scope: Scope, session_: bytes, name: str) -> s.Document:
        return await self.read(scope, lambda tx: session.document(tx, session_, name))

    async def run(self, scope: Scope, run: bytes) -> r.Run:
        return await self.read(scope, lambda tx: run_read.run(tx, run))

    async def runs(self, scope: Scope, query: r.RunQuery) -> list[r.Run]:
        return await self.read_list(scope, lambda tx: run_read.runs(tx, query))

    async def key(self, scope: Scope, operation: str, key: str, home: int) -> KeyRow | None:
        return await self.read(scope, lambda tx: run_read.key(tx, operation, key, home))

    async def inbox(self, scope: Scope, run: bytes) -> list[Draft]:
        def read(tx: Tx) -> list[Draft]:
            run_read.run(tx, run)
            return run_read.inbox(tx, run)

        return await self.read(scope, read)

    async def log(self, scope: Scope, run: bytes, *, after: int, limit: int) -> list[r.LogRow]:
        return await self.read(scope, lambda tx: run_read.log(tx, run, after, limit))

    async def steps(self, scope: Scope, run: bytes) -> list[st.Step]:
        return await self.read(scope, lambda tx: steps.steps(tx, run))

    async def actions(self, scope: Scope, query: st.ActionQuery) -> list[st.Action]:
        return await self.read(scope, lambda tx: steps.actions(tx, query))

    async def heads(self, scope: Scope, runs: list[bytes]) -> dict[bytes, tuple[int, bool]]:
        return await self.read(scope, lambda tx: run_read.heads(tx, runs))

    async def due(self, kind: str, until: int, limit: int) -> list[r.Due]:
        return await self.read(SYSTEM, lambda tx: run_read.due(tx, kind, until, limit))

    async def run_of_action(self, tenant: str, action: bytes) -> bytes:
        return await self.read(operator(tenant, "system"), lambda tx: run_read.due_run(tx, action))

    async def leased_by(self, owner: str, limit: int) -> list[r.Due]:
        return await self.read(SYSTEM, lambda tx: run_read.leased_by(tx, owner, limit))

    async def owners(self) -> list[str]:
        return await self.read(SYSTEM, run_read.owners)
