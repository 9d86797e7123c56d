"""What people pick today, beside us: one file each behind `base.Peer`, one line each here."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.peers.base import Peer

OURS, NARROW, COLD = "stateroom turn flow", "stateroom turn flow, window of 50", "stateroom, new process cache"
PEERS: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {  # name -> module, class, arguments
    OURS: ("ours", "Stateroom", {}),
    NARROW: ("ours", "Stateroom", {"window": 50}),
    COLD: ("ours", "Stateroom", {"cold": True}),
    "openai-agents SQLiteSession, as its Runner saves": ("openai_agents", "OpenAISqlite", {"stepwise": True}),
    "openai-agents SQLiteSession, one save a turn": ("openai_agents", "OpenAISqlite", {}),
    "openai-agents SQLiteSession, one save, new object a turn": ("openai_agents", "OpenAISqlite", {"fresh": True}),
    "langgraph AsyncSqliteSaver, one node a turn": ("langgraph_saver", "LangGraph", {}),
    "langgraph AsyncSqliteSaver, one step an item": ("langgraph_saver", "LangGraph", {"stepwise": True}),
    "google-adk DatabaseSessionService sqlite, newest 50 events": ("google_adk", "Adk", {"newest": 50}),
    "google-adk DatabaseSessionService sqlite, as its Runner reads": ("google_adk", "Adk", {}),
    "hand-written apsw, WAL FULL, one commit": ("raw", "Raw", {}),
}


ON_POSTGRES: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    OURS: ("on_postgres", "Stateroom", {}),
    NARROW: ("on_postgres", "Stateroom", {"window": 50}),
    COLD: ("on_postgres", "Stateroom", {"cold": True}),
    "openai-agents SQLAlchemySession, as its Runner saves": ("openai_agents", "OpenAIPostgres", {"stepwise": True}),
    "openai-agents SQLAlchemySession, one save a turn": ("openai_agents", "OpenAIPostgres", {}),
    "langgraph AsyncPostgresSaver, one node a turn": ("langgraph_saver", "LangGraphPostgres", {}),
    "langgraph AsyncPostgresSaver, one step an item": ("langgraph_saver", "LangGraphPostgres", {"stepwise": True}),
    "google-adk DatabaseSessionService, newest 50 events": ("google_adk", "AdkPostgres", {"newest": 50}),
    "google-adk DatabaseSessionService, as its Runner reads": ("google_adk", "AdkPostgres", {}),
    "hand-written pipelined SQL, one commit": ("on_postgres", "Raw", {}),
}
STORES: Mapping[str, Mapping[str, tuple[str, str, Mapping[str, Any]]]] = {"sqlite": PEERS, "postgres": ON_POSTGRES}


def make(name: str, folder: Path, store: str = "sqlite") -> Peer:
    module, kind, arguments = STORES[store][name]
    made: Peer = getattr(importlib.import_module(f"bench.peers.{module}"), kind)(folder, **arguments)
    return made
