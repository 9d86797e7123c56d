"""google-adk's DatabaseSessionService on SQLite and PostgreSQL: an ORM row, and a transaction, for every event."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from google.adk.events import Event, EventActions
from google.adk.sessions import DatabaseSessionService, Session
from google.adk.sessions.base_session_service import GetSessionConfig
from google.genai import types

from bench.peers.base import Peer, arguments
from bench.peers.on_postgres import POWER_CUT, InDatabase
from bench.peers.replay import Turn

WHO = {"app_name": "bench", "user_id": "user"}


class Adk(Peer):
    """Reads the newest events (None: all of them, as its Runner does unless a RunConfig says otherwise), then appends
    one by one as its Runner does; the state goes with the last one."""

    stores = "events, state"
    survives = "power cut, each event by itself; rollback journal, synchronous=FULL (its defaults)"

    def __init__(self, folder: Path, *, newest: int | None = None) -> None:
        super().__init__(folder)
        self.newest = newest

    def url(self) -> str:
        return f"sqlite+aiosqlite:///{self.folder}/sessions.db"

    async def open(self) -> None:
        self.service = DatabaseSessionService(self.url())
        await self.service.prepare_tables()

    def native(self, turn: Turn, name: str) -> list[Event]:
        return [event(item, name, turn.delta if item is turn.items[-1] else {}) for item in turn.items]

    async def session(self, conversation: str, newest: int | None) -> Session:
        config = GetSessionConfig(num_recent_events=newest) if newest else None
        found = await self.service.get_session(**WHO, session_id=conversation, config=config)
        return found or await self.service.create_session(**WHO, session_id=conversation)

    async def turn(self, conversation: str, turn: Turn) -> None:
        session = await self.session(conversation, self.newest)
        for each in turn.native:
            await self.service.append_event(session, each)

    async def fill(self, conversation: str, turns: Sequence[Turn]) -> None:
        session, row = await self.session(conversation, None), self.service._get_schema_classes().StorageEvent
        events = [each for turn in turns for each in turn.native]
        async with self.service.database_session_factory() as sql:
            sql.add_all([row.from_event(session, each) for each in events])
            await sql.commit()

    async def kept(self, conversation: str) -> int:
        return len((await self.session(conversation, None)).events)

    async def close(self) -> None:
        await self.service.close()


class AdkPostgres(InDatabase, Adk):
    survives = f"{POWER_CUT}, each event by itself"

    def url(self) -> str:
        return self.database.url(scheme="postgresql+asyncpg")


def event(item: dict[str, Any], turn: str, delta: dict[str, Any]) -> Event:
    role, part = said(item)
    return Event(
        author="user" if item.get("role") == "user" else "agent",
        invocation_id=turn,
        content=types.Content(role=role, parts=[part]),
        actions=EventActions(state_delta=dict(delta)),
    )


def said(item: dict[str, Any]) -> tuple[str, types.Part]:
    if item["type"] == "message":
        return "user" if item["role"] == "user" else "model", types.Part(text=item["content"])
    if item["type"] == "function_call":
        call = types.FunctionCall(id=item["call_id"], name=item["name"], args=arguments(item["arguments"]))
        return "model", types.Part(function_call=call)
    response = types.FunctionResponse(id=item["call_id"], name="tool", response={"result": item["output"]})
    return "user", types.Part(function_response=response)
