"""openai-agents' SQLiteSession and SQLAlchemySession: one row an item. They have no place for state; none is stored."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from agents import SQLiteSession
from agents.extensions.memory import SQLAlchemySession
from agents.memory import Session
from sqlalchemy.ext.asyncio import create_async_engine

from bench.peers.base import Peer
from bench.peers.on_postgres import POWER_CUT, InDatabase
from bench.peers.replay import Items, Turn


class OpenAISqlite(Peer):
    """Saves a turn at once at its end, the least it can do; `stepwise`: the input before the model is asked, then what
    each call of the model brought, as its own Runner does. `fresh`: a new object, and connection, a turn."""

    stores = "items; no state, no run, no key"
    survives = "power cut; WAL, synchronous=FULL"

    def __init__(self, folder: Path, *, stepwise: bool = False, fresh: bool = False) -> None:
        super().__init__(folder)
        self.path, self.stepwise, self.fresh = folder / "sessions.db", stepwise, fresh
        self.sessions: dict[str, SQLiteSession] = {}
        if not stepwise:
            self.survives += "; a crash before the end loses the input too"

    def session(self, conversation: str) -> Session:
        if conversation not in self.sessions:
            self.sessions[conversation] = SQLiteSession(conversation, self.path)
        return self.sessions[conversation]

    def native(self, turn: Turn, name: str) -> list[Items]:
        return steps(turn.items) if self.stepwise else [turn.items]

    async def turn(self, conversation: str, turn: Turn) -> None:
        session = self.session(conversation)
        await session.get_items(50)
        for items in turn.native:
            await session.add_items(items)
        if self.fresh:
            self.sessions.pop(conversation).close()

    async def fill(self, conversation: str, turns: Sequence[Turn]) -> None:
        await self.session(conversation).add_items([item for turn in turns for item in turn.items])

    async def kept(self, conversation: str) -> int:
        return len(await self.session(conversation).get_items())

    async def close(self) -> None:
        for session in self.sessions.values():
            session.close()


class OpenAIPostgres(InDatabase, OpenAISqlite):
    survives = POWER_CUT

    async def open(self) -> None:
        await super().open()
        self.engine = create_async_engine(self.database.url(scheme="postgresql+asyncpg"))
        await self.session("none").get_items(1)  # makes its tables
        self.database.settled()

    def session(self, conversation: str) -> Session:
        return SQLAlchemySession(conversation, engine=self.engine, create_tables=True)

    async def close(self) -> None:
        await self.engine.dispose()


def steps(items: Items) -> list[Items]:
    """The input, then what belongs to one call of the model: what it said and asked for, with the tools' outputs."""
    made: list[Items] = []
    answered = True
    for item in items:
        output = str(item["type"]).endswith("_output")
        if answered and not output:
            made.append([])
        made[-1].append(item)
        answered = output or item.get("role") == "user"
    return made
