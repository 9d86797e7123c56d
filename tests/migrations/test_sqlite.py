"""A later migration of a folder: while others write, killed in the middle, twice at once (P30)."""

from __future__ import annotations

import asyncio
import shutil
import threading
from pathlib import Path

import apsw
import pytest

from stateroom import face
from stateroom.backends.sql.migration import Migration
from stateroom.backends.sqlite import db as opening
from stateroom.backends.sqlite import schema
from stateroom.backends.sqlite.backend import SqliteBackend
from stateroom.backends.sqlite.migrate import Migrator, migrate, missing
from stateroom.cli.doctor import sqlite as doctor
from stateroom.errors import InvalidInput, Unavailable
from stateroom.flows.agent import Turn
from tests.migrations.later import SQLITE as LATER

pytestmark = pytest.mark.anyio
ALL = (*schema.MIGRATIONS, LATER)
SHAPE = (
    "select type, name, sql from sqlite_master order by 1, 2",
    "select version, name from migration order by 1",
    "select version, step from migration_step order by 1, 2",
    "select value from meta where name = 'needs'",
    "select count(*) from run where weight is not head * 2",
)


async def answer(turn: Turn) -> str:
    turn.set("turns", turn.slots.get("turns", 0) + 1)
    return f"heard {turn.text}"


async def filled(folder: Path, turns: int = 10) -> apsw.Connection:
    async with await face.open(f"sqlite:///{folder}", agents=[answer]) as room:
        for number in range(turns):
            await room.turn(f"turn {number}")
    return opening.connect(folder / "state.db")


def shape(db: apsw.Connection) -> list[object]:
    """Everything a migration leaves behind."""
    return [db.execute(statement).fetchall() for statement in SHAPE]


async def whole(folder: Path) -> list[object]:
    """What a migration that nothing cut leaves behind."""
    db = await filled(folder)
    migrate(db, 0, migrations=ALL)
    found = shape(db)
    db.close()
    return found


async def test_P30_no_turn_fails_while_a_later_migration_runs_and_the_older_worker_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    db = await filled(folder, turns=200)
    said = list[str]()
    async with await face.open(f"sqlite:///{folder}", agents=[answer]) as room:

        async def call(number: int) -> None:
            conversation = ""
            for turn in range(20):
                reply = await room.turn(f"turn {turn}", conversation=conversation, key=f"{number}.{turn}")
                assert (reply.status, reply.slots) == ("completed", {"turns": turn + 1})
                conversation = reply.conversation

        async with asyncio.TaskGroup() as group:
            for number in range(4):
                group.create_task(call(number))
            ran = await asyncio.to_thread(migrate, db, 0, say=said.append, migrations=ALL)
        assert ran == len(said) == len(LATER.steps)
        assert (await room.turn("and now")).status == "completed"
    assert db.execute("select count(*) from run where weight is null and rowid <= 200").fetchall() == [(0,)]
    db.close()
    await (await SqliteBackend.open(folder)).close()
    assert [finding.code for finding in doctor.examine(folder) if finding.level != "ok"] == []


async def test_a_migrator_cut_at_any_commit_is_run_again_and_ends_in_the_same_place(tmp_path: Path) -> None:
    """A commit that fails is a process that died before it."""
    (await filled(tmp_path / "made")).close()
    expected = await whole(tmp_path / "whole")
    for moment in range(1, 100):
        folder = shutil.copytree(tmp_path / "made", tmp_path / f"cut {moment}")
        db, commits = opening.connect(folder / "state.db"), iter(range(1, 1000))
        db.set_commit_hook(lambda commits=commits, moment=moment: next(commits) == moment)
        try:
            migrate(db, 0, migrations=ALL)
            assert moment > len(LATER.steps) + 3  # batches commit one by one
            db.close()
            return
        except apsw.ConstraintError:
            db.set_commit_hook(None)
        assert missing(db, ALL)
        migrate(db, 0, migrations=ALL)
        assert shape(db) == expected, moment
        db.close()
    raise AssertionError("it never came to its end")


async def test_two_migrators_at_once_do_each_step_once(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    one, expected = await filled(folder), await whole(tmp_path / "whole")
    other = opening.connect(folder / "state.db")
    await asyncio.gather(*(asyncio.to_thread(migrate, db, 0, migrations=ALL) for db in (one, other)))
    assert shape(one) == expected
    for db in (one, other):
        db.close()


async def test_a_migrator_that_is_told_to_stop_ends_and_the_next_one_goes_on(tmp_path: Path) -> None:
    db, expected = await filled(tmp_path / "store"), await whole(tmp_path / "whole")
    at = threading.Event()
    slow = Migration(
        version=LATER.version, name=LATER.name, needs=LATER.needs,
        steps=(*LATER.steps[:2], type(LATER.steps[2])(_FOR_EVER), *LATER.steps[3:]),
    )  # fmt: skip
    migrator = Migrator(db, 0, say=lambda line: at.set() if "step 3" in line else None, migrations=(*schema.MIGRATIONS, slow))
    working = asyncio.create_task(asyncio.to_thread(migrator.run))
    await asyncio.to_thread(at.wait, 20)
    await asyncio.sleep(0.1)
    migrator.stop()
    with pytest.raises(Unavailable) as stopped:
        await working
    assert stopped.value.reason == "interrupted"
    assert migrate(db, 0, migrations=ALL) == 2
    assert shape(db) == expected
    db.close()


_FOR_EVER = "with recursive c(n) as (select 1 union all select n + 1 from c) update run set weight = (select max(n) from c)"


async def test_a_store_that_needs_a_newer_worker_is_refused_from_the_first_step_on(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    db = await filled(folder, turns=1)
    breaking = Migration(version=LATER.version, name=LATER.name, needs=LATER.version, steps=LATER.steps[:1])
    migrate(db, 0, migrations=(*schema.MIGRATIONS, breaking))
    db.close()
    with pytest.raises(InvalidInput) as refused:
        await SqliteBackend.open(folder)
    assert refused.value.reason == "store_too_new"
