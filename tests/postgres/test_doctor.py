"""The doctor finds what is wrong with a database, says what to do, and changes nothing. Each finding is made on purpose."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from urllib.parse import quote

import anyio
import psycopg
import pytest

from stateroom import face
from stateroom.backends.postgres import schema
from stateroom.backends.postgres.migrate import migrate
from stateroom.cli.doctor import postgres, postgres_load
from stateroom.cli.doctor.finding import Finding
from stateroom.flows.agent import Turn
from tests.services.fixtures import need_version
from tests.services.postgres import Server
from tests.services.store import as_role

SETTLED = "set search_path = stateroom"


async def answer(turn: Turn) -> str:
    turn.set("turns", turn.slots.get("turns", 0) + 1)
    return f"heard {turn.text}"


async def _fill(url: str) -> None:
    async with await face.open(url, agents=[answer]) as room:
        first = await room.turn("hello", key="k")
        await room.turn("again", conversation=first.conversation)


@pytest.fixture
def filled(patient: str) -> str:
    """A store with a conversation of two turns."""
    anyio.run(_fill, as_role(patient))
    return patient


def examined(url: str) -> dict[str, Finding]:
    return {finding.code: finding for finding in postgres.examine(url)}


def execute(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(SETTLED)
        for statement in statements:
            db.execute(statement)


def fetched(url: str, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url, autocommit=True) as db:
        return db.execute(statement).fetchall()


@pytest.mark.parametrize("role", ["stateroom_app", "stateroom_reader"])
def test_a_sound_database_is_sound(filled: str, role: str) -> None:
    found = examined(as_role(filled, role))
    assert [finding for finding in found.values() if finding.level != "ok"] == []
    assert {"server", "schema", "epoch", "walls", "record", "durability", "connections", "sessions", "vacuum"} <= set(found)


def test_the_oldest_version_that_is_supported_is_migrated_by_a_maker_of_roles_and_sound() -> None:
    with Server.start(version=need_version(15)) as server:
        server.execute("create role maker login createrole")
        server.execute("create database made owner maker")
        url = server.url("made", user="maker")
        assert migrate(url, say=lambda line: None) > 0
        assert migrate(url, say=lambda line: None) == 0
        anyio.run(_fill, as_role(url))
        for role in ("stateroom_app", "stateroom_reader"):
            assert [finding for finding in examined(as_role(url, role)).values() if finding.level != "ok"] == []
        assert "role_owner" in examined(url)


def test_a_superuser_is_no_worker_and_sees_the_rest_through_the_wall(filled: str) -> None:
    found = examined(filled)
    assert {code for code, finding in found.items() if finding.level == "bad"} == {"role_superuser", "search_path"}
    assert found["walls"].level == found["record"].level == "ok"


def test_it_changes_nothing(filled: str) -> None:
    def rows() -> list[list[tuple[object, ...]]]:
        return [fetched(filled, f"select count(*), max(xmin::text::bigint) from stateroom.{table}") for table in schema.COPIES]

    before = rows()
    examined(as_role(filled))
    assert rows() == before


# ── what holds a worker back ────────────────────────────────────────────────────────────────────────────────────────

BAD: dict[str, tuple[str, ...]] = {
    "role_bypassrls": ("alter role stateroom_app bypassrls",),
    "role_owner": ("grant stateroom_owner to stateroom_app",),
    "grants_missing": ("revoke select on run from stateroom_app",),
    "store_too_new": ("update meta set value = '99' where name = 'needs'",),
    "not_migrated": ("delete from migration",),
    "search_path": (
        "create table public.migration()", "alter role stateroom_app in database {db} set search_path = public, stateroom",
    ),
    "read_only": ("alter role stateroom_app in database {db} set default_transaction_read_only = on",),
    "synchronous_commit_off": ("alter role stateroom_app in database {db} set synchronous_commit = off",),
    "wall_open": ("alter table slot_past_3 no force row level security",),
    "wall_view": ("create view everybody as select * from run",),
    "record_gap": ("delete from item where seq = 2",),
    "log_gap": ("update run set head = head + 1",),
    "wait_for_nothing": ("update run set status = 'requires_action', finished_at = 0 where accepted = 1",),
    "branch_taken": ("update branch set active_run = (select id from run limit 1)",),
    "queue_miscounted": ("update branch set queued = queued + 1",),
    "log_without_end": ("delete from run_log where kind = 'end'",),
    "log_ended_early": ("update run set status = 'in_progress'",),
    "asked_in_vain": (
        "insert into action select tenant, home, id, id, 1, 'k', 'timer', '', 'pending', '', '', '', '', '', 0, '', 0"
        " from run limit 1",
    ),
    "inbox_left": ("insert into inbox select tenant, home, id, 0, id, '', '', '', 0, '' from run limit 1",),
    "end_without_time": ("update run set finished_at = 0",),
}  # fmt: skip
AGAIN = (
    "alter role stateroom_app nobypassrls nocreaterole connection limit -1 valid until 'infinity'",
    "revoke stateroom_owner from stateroom_app",
)


@pytest.mark.parametrize("code", BAD)
def test_what_is_bad_is_found(filled: str, patient_server: Server, code: str) -> None:
    try:
        execute(filled, *(statement.format(db=filled.split("/")[3].split("?")[0]) for statement in BAD[code]))
        found = examined(as_role(filled))
    finally:
        execute(filled, *AGAIN)
    assert found[code].level == "bad", found
    assert found[code].remedy


def test_what_it_says_to_run_can_be_run_for_names_of_any_kind(filled: str, patient_server: Server) -> None:
    """A login role of somebody's own, which does not find our tables and is stronger than it has to be."""
    odd = 'Order "7"; drop'
    quoted = '"' + odd.replace('"', '""') + '"'
    execute(filled, f"create role {quoted} login createdb in role stateroom_app")
    execute(filled, f'create policy "User" on slot to {quoted} using (true)')
    url = as_role(filled, quote(odd, safe=""))
    try:
        remedy = examined(url)["search_path"].remedy.partition(", or ")[0]
        execute(filled, remedy)
        found = examined(url)
        execute(filled, found["role_strong"].remedy, found["wall_open"].remedy)
        assert {code for code, finding in examined(url).items() if finding.level != "ok"} == set()
    finally:
        execute(filled, 'drop policy if exists "User" on slot', f"drop role {quoted}")


def test_a_wall_that_only_looks_sound_is_seen_through(filled: str) -> None:
    """A second policy lets everything through; the catalogue still has both of ours."""
    execute(filled, "create policy kind on run to stateroom_app using (true)")
    found = examined(as_role(filled))
    assert "drop policy kind on stateroom.run" in found["wall_open"].remedy
    assert "run" in found["wall_passed"].what


def test_a_schema_that_may_not_be_used(filled: str) -> None:
    execute(filled, "revoke usage on schema stateroom from stateroom_app")
    assert examined(as_role(filled))["grants_missing"].level == "bad"


def test_an_empty_database_needs_a_migration(patient_server: Server, patient: str) -> None:
    name = "empty_of_all"
    url = patient_server.create_database(name)
    try:
        found = examined(as_role(url))
        assert found["not_migrated"].level == "bad"
        assert "stateroom migrate" in found["not_migrated"].remedy
    finally:
        patient_server.drop_database(name)


def test_text_that_cannot_hold_everything(patient_server: Server, patient: str) -> None:
    patient_server.execute("create database old_text encoding 'LATIN1' template template0 locale 'C'")
    try:
        assert examined(as_role(patient_server.url("old_text")))["encoding_unfit"].level == "bad"
    finally:
        patient_server.drop_database("old_text")


# ── who cannot even come in ─────────────────────────────────────────────────────────────────────────────────────────


def test_what_cannot_be_reached_says_why(patient: str, patient_server: Server) -> None:
    nowhere = "postgresql://stateroom_app:geheim@127.0.0.1:1/x"
    assert examined(nowhere)["unreachable"].level == "bad"
    assert "geheim" not in examined(nowhere)["unreachable"].what
    assert "database_missing" in examined(as_role(patient_server.url("not_there")))
    assert "role_missing" in examined(as_role(patient, "not_there"))
    execute(patient, "create role shut login connection limit 0")
    try:
        assert "connections_exhausted" in examined(as_role(patient, "shut"))
    finally:
        execute(patient, "drop role shut")


# ── what threatens it ───────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def configured(server: Server, **settings: str) -> Iterator[None]:
    server.configure(settings)
    try:
        yield
    finally:
        server.configure({"fsync": "on", "full_page_writes": "on", "autovacuum": "on", "synchronous_standby_names": ""})


@pytest.mark.parametrize(
    ("code", "settings"),
    [
        ("fsync_off", {"fsync": "off"}),
        ("full_page_writes_off", {"full_page_writes": "off"}),
        ("autovacuum_off", {"autovacuum": "off"}),
    ],
)
def test_settings_that_break_promises_are_bad(patient: str, patient_server: Server, code: str, settings: dict[str, str]) -> None:
    with configured(patient_server, **settings):
        found = examined(as_role(patient))
    assert found[code].level == "bad"
    assert f"alter system set {next(iter(settings))} = on" in found[code].remedy


def test_commits_that_wait_for_nobody_to_come_are_bad(patient: str, patient_server: Server) -> None:
    with configured(patient_server, synchronous_standby_names="elsewhere"):
        assert examined(as_role(patient))["standby_missing"].level == "bad"


Mishap = Callable[[str, pytest.MonkeyPatch], AbstractContextManager[object]]


@contextmanager
def in_one_transaction(url: str) -> Iterator[None]:
    with psycopg.connect(as_role(url)) as db:
        db.execute("set idle_in_transaction_session_timeout = 0")
        db.commit()
        db.execute("select 1")
        yield


def silent(url: str, monkeypatch: pytest.MonkeyPatch) -> AbstractContextManager[object]:
    monkeypatch.setattr(postgres_load, "_IDLE_S", -1)
    return in_one_transaction(url)


@contextmanager
def busy(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(postgres_load, "_LONG_S", -1)

    def sleep() -> None:
        with psycopg.connect(as_role(url), autocommit=True) as db, suppress(psycopg.errors.QueryCanceled):
            db.execute("select pg_sleep(20)")

    sleeping = threading.Thread(target=sleep)
    sleeping.start()
    try:
        asleep = "select 1 from pg_stat_activity where state = 'active' and query like 'select pg_sleep%'"
        while not fetched(url, asleep):
            time.sleep(0.02)
        yield
    finally:
        execute(url, "select pg_cancel_backend(pid) from pg_stat_activity where query like 'select pg_sleep%'")
        sleeping.join()


@contextmanager
def far_behind(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A stranger's snapshot: its age shows though its session does not."""
    monkeypatch.setattr(postgres_load, "_XIDS_MAX", -1)
    with psycopg.connect(url) as db:
        db.execute("set transaction isolation level repeatable read")
        db.execute("select 1")
        yield


@contextmanager
def prepared(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(postgres_load, "_IDLE_S", -1)
    execute(url, "begin", "create table left_open()", "prepare transaction 'left'")
    yield
    execute(url, "rollback prepared 'left'")


@contextmanager
def slot(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    execute(url, "select pg_create_physical_replication_slot('left', true)")
    yield
    execute(url, "select pg_drop_replication_slot('left')")


@contextmanager
def done(*statements: str, url: str) -> Iterator[None]:
    execute(url, *statements)
    yield


def of(*statements: str, **low: float) -> Mishap:
    def mishap(url: str, monkeypatch: pytest.MonkeyPatch) -> AbstractContextManager[object]:
        for name, value in low.items():
            monkeypatch.setattr(postgres_load, f"_{name}", value)
        return done(*statements, url=url)

    return mishap


WARN: dict[str, Mishap] = {
    "idle_in_transaction": silent,
    "transaction_long": busy,
    "slot_left": slot,
    "transaction_prepared": prepared,
    "connections_few": of("alter role stateroom_app connection limit 5"),
    "role_strong": of("alter role stateroom_app createrole"),
    "autovacuum_off_here": of("alter table run set (autovacuum_enabled = off)"),
    "vacuum_behind": of("update run set head = head", "select pg_stat_force_next_flush()", DEAD_ROWS=0, DEAD_SHARE=0.0),
    "freeze_behind": of(FREEZE_LOW=-1),
    "notifications_full": of(QUEUE_LOW=-1),
    "timeline_new": of("update meta set value = '00000009' where name = 'timeline'"),
    "expired_waiting": of("insert into due values ('expire', 1, 1, '\\x00')", "insert into meta values ('on_expiry', 'archive')"),
    "maintenance_late": of("insert into due values ('lease', 1, 1, '\\x00')"),
}  # fmt: skip


@pytest.mark.parametrize("code", WARN)
def test_what_deserves_a_look_is_a_warning(filled: str, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    try:
        with WARN[code](filled, monkeypatch):
            found = examined(as_role(filled))
    finally:
        execute(filled, *AGAIN)
    assert found[code].level == "warn", found
    assert found[code].remedy


def test_a_strangers_old_snapshot_is_seen_by_its_age(filled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with far_behind(filled, monkeypatch):
        assert "transactions ago" in examined(as_role(filled))["transaction_long"].what


def test_a_look_that_is_refused_does_not_end_the_others(filled: str) -> None:
    execute(filled, "revoke select on due from stateroom_reader", "revoke select on clock from stateroom_reader")
    found = examined(as_role(filled, "stateroom_reader"))
    assert "vacuum" in found or "grants_missing" in found


def test_a_standby_takes_no_writes(filled: str, patient_server: Server) -> None:
    with Server.standby(None, patient_server, synchronous=False) as standby:
        name = filled.split("/")[3].split("?")[0]
        found = examined(as_role(standby.url(name)))
        assert found["standby"].level == "bad"
        assert found["record"].level == "ok"
        assert examined(as_role(filled))["standby_asynchronous"].level == "warn"
        standby.promote()
        found = examined(as_role(standby.url(name)))
        assert (found["timeline_new"].level, "standby" in found) == ("warn", False)
