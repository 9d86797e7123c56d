"""What cannot be stored takes nobody along who shares its transaction (P31)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from stateroom import ids
from stateroom.backends.base import Backend
from stateroom.backends.postgres.backend import PostgresBackend
from stateroom.backends.sqlite.backend import SqliteBackend
from stateroom.batch import Batch
from stateroom.conversation.model import CreateConversation
from stateroom.errors import InvalidInput
from stateroom.principal import operator
from stateroom.run.model import AcceptTurn
from tests.services.store import as_role

pytestmark = pytest.mark.anyio


async def together(backend: Backend) -> list[object]:
    """Good conversations and bad ones at once, each of its own home: many share a transaction."""

    async def make(home: int) -> object:
        now, scope = backend.clock.wall_ms(), operator("acme")
        new = CreateConversation(id=ids.new(home, now), owner="alice", subject="s", kind="managed")
        bad: dict[int, dict[str, object]] = {3: {"agent": "a\ud800"}, 5: {"deadline_at": 2**63}}
        if home in bad:
            given = {"agent": "clerk", **bad[home]}
            accept = AcceptTurn(run=ids.new(home, now), input=(), owner="alice", subject="s", conversation=new.id, **given)  # type: ignore[arg-type]
            return await backend.commit(Batch(id=ids.new(home, now), scope=scope, at=now, writes=(new, accept)))
        return await backend.commit(Batch(id=ids.new(home, now), scope=scope, at=now, writes=(new,)))

    return await asyncio.gather(*(make(home) for home in range(12)), return_exceptions=True)


def check(found: list[object]) -> None:
    for home, outcome in enumerate(found):
        assert isinstance(outcome, InvalidInput if home in (3, 5) else tuple), (home, outcome)


async def test_P31_a_batch_that_cannot_be_stored_takes_no_other_along_sqlite(tmp_path: Path) -> None:
    backend = await SqliteBackend.open(tmp_path)
    try:
        check(await together(backend))
    finally:
        await backend.close()


async def test_P31_a_batch_that_cannot_be_stored_takes_no_other_along_postgres(postgres_store: str) -> None:
    backend = await PostgresBackend.open(f"{as_role(postgres_store)}&lanes=1")
    try:
        check(await together(backend))
    finally:
        await backend.close()
