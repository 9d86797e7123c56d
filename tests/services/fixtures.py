"""PostgreSQL for tests: one server for the whole run, whoever needs it first starts it; a fresh database for each test."""

from __future__ import annotations

import fcntl
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.services import pgbouncer, postgres
from tests.services.pgbouncer import Pooler
from tests.services.postgres import Server


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Server:
    """The newest version, without fsync: for everything but crashes. All workers of a run share it, and it ends with the last
    of them. Do not stop it, and change no setting."""
    return shared(run_folder(tmp_path_factory))


@pytest.fixture(scope="session")
def oldest_server(tmp_path_factory: pytest.TempPathFactory) -> Server:
    """The same, of the oldest version that is supported."""
    return shared(run_folder(tmp_path_factory), need_version(postgres.OLDEST))


@pytest.fixture(scope="session")
def pooler(postgres_server: Server) -> Iterator[Pooler]:
    """A pool in transaction mode before `postgres_server`."""
    need_pgbouncer()
    with Pooler.start(postgres_server, mode="transaction") as running:
        yield running


@pytest.fixture
def postgres_database(postgres_server: Server) -> Iterator[str]:
    """The address of an empty database; it is dropped afterwards, whoever still is connected to it."""
    name = f"test_{uuid.uuid4().hex}"
    yield postgres_server.create_database(name)
    postgres_server.drop_database(name)


def need_version(version: int) -> int:
    """Skip, saying why, where it cannot be started."""
    if version not in postgres.available_versions():
        pytest.skip(f"POSTGRESQL {version} NOT TESTED: it is not installed here; `make services` does that on Debian")
    return version


def need_pgbouncer() -> None:
    """Skip, saying why, where there is none."""
    if pgbouncer.program() is None:
        pytest.skip("PGBOUNCER NOT TESTED: it is not installed here; `make services` does that on Debian")


def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What all workers of a run have in common."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


def shared(root: Path, version: int = postgres.NEWEST) -> Server:
    """The server of this folder: the one that runs, else a new one."""
    note = root / f"postgres-{version}.json"
    with alone(root / f"postgres-{version}.lock"):
        if note.exists() and (running := Server.noted(note.read_text(encoding="utf-8"))):
            return running
        server = Server.start(version=version, fsync=False)
        note.write_text(server.note(), encoding="utf-8")
        return server


@contextmanager
def alone(lock: Path) -> Iterator[None]:
    """One at a time, of all processes; the others wait."""
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
