"""Stateroom: the whole turn flow over its SQLite backend, with an agent that says what the transcript says."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

from bench.peers.base import Peer
from bench.peers.replay import Turn
from stateroom import limits
from stateroom.backends.base import Backend
from stateroom.backends.sqlite.backend import SqliteBackend
from stateroom.conversation.model import ItemQuery
from stateroom.conversation.service import Conversations
from stateroom.flows import agent as contract
from stateroom.flows.failpoint import Failpoints
from stateroom.flows.hydrate import Hydrator
from stateroom.flows.turn import TurnRequest, Turns
from stateroom.principal import LOCAL
from stateroom.wire import json


class Recorded:
    """Reads its window and slots, as a model would have to, and then plays the turn back."""

    name, style = "bench", "responses"

    def __init__(self) -> None:
        self.turns: dict[int, Turn] = {}

    async def work(self, turn: contract.Turn) -> AsyncIterator[contract.AgentEvent]:
        recorded = self.turns.pop(turn.request["n"])
        self.seen = len(turn.window)  # parsed when it is asked for
        for item in recorded.items[inputs(recorded) :]:
            yield contract.Output(item)
        for name, value in recorded.delta.items():
            turn.set(name, value)


class Stateroom(Peer):
    """Hands the agent up to 200 items as it ships, or `window`. `cold`: nothing cached from one turn to the next, as when
    each turn reaches another process."""

    stores = "items, state by slot with its past versions, the run and its event log, the turn key, an audit leaf"
    survives = "power cut, twice a turn: the input before the agent starts, the answer before it is told; WAL, synchronous=FULL"

    def __init__(self, folder: Path, *, cold: bool = False, window: int = limits.WINDOW_ITEMS_MAX) -> None:
        super().__init__(folder)
        self.cold, self.number, self.ids = cold, 0, dict[str, bytes]()
        limits.WINDOW_ITEMS_MAX = window  # type: ignore[misc]  # there is no setting for it yet

    async def store(self) -> Backend:
        return await SqliteBackend.open(self.folder)

    async def open(self) -> None:
        self.backend = await self.store()
        self.agent = Recorded()
        self.flow = Turns(self.backend, {"bench": self.agent}, owner=self.backend.owner, failpoints=Failpoints())
        self.rooms = Conversations(self.backend)

    @property
    def commits(self) -> int:  # type: ignore[override]
        return self.backend.commits

    async def turn(self, conversation: str, turn: Turn) -> None:
        if self.cold:
            self.flow.hydrator = self.flow.workshop._hydrator = Hydrator(self.backend)
        if conversation not in self.ids:
            self.ids[conversation] = (await self.rooms.create(LOCAL)).id
        self.number += 1
        self.agent.turns[self.number] = turn
        request = TurnRequest(
            agent="bench",
            input=tuple(json.encode(item) for item in turn.items[: inputs(turn)]),
            options=b'{"n":%d}' % self.number,
            conversation=self.ids[conversation],
            key=f"turn-{self.number}",
        )
        ticket = await self.flow.take(LOCAL, request)
        answer = await self.flow.outcome(LOCAL, ticket.run.id)
        assert answer.run.status == "completed", answer.run.error

    async def kept(self, conversation: str) -> int:
        branch, found, last = self.ids[conversation], 0, 0
        while items := await self.backend.items(LOCAL, ItemQuery(branch=branch, after=last, limit=limits.READ_ITEMS_MAX)):
            found, last = found + len(items), items[-1].seq
        return found

    async def close(self) -> None:
        await self.flow.workshop.close(0)
        await self.backend.close()


def inputs(turn: Turn) -> int:
    """How many of a turn's items are its input."""
    return 1 if turn.items[0].get("role") == "user" else 0
