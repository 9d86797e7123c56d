"""Stores of ours on the tests' PostgreSQL: one database per worker, emptied between two tests."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from psycopg import sql

from stateroom.backends.postgres.migrate import migrate
from tests.services.postgres import Server

_KEPT = ("meta", "migration", "clock")  # what a store is known by


def as_role(url: str, role: str = "stateroom_app") -> str:
    """The same database for another role."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{role}@{parts.netloc.rpartition('@')[2]}"))


def migrated(url: str) -> str:
    """The same database with our tables in it."""
    migrate(url, say=lambda line: None)
    return url


@contextmanager
def new_store(server: Server) -> Iterator[str]:
    """A database with our tables; it is dropped afterwards, whoever still is connected to it."""
    name = f"store_{uuid.uuid4().hex}"
    yield migrated(server.create_database(name))
    server.drop_database(name)


@pytest.fixture(scope="session")
def postgres_worker_store(postgres_server: Server) -> Iterator[str]:
    with new_store(postgres_server) as url:
        yield url


@pytest.fixture
def postgres_store(postgres_worker_store: str) -> Iterator[str]:
    """The address of an empty store, for a superuser; workers open it `as_role`. Nobody may go on using it after the test."""
    yield postgres_worker_store
    empty(postgres_worker_store)


@pytest.fixture(scope="session")
def oldest_worker_store(oldest_server: Server) -> Iterator[str]:
    with new_store(oldest_server) as url:
        yield url


@pytest.fixture
def oldest_store(oldest_worker_store: str) -> Iterator[str]:
    """The same on the oldest version that is supported."""
    yield oldest_worker_store
    empty(oldest_worker_store)


@pytest.fixture
def postgres_fresh_store(postgres_database: str) -> str:
    """Like `postgres_store`, in a database of its own: for tests that change roles, tables or what a store is known by."""
    return migrated(postgres_database)


def empty(url: str) -> None:
    """Every row goes; time starts anew. Whoever still is connected is cut off."""
    with psycopg.connect(url, autocommit=True, options="-c search_path=stateroom") as db:
        db.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database()"
            " and pid <> pg_backend_pid() and usename = 'stateroom_app' and state <> 'idle'"
        )
        names = [name for (name,) in db.execute("select tablename from pg_tables where schemaname = 'stateroom'")]
        with db.transaction():
            for name in names:
                if name not in _KEPT:
                    db.execute(sql.SQL("delete from {}").format(sql.Identifier(name)))
            db.execute("delete from meta where name = 'on_expiry'")
            db.execute("update clock set correction = 0, boot = '', boot_ms = 0, store_ms = 0")
