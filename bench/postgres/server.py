"""A private PostgreSQL for a bench, with fsync on, and what its processes have used of the processor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from stateroom.backends.postgres.migrate import migrate
from tests.services.postgres import Server

# A machine's worth of buffers; what a turn waits for stays as it ships: fsync, full_page_writes, synchronous_commit.
SETTINGS = {"shared_buffers": "512MB", "max_wal_size": "4GB", "checkpoint_timeout": "15min"}


@contextmanager
def served(folder: Path) -> Iterator[Server]:
    with Server.start(folder, fsync=True, settings=SETTINGS) as server:
        yield server


def store(server: Server, name: str) -> str:
    """A database with our tables; its address for a worker."""
    migrate(server.create_database(name), say=lambda _: None)
    return server.url(name, user="stateroom_app")


def cpu_s(server: Server) -> float:
    """Seconds of the processor that the server has used so far, with the backends that have ended."""
    head = server.process()
    assert head is not None
    own = head.cpu_times()
    spent = own.user + own.system + own.children_user + own.children_system
    for child in head.children(recursive=True):
        try:
            times = child.cpu_times()
        except psutil.NoSuchProcess:  # ended meanwhile
            continue
        spent += times.user + times.system
    return spent
