"""Who is turned away for good is told so at once; who may come back later waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import psycopg
import pytest

from stateroom import ids
from stateroom.backends.postgres.backend import PostgresBackend
from stateroom.backends.postgres.migrate import migrate, missing, unsound
from stateroom.backends.postgres.pipe import Lost, lost_or_denied
from stateroom.batch import Batch
from stateroom.conversation.model import CreateConversation
from stateroom.errors import Forbidden, InvalidInput, Unavailable
from stateroom.ids import NIL
from stateroom.principal import LOCAL
from tests.services.postgres import Server
from tests.services.store import as_role

pytestmark = pytest.mark.anyio


async def test_a_role_or_a_database_that_does_not_exist_is_no_reason_to_wait(postgres_store: str) -> None:
    for url in (as_role(postgres_store, "nobody_at_all"), as_role(postgres_store).replace("/store_", "/nowhere_")):
        began = asyncio.get_running_loop().time()
        with pytest.raises(Unavailable) as refused:
            await PostgresBackend.open(url)
        assert refused.value.reason == "store_denied"
        assert "does not exist" in refused.value.message
        assert asyncio.get_running_loop().time() - began < 5


@pytest.mark.parametrize(
    ("message", "for_good"),
    [
        ('FATAL:  password authentication failed for user "app"', True),
        ('FATAL:  no pg_hba.conf entry for host "10.0.0.1", user "app", database "x", no encryption', True),
        ('FATAL:  database "x" does not exist', True),
        ("FATAL:  no such database: x", True),
        ("FATAL:  server login has been failing, try again later (server_login_retry)", False),
        ("FATAL:  query_wait_timeout", False),
        ("FATAL:  pgbouncer cannot connect to server", False),
        ("FATAL:  sorry, too many clients already", False),
        ("FATAL:  the database system is starting up", False),
        ("connection refused", False),
    ],
)
def test_only_what_will_not_pass_is_a_refusal(message: str, for_good: bool) -> None:
    """A pooler says FATAL, too, while the database behind it restarts."""
    assert isinstance(lost_or_denied(message), Unavailable if for_good else Lost)


@pytest.mark.parametrize("look", [migrate, missing])
def test_a_wrong_password_is_told_by_its_name(look: Callable[[str], object]) -> None:
    with Server.start(settings={"password_encryption": "scram-sha-256"}) as server:
        server.execute("create role maker login superuser password 'right'")
        (server.data / "pg_hba.conf").write_text("host all maker all scram-sha-256\nlocal all postgres trust\n")
        server.execute("select pg_reload_conf()")
        with pytest.raises(Unavailable) as refused:
            look(server.url("postgres", user="maker", tcp=True).replace("maker@", "maker:wrong@"))
        assert (refused.value.reason, "password" in refused.value.message) == ("store_denied", True)


async def test_a_worker_whose_grants_were_taken_is_not_ready(postgres_store: str) -> None:
    backend = await PostgresBackend.open(as_role(postgres_store))
    try:
        await backend.check()
        with psycopg.connect(postgres_store, autocommit=True, options="-c search_path=stateroom") as db:
            db.execute("revoke insert on item from stateroom_app")
            try:
                backend._granted_until = 0  # as it is some seconds later
                with pytest.raises(Unavailable) as refused:
                    await backend.check()
                assert (refused.value.reason, "item" in refused.value.message) == ("store_not_ready", True)
            finally:
                db.execute("grant insert on item to stateroom_app")
        await backend.check()
    finally:
        await backend.close()


async def test_who_only_looks_reads_and_neither_serves_nor_writes(postgres_fresh_store: str) -> None:
    """The reader's role, and one of somebody's own that was granted it."""
    with psycopg.connect(postgres_fresh_store, autocommit=True) as db:
        db.execute("create role looker login in role stateroom_reader")
        db.execute("alter role looker set search_path = stateroom")
    try:
        for role in ("stateroom_reader", "looker"):
            url = as_role(postgres_fresh_store, role)
            with pytest.raises(InvalidInput) as refused:
                await PostgresBackend.open(url)
            assert (refused.value.reason, "stateroom_app" in refused.value.message) == ("role_reads_only", True)
            backend = await PostgresBackend.open(url, reading=True)
            try:
                assert await backend.conversations(LOCAL, after=NIL, limit=10) == []
                write = CreateConversation(id=ids.new(0, 0), owner="local", subject="local")
                with pytest.raises(Forbidden) as forbidden:
                    await backend.commit(Batch(id=ids.new(0, 0), scope=LOCAL, at=0, writes=(write,)))
                assert forbidden.value.reason == "store_read_only"
            finally:
                await backend.close()
    finally:
        with psycopg.connect(postgres_fresh_store, autocommit=True) as db:
            db.execute("drop role looker")


def test_who_makes_roles_is_told_what_lets_it_use_those_that_are_there() -> None:
    """Two databases of one server, each with an administrator of its own."""
    with Server.start() as server:
        for name in ("first", "Second one"):
            server.execute(f'create role "{name}" login createrole')
            server.execute(f'create database "{name}" owner "{name}"')
        assert migrate(server.url("first", user="first"), say=lambda line: None) > 0
        url = server.url("Second one", user="Second one")
        with pytest.raises(InvalidInput) as refused:
            migrate(url, say=lambda line: None)
        assert refused.value.reason == "role_too_weak"
        server.execute(refused.value.message.rpartition("run: ")[2])
        assert migrate(url, say=lambda line: None) > 0
        assert unsound(url) == []
