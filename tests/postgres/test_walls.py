"""Row-level security as a second wall (P28): the six ways in which it is off silently, each against the real tables; and who
must not serve because no wall holds it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from stateroom import ids
from stateroom.backends.postgres import schema
from stateroom.backends.postgres.backend import PostgresBackend
from stateroom.backends.postgres.migrate import migrate
from stateroom.conformance.kit import Actor
from stateroom.conversation.model import CreateConversation
from stateroom.errors import InvalidInput
from stateroom.principal import operator
from tests.services.store import as_role

pytestmark = pytest.mark.anyio

APP, READER, OWNER = schema.APP, schema.READER, schema.OWNER
TENANTS = ("north", "south")


@pytest.fixture
async def filled(postgres_fresh_store: str) -> str:
    """Two tenants with a conversation each."""
    backend = await PostgresBackend.open(as_role(postgres_fresh_store))
    try:
        for tenant in TENANTS:
            await Actor(backend, operator(tenant)).opens_conversation(f"of {tenant}")
    finally:
        await backend.close()
    return postgres_fresh_store


@contextmanager
def connected(url: str, role: str = "postgres", *, as_owner: bool = False) -> Iterator[psycopg.Connection]:
    with psycopg.connect(as_role(url, role), autocommit=True) as db:
        db.execute("set search_path = stateroom")
        if as_owner:
            db.execute(f"set role {OWNER}")
        yield db


@contextmanager
def a_role(url: str, made: str) -> Iterator[str]:
    """One that may log in; roles belong to the whole server."""
    role = f"role_{uuid.uuid4().hex}"
    with connected(url) as db:
        db.execute(f"create role {role} login {made}")
        try:
            yield role
        finally:
            db.execute(f"drop role {role}")


def count(db: psycopg.Connection, table: str = "item") -> int:
    (found,) = db.execute(f"select count(*) from {table}").fetchone() or (0,)
    return int(found)


def name(db: psycopg.Connection, tenant: int, *, local: bool = True) -> None:
    db.execute("select set_config('stateroom.tenant', %s, %s)", (str(tenant), local))


async def test_P28_the_owner_sees_nothing_because_the_wall_is_forced(filled: str) -> None:
    with connected(filled, as_owner=True) as db:
        assert count(db) == 0
        name(db, 1, local=False)
        assert count(db) == 0  # not even a tenant that it names: only the migrator says 'system'
        db.execute("alter table item no force row level security")
        assert count(db) == 2  # what the rule is for
        db.execute("alter table item force row level security")
        db.execute("set stateroom.system = 'on'")
        assert count(db) == 2


@pytest.mark.parametrize("role", [APP, READER])
async def test_P28_whoever_names_no_tenant_sees_and_changes_nothing(filled: str, role: str) -> None:
    with connected(filled, role) as db:
        assert {table: count(db, table) for table in schema.WALLED} == dict.fromkeys(schema.WALLED, 0)
        db.execute("set stateroom.system = 'on'")  # means nothing to others than the owner
        assert count(db) == 0
    with connected(filled, APP) as db:
        assert db.execute("update item set body = ''").rowcount == 0
        assert db.execute("delete from run").rowcount == 0
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            db.execute("insert into tombstone values (1, 1, '', 1, 1)")


async def test_P28_a_name_that_was_reset_to_nothing_is_no_name(filled: str) -> None:
    """A setting that was made and reset is '' and not absent."""
    with connected(filled, APP) as db:
        with db.transaction():
            name(db, 1)
            assert count(db) == 1
        assert db.execute("select current_setting('stateroom.tenant', true)").fetchone() == ("",)
        assert count(db) == 0
        name(db, 1, local=False)
        db.execute("reset stateroom.tenant")
        assert count(db) == 0


async def test_P28_what_one_borrower_of_a_connection_named_does_not_reach_the_next(filled: str) -> None:
    """Even a name that somebody set for the whole session, beside us, shows nothing of it to our reads: each names its own."""
    backend = await PostgresBackend.open(f"{as_role(filled)}&readers=1&lanes=1")
    try:
        north, south = (Actor(backend, operator(tenant)) for tenant in TENANTS)
        for _ in range(3):
            for actor in (north, south):
                (head,) = await backend.conversations(actor.scope, after=ids.NIL, limit=10)
                other = south if actor is north else north
                assert head.id not in [found.id for found in await backend.conversations(other.scope, after=ids.NIL, limit=10)]
        left = await backend._ask("select coalesce(nullif(current_setting('stateroom.tenant', true), ''), 'nobody')")
        assert left == [("nobody",)]
        await asyncio.gather(*(actor.opens_conversation("more") for actor in (north, south) for _ in range(5)))
        await backend._ask("select set_config('stateroom.tenant', '2', false)")  # a stray session-level name
        assert len(await backend.conversations(north.scope, after=ids.NIL, limit=100)) == 6
        assert await backend.conversations(Actor(backend, operator("nowhere")).scope, after=ids.NIL, limit=10) == []
    finally:
        await backend.close()


async def test_P28_a_name_outside_of_a_transaction_reaches_no_statement(filled: str) -> None:
    """It fails closed: nothing is seen, and nothing of another tenant's."""
    with connected(filled, APP) as db:
        name(db, 1)
        assert count(db) == 0


async def test_P28_a_view_shows_what_its_owner_sees_unless_it_asks_as_the_invoker(filled: str) -> None:
    with connected(filled) as db:
        db.execute("create view through as select * from item")
        db.execute("create view invoked with (security_invoker = true) as select * from item")
        db.execute(f"grant select on through, invoked to {APP}")
    with connected(filled, APP) as db:
        assert (count(db, "through"), count(db, "invoked")) == (2, 0)  # why we have none, and why the doctor looks for some
        with db.transaction():
            name(db, 1)
            assert count(db, "invoked") == 1
    with connected(filled) as db:
        ours = db.execute(
            "select count(*) from pg_views where schemaname = 'stateroom' and viewname not in ('through', 'invoked')"
        )
        assert ours.fetchone() == (0,)


async def test_P28_another_tenants_id_can_be_used_as_if_nobody_had_it(filled: str) -> None:
    """A unique index over ids alone would say whether somebody has one: the tenant is in every unique index."""
    with connected(filled) as db:
        oracles = db.execute(
            "select i.indexrelid::regclass::text from pg_index i join pg_class t on t.oid = i.indrelid"
            " join pg_attribute a on a.attrelid = t.oid and a.attname = 'tenant'"
            " where t.relnamespace = 'stateroom'::regnamespace and t.relrowsecurity and i.indisunique"
            " and a.attnum <> all (i.indkey)"
        ).fetchall()
        assert oracles == []
    backend = await PostgresBackend.open(as_role(filled))
    try:
        north, south = (Actor(backend, operator(tenant)) for tenant in TENANTS)
        (head,) = await backend.conversations(north.scope, after=ids.NIL, limit=10)
        await south.does(CreateConversation(id=head.id, owner="south's", subject="someone"))
        assert (await backend.conversation(south.scope, head.id)).owner == "south's"
        assert (await backend.conversation(north.scope, head.id)).owner == head.owner
    finally:
        await backend.close()


# ── who must not serve ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("made", "code"),
    [
        ("superuser", "role_superuser"),
        ("bypassrls in role stateroom_app", "role_bypassrls"),
        ("in role stateroom_owner", "role_owner"),
        ("in role stateroom_app, stateroom_owner", "role_owner"),
    ],
)
async def test_P28_whom_no_wall_holds_is_not_served_as(filled: str, made: str, code: str) -> None:
    with a_role(filled, made) as strong, pytest.raises(InvalidInput) as refused:
        await PostgresBackend.open(as_role(filled, strong))
    assert refused.value.reason == code
    assert APP in refused.value.message


async def test_P28_nobody_is_served_while_the_wall_is_open_and_migrating_mends_it(filled: str) -> None:
    with connected(filled) as db:
        db.execute("alter table slot disable row level security")
        db.execute("alter policy tenant on run using (true)")
        db.execute("drop policy system on leaf_1")
    with pytest.raises(InvalidInput) as refused:
        await PostgresBackend.open(as_role(filled))
    assert refused.value.reason == "wall_open"
    said = list[str]()
    assert migrate(filled, say=said.append) == 0
    assert sorted(said) == ["mending the wall of leaf_1", "mending the wall of run", "mending the wall of slot"]
    await (await PostgresBackend.open(as_role(filled))).close()


async def test_a_login_role_of_its_own_serves_when_it_was_granted_the_apps(filled: str) -> None:
    with a_role(filled, "in role stateroom_app") as mine:
        with pytest.raises(InvalidInput) as refused:
            await PostgresBackend.open(as_role(filled, mine))
        assert refused.value.reason == "search_path"
        assert f"alter role {mine} set search_path" in refused.value.message
        backend = await PostgresBackend.open(f"{as_role(filled, mine)}&options=-c%20search_path%3Dstateroom")
        assert await Actor(backend, operator("north")).opens_conversation("as mine")
        await backend.close()


@pytest.mark.parametrize(
    "change",
    ["alter policy system on conversation to public", "alter policy tenant on slot with check (true)"],
)
async def test_P28_a_policy_for_others_or_for_other_writes_is_an_open_wall(filled: str, change: str) -> None:
    with connected(filled) as db:
        db.execute(change)
    with pytest.raises(InvalidInput) as refused:
        await PostgresBackend.open(as_role(filled))
    assert refused.value.reason == "wall_open"
    migrate(filled, say=lambda line: None)
    await (await PostgresBackend.open(as_role(filled))).close()


async def test_P28_who_only_looks_may_write_nothing_once_migrate_has_run(filled: str) -> None:
    with connected(filled) as db:
        db.execute(f"grant update, delete on item to {READER}")
    migrate(filled, say=lambda line: None)
    with connected(filled) as db:
        assert db.execute("select has_table_privilege(%s, 'item', 'delete')", (READER,)).fetchone() == (False,)


async def test_who_may_not_write_is_told_before_the_first_turn(filled: str) -> None:
    with connected(filled) as db:
        db.execute(f"revoke insert on item from {APP}")
    with pytest.raises(InvalidInput) as refused:
        await PostgresBackend.open(as_role(filled))
    assert refused.value.reason == "grants_missing"
