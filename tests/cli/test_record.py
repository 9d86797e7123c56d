"""What the doctors call sound is sound after everything that a store can go through: no false alarm, on both kinds."""

from __future__ import annotations

import asyncio
from pathlib import Path

import anyio
import pytest

from stateroom import face
from stateroom.cli.doctor import postgres, sqlite
from stateroom.flows.agent import Turn
from stateroom.run.model import Due, RunQuery
from tests.services.store import as_role


async def answer(turn: Turn) -> str:
    turn.set("turns", turn.slots.get("turns", 0) + 1)
    if "fail" in turn.text:
        raise RuntimeError("as asked")
    if "wait" in turn.text:
        await asyncio.sleep(0.05)
    return f"heard {turn.text}"


async def _live(url: str) -> None:
    """Turns of every kind and end, forks, deletions, what is not stored, a log that was compacted."""
    async with await face.open(url, agents=[answer]) as room:
        first = await room.turn("hello", key="k")
        again = await room.turn("again", conversation=first.conversation, options={"stream": True})
        await room.turn("another way", previous=first.response)
        await room.turn("not kept", options={"store": False})
        await room.turn("fail", conversation=first.conversation)
        policies = ("enqueue", "merge", "latest", "interrupt", "parallel", "enqueue")
        await asyncio.gather(
            *(room.turn(f"wait {name}", conversation=first.conversation, options={"double_text": name}) for name in policies),
            return_exceptions=True,
        )
        bare = await room.turn("alone")
        going = asyncio.create_task(room.turn("wait and see", conversation=bare.conversation))
        await asyncio.sleep(0.02)
        (run,) = await room.stack.runs.recent(room.scope, RunQuery(limit=1))
        await room.cancel(f"run_{run.id.hex()}")
        await going
        forked = await room.fork(first.conversation)
        await room.turn("in the fork", conversation=forked.id)
        await room.delete(forked.id)
        await room.delete(bare.conversation)
        compacted = bytes.fromhex(again.run.removeprefix("run_"))
        await room.stack.recovery._compact(room.scope, Due(kind="compact", at=0, tenant="local", id=compacted))


def test_a_folder_that_lived_is_sound(tmp_path: Path) -> None:
    anyio.run(_live, f"sqlite:///{tmp_path / 'store'}")
    (tmp_path / "store").chmod(0o700)
    assert [finding for finding in sqlite.examine(tmp_path / "store") if finding.level != "ok"] == []


@pytest.mark.parametrize("role", ["stateroom_app", "stateroom_reader"])
def test_a_database_that_lived_is_sound(postgres_store: str, role: str) -> None:
    anyio.run(_live, as_role(postgres_store))
    found = [finding for finding in postgres.examine(as_role(postgres_store, role)) if finding.level != "ok"]
    assert [finding.code for finding in found] == ["fsync_off"], found  # of the tests' server
