"""Who takes a turn on PostgreSQL: our door, our flow, and the same by hand; each with so many clients at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from bench.doors import DoorTurn, Recorded, by_flow
from bench.postgres import hand
from bench.workload import BenchTurn
from stateroom.backends.postgres.backend import PostgresBackend
from stateroom.conversation.service import Conversations
from stateroom.flows.failpoint import Failpoints
from stateroom.flows.turn import Turns
from stateroom.principal import LOCAL, Scope

Work = Callable[[int, BenchTurn], Awaitable[None]]


async def together(clients: int, turns: Sequence[BenchTurn], work: Work) -> float:
    """So many clients share the turns, each one after another; the seconds that it took."""

    async def client(number: int) -> None:
        for turn in turns[number::clients]:
            await work(number, turn)

    start = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(clients):
            group.create_task(client(number))
    return time.perf_counter() - start


class Ours:
    """A handle of ours, and conversations on it."""

    def __init__(self, backend: PostgresBackend) -> None:
        self.backend, self.agent, self.number = backend, Recorded(), 0
        self.flow = Turns(backend, {"bench": self.agent}, owner=backend.owner, failpoints=Failpoints())
        self.places: list[tuple[Scope, bytes]] = []

    @classmethod
    async def open(cls, url: str) -> Ours:
        return cls(await PostgresBackend.open(url))

    async def close(self) -> None:
        await self.flow.workshop.close(0)
        await self.backend.close()

    async def settle(self, clients: int, scopes: Sequence[Scope] = (LOCAL,)) -> None:
        """A conversation for each client, in these scopes by turns."""
        rooms, scopes = Conversations(self.backend), [scopes[n % len(scopes)] for n in range(clients)]
        self.places = [(scope, (await rooms.create(scope)).id) for scope in scopes]

    def next(self) -> int:
        self.number += 1
        return self.number

    async def by_door(self, client: int, turn: BenchTurn) -> None:
        scope, conv = self.places[client]
        door = DoorTurn(conv, self.next(), turn, scope)
        (accepted,) = await self.backend.commit(door.accept(self.backend.owner))
        await self.backend.commit(door.finish(accepted))

    async def by_flow(self, client: int, turn: BenchTurn) -> None:
        scope, conv = self.places[client]
        await by_flow(self.flow, self.agent, conv, self.next(), turn, scope)


class ByHand:
    """Connections, and conversations on them: one connection a client, at most `hand.POOL` of them."""

    def __init__(self, pool: hand.Pool) -> None:
        self.pool, self.number, self.places = pool, 0, list[bytes]()

    @classmethod
    async def open(cls, url: str, clients: int, *, cursors: bool = False) -> ByHand:
        opened = [await hand.Client.open(url, cursors=cursors) for _ in range(min(clients, hand.POOL))]
        made = cls(hand.Pool(opened))
        made.places = [await opened[0].conversation(1) for _ in range(clients)]
        return made

    async def close(self) -> None:
        await self.pool.close()

    async def turn(self, client: int, turn: BenchTurn, *, hydrate: bool = False) -> None:
        """Two commits. Between them no connection is kept: an agent may take its time."""
        self.number += 1
        at, key, conv = time.time_ns() // 1_000_000, f"k{id(self)}-{self.number}", self.places[client]
        async with self.pool.client() as db:
            run = await db.accept(conv, key, turn.inputs, at)
        if hydrate:
            async with self.pool.client() as db:
                await db.hydrate(conv)
        async with self.pool.client() as db:
            await db.finish(run, conv, turn.outputs, turn.slots, at)

    async def whole(self, client: int, turn: BenchTurn) -> None:
        await self.turn(client, turn, hydrate=True)
