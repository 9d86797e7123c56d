"""A later migration on a real server: while traffic flows, killed in the middle of each step, twice at once, beside older
workers (P30)."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from stateroom import face
from stateroom.backends.postgres import migrate as module
from stateroom.backends.postgres import schema
from stateroom.backends.postgres.backend import PostgresBackend
from stateroom.backends.postgres.migrate import Migrator, migrate, missing
from stateroom.backends.sql.migration import Migration
from stateroom.cli.doctor import postgres as doctor
from stateroom.errors import InvalidInput, StateroomError, Unavailable
from stateroom.face import Room
from stateroom.flows.agent import Turn
from tests.docs.pages import ROOT
from tests.migrations.later import POSTGRES as LATER
from tests.services.store import as_role

pytestmark = pytest.mark.anyio
ALL = (*schema.MIGRATIONS, LATER)
CALLERS = 6


def quiet(line: str) -> None:
    pass


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on this process is of the later build."""
    monkeypatch.setattr(schema, "MIGRATIONS", ALL)
    monkeypatch.setattr(schema, "VERSION", LATER.version)


async def answer(turn: Turn) -> Any:
    turn.set("turns", turn.slots.get("turns", 0) + 1)
    yield "heard "
    await asyncio.sleep(0.005)
    yield turn.text


async def opened(url: str) -> Room:
    return await face.open(as_role(url), agents=[answer])


async def filled(url: str, turns: int = 4) -> None:
    async with await opened(url) as room:
        for number in range(turns):
            await room.turn(f"turn {number}")


def fetched(url: str, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True, options="-c search_path=stateroom") as db:
        return db.execute(statement.encode()).fetchall()


SHAPE = (
    "select table_name, column_name, data_type, column_default, is_nullable from information_schema.columns"
    " where table_schema = 'stateroom' order by 1, 2",
    "select indexrelid::regclass::text, indisvalid, indisready, pg_get_indexdef(indexrelid) from pg_index"
    " join pg_class on oid = indexrelid where relnamespace = 'stateroom'::regnamespace order by 1",
    "select tablename, policyname, roles::text, qual from pg_policies order by 1, 2",
    "select version, step, name from migration order by 1, 2",
    "select table_name, grantee, privilege_type from information_schema.table_privileges where table_schema = 'stateroom'"
    " order by 1, 2, 3",
    "select name, value from meta where name in ('needs', 'epoch')",
    "select count(*) from run where weight is distinct from head * 2",
)


def shape(url: str) -> list[list[tuple[Any, ...]]]:
    """Everything a migration leaves behind."""
    return [fetched(url, statement) for statement in SHAPE]


# ── while traffic flows ─────────────────────────────────────────────────────────────────────────────────────────────


class Traffic:
    """Callers who go on with their conversations until they are told to stop; every turn has to succeed."""

    def __init__(self, rooms: list[Room]) -> None:
        self.rooms, self.stopping, self.turns = rooms, False, 0

    async def call(self, number: int) -> None:
        conversation, said = "", 0
        while not self.stopping:
            room = self.rooms[(number + said) % len(self.rooms)]
            reply = await room.turn(f"turn {said}", conversation=conversation, key=f"{number}.{said}")
            assert (reply.status, reply.text) == ("completed", f"heard turn {said}"), reply
            conversation, said, self.turns = reply.conversation, said + 1, self.turns + 1
            assert reply.slots == {"turns": said}

    async def more(self, turns: int) -> None:
        until = self.turns + turns
        while self.turns < until:
            await asyncio.sleep(0.01)


async def test_P30_no_turn_fails_while_a_later_migration_runs_and_old_and_new_workers_go_on_together(
    postgres_fresh_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres_fresh_store
    older = await opened(url)
    traffic = Traffic([older])
    async with asyncio.timeout(120), asyncio.TaskGroup() as group:
        for number in range(CALLERS):
            group.create_task(traffic.call(number))
        await traffic.more(20)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(schema, "MIGRATIONS", ALL)
            patch.setattr(schema, "VERSION", LATER.version)
            with pytest.raises(InvalidInput) as early:
                await opened(url)
            assert early.value.reason == "not_migrated"
            assert await asyncio.to_thread(migrate, url, say=quiet, migrations=ALL) == len(LATER.steps)
            newer_ = await opened(url)
        traffic.rooms.append(newer_)
        await traffic.more(40)
        another_older = await opened(url)  # an older one also starts on the newer store
        traffic.rooms.append(another_older)
        await traffic.more(20)
        traffic.stopping = True
    for room in traffic.rooms:
        await room.close()
    assert fetched(url, "select count(*) from run where weight is null and accepted < 20") == [(0,)]
    wrong = [finding.code for finding in doctor.examine(as_role(url)) if finding.level != "ok"]
    assert wrong == ["fsync_off"]  # of the tests' server


async def test_P30_what_a_newer_worker_keeps_in_its_columns_survives_an_older_ones_writes(postgres_fresh_store: str) -> None:
    url = postgres_fresh_store
    migrate(url, say=quiet, migrations=ALL)
    room = await opened(url)
    first = await room.turn("hello")
    with psycopg.connect(url, autocommit=True, options="-c search_path=stateroom") as db:
        db.execute("update item set mood = 'glad' where seq = 1")
        db.execute("update run set weight = 9")
    second = await room.turn("again", conversation=first.conversation)
    assert second.slots == {"turns": 2}
    await room.close()
    assert fetched(url, "select mood from item order by branch, seq") == [("glad",), ("calm",), ("calm",), ("calm",)]
    assert fetched(url, "select weight from run order by accepted") == [(9,), (None,)]


async def test_an_older_worker_is_refused_when_it_may_not_go_on_and_one_that_runs_is_stopped(postgres_fresh_store: str) -> None:
    url = postgres_fresh_store
    running = await opened(url)
    await running.turn("hello")
    breaking = Migration(version=LATER.version, name=LATER.name, needs=LATER.version, steps=LATER.steps)
    await asyncio.to_thread(migrate, url, say=quiet, migrations=(*schema.MIGRATIONS, breaking))
    with pytest.raises(InvalidInput) as refused:
        await PostgresBackend.open(as_role(url))
    assert refused.value.reason == "store_too_new"
    with pytest.raises(StateroomError) as stopped:
        await running.turn("again")
    assert stopped.value.reason == "store_too_new"
    await running.close()
    with pytest.raises(InvalidInput) as refused:
        migrate(url, say=quiet)
    assert refused.value.reason == "store_too_new"


# ── cut short ───────────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def held_up(url: str) -> Iterator[None]:
    """A transaction that holds what each step on these tables needs: it neither gets its lock nor ends."""
    with psycopg.connect(url, options="-c search_path=stateroom") as db:
        db.execute("select 1 from item limit 1")
        db.execute("update run set head = head")
        yield
        db.rollback()


def killed_at(url: str, step: int) -> None:
    """A migrator that is killed once it has been at that step for a while."""
    process = subprocess.Popen([sys.executable, "-m", "tests.migrations.later", url], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if line.startswith(LATER.title(step)):
                time.sleep(0.4)
                process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.crash
@pytest.mark.parametrize("step", range(len(LATER.steps)))
async def test_a_migrator_killed_in_the_middle_of_a_step_is_run_again_and_ends_in_the_same_place(
    postgres_fresh_store: str, step: int
) -> None:
    url = postgres_fresh_store
    await filled(url)
    before = Migration(version=LATER.version, name=LATER.name, needs=LATER.needs, steps=LATER.steps[:step])
    migrate(url, say=quiet, migrations=(*schema.MIGRATIONS, before) if step else schema.MIGRATIONS)
    with held_up(url):
        killed_at(url, step)
        assert len(missing(url, migrations=ALL)) in (len(LATER.steps) - step, len(LATER.steps) - step - 1)
    said = list[str]()
    left = migrate(url, say=said.append, migrations=ALL)
    assert left >= len(LATER.steps) - step - 1
    assert missing(url, migrations=ALL) == []
    assert shape(url) == await whole(url)


async def whole(url: str) -> list[list[tuple[Any, ...]]]:
    """What a migration that nothing cut leaves behind, in a database of its own on the same server."""
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("create database uncut")
    other = url.replace(url.split("/")[3].split("?")[0], "uncut")
    try:
        migrate(other, say=quiet, migrations=ALL)
        return shape(other)
    finally:
        with psycopg.connect(url, autocommit=True) as db:
            db.execute("drop database uncut with (force)")


async def test_a_migrator_that_is_told_to_stop_ends_within_its_statement(postgres_fresh_store: str) -> None:
    url = postgres_fresh_store
    await filled(url)
    raised, at, db = list[StateroomError](), threading.Event(), psycopg.connect(url, options="-c search_path=stateroom")

    def say(line: str) -> None:
        if line == LATER.title(1):
            db.execute("update run set head = head")  # the index waits for us
            at.set()

    def run() -> None:
        try:
            migrator.run()
        except StateroomError as error:
            raised.append(error)

    migrator = Migrator(url, say=say, migrations=ALL)
    working = threading.Thread(target=run)
    working.start()
    assert at.wait(20)
    await asyncio.sleep(0.3)
    migrator.stop()
    working.join(5)
    assert not working.is_alive()
    db.close()
    assert [error.reason for error in raised] == ["interrupted"]
    assert migrate(url, say=quiet, migrations=ALL) == 3


async def test_two_migrators_at_once_do_each_step_once(postgres_database: str) -> None:
    said = [list[str](), list[str]()]
    ran = await asyncio.gather(
        *(asyncio.to_thread(migrate, postgres_database, say=lines.append, migrations=ALL) for lines in said)
    )
    steps = sum(len(migration.steps) for migration in ALL)
    assert sorted(ran) == [0, steps]
    assert sum(line.startswith("schema") for lines in said for line in lines) == steps
    assert missing(postgres_database, migrations=ALL) == []


async def test_traffic_that_never_lets_go_is_given_up_on(postgres_fresh_store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE_MS", 600)
    url = postgres_fresh_store
    await filled(url, turns=1)
    with held_up(url), pytest.raises(Unavailable) as gave_up:
        migrate(url, say=quiet, migrations=ALL)
    assert gave_up.value.reason == "store_busy"
    assert len(missing(url, migrations=ALL)) == len(LATER.steps)


# ── who may ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_role_that_may_only_create_roles_and_owns_its_database_migrates(postgres_server: Any) -> None:
    name = "of_a_maker"
    postgres_server.execute("create role maker login createrole")
    try:
        postgres_server.execute(f"create database {name} owner maker")
        url = postgres_server.url(name, user="maker")
        owned = postgres_server.execute("select count(*) from pg_roles where rolname = 'stateroom_owner'") == [(1,)]
        if owned:  # made by somebody else on this server: whoever made them lets others use them
            postgres_server.execute("grant stateroom_owner, stateroom_app, stateroom_reader to maker with admin option")
        migrate(url, say=quiet)
        await (await PostgresBackend.open(as_role(url))).close()
        with pytest.raises(InvalidInput) as refused:
            migrate(as_role(url, "stateroom_reader"), say=quiet)
        assert refused.value.reason == "role_too_weak"
    finally:
        postgres_server.drop_database(name)
        postgres_server.execute("revoke stateroom_owner, stateroom_app, stateroom_reader from maker")
        postgres_server.execute("drop role maker")
