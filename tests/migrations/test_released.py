"""From each released schema to today's, with runs in flight; what was released is never edited (P30)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stateroom import face
from stateroom.backends.postgres import schema as postgres_schema
from stateroom.backends.postgres.migrate import migrate
from stateroom.backends.sqlite import schema as sqlite_schema
from stateroom.cli.doctor import postgres, sqlite
from stateroom.flows.agent import Turn
from stateroom.ids import NIL
from stateroom.run.model import RunQuery
from tests.migrations import released
from tests.services.store import as_role

pytestmark = pytest.mark.anyio
Made = Callable[[int], str]


@pytest.mark.parametrize(
    ("kind", "migrations", "known"),
    [
        ("sqlite", sqlite_schema.MIGRATIONS, released.SQLITE),
        ("postgres", postgres_schema.MIGRATIONS, released.POSTGRES),
    ],
)
def test_a_released_migration_is_never_edited(kind: str, migrations: tuple[sqlite_schema.Migration, ...], known: object) -> None:
    """Add another one. Stores that ran this one will never run it again, and would differ from new ones for ever."""
    assert {migration.version: migration.digest for migration in migrations} == known
    assert [migration.version for migration in migrations] == list(range(1, len(migrations) + 1))
    needs = [migration.needs for migration in migrations]
    assert needs == sorted(needs)
    assert all(migration.needs <= migration.version for migration in migrations)


async def clerk(turn: Turn) -> str:
    turn.set("turns", turn.slots.get("turns", 0) + 1)
    return f"heard {turn.text}"


@pytest.mark.parametrize("version", range(1, sqlite_schema.VERSION))
async def test_P30_a_folder_of_an_earlier_schema_goes_on(tmp_path: Path, version: int) -> None:
    folder = tmp_path / "store"
    released.make_sqlite(folder, version)
    folder.chmod(0o700)
    await goes_on(f"sqlite:///{folder}")
    assert [finding for finding in sqlite.examine(folder) if finding.level != "ok"] == []


async def test_what_was_declared_ephemeral_and_kept_durably_stays_so(tmp_path: Path, postgres_database: str) -> None:
    released.make_sqlite(tmp_path / "store", 3)
    released.make_postgres(postgres_database, 3)
    migrate(postgres_database, say=lambda line: None)
    for url in (f"sqlite:///{tmp_path / 'store'}", as_role(postgres_database)):
        async with await face.open(url, agents=[clerk]) as room:
            desk = await room.session("sess_7a0201a2286269b7c5b3d6a36e55d0ab")
            assert desk.state == {"cart": [1, 2]}
            head = await room.stack.sessions.get(room.scope, bytes.fromhex(desk.id.removeprefix("sess_")))
            assert head.durability == "durable"


@pytest.mark.parametrize("version", range(1, postgres_schema.VERSION))
async def test_P30_a_database_of_an_earlier_schema_goes_on(postgres_database: str, version: int) -> None:
    released.make_postgres(postgres_database, version)
    said = list[str]()
    assert migrate(postgres_database, say=said.append) == sum(line.startswith("schema") for line in said) > 0
    await goes_on(as_role(postgres_database))
    wrong = [finding.code for finding in postgres.examine(as_role(postgres_database)) if finding.level != "ok"]
    assert wrong == ["fsync_off"]  # of the tests' server


async def goes_on(url: str) -> None:
    """What was said is read, a known key is answered as before, what was cut short and what waited behind it end."""
    async with await face.open(url, agents=[clerk]) as room:
        runs = await room.stack.backend.runs(room.scope, RunQuery(limit=10, after=NIL))
        keyed = {run.key: run for run in runs if run.key}
        conversation = (await room.turn("hello", key="k1")).conversation
        assert (await room.turn("hello", key="k1")).text == "heard hello"
        for key, text in (("k2", "wait for it"), ("k3", "after that")):
            reply = await room.turn(text, conversation=conversation, key=key)
            assert (reply.status, reply.text) == ("completed", f"heard {text}")
            assert bytes.fromhex(reply.run.removeprefix("run_")) == keyed[key].id
        said = [item["content"] async for item in room.items(conversation) if item["role"] == "user"]
        assert said == ["hello", "again", "wait for it", "after that"]
        later = await room.turn("and now", conversation=conversation)
        assert later.slots == {"turns": 6}  # a fork shares the desk
        heads = await room.conversations(limit=10)
        assert {head.metadata.get("shop") for head in heads} >= {"1"}
        others = [head.id for head in heads if head.metadata]
        assert [item["mood"] async for item in room.items(others[0])] == [{"a": [1, 2]}]
        assert len(await room.stack.backend.runs(room.scope, RunQuery(limit=10, after=NIL))) == len(runs) + 1
