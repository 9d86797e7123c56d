"""Which store a play is about: the SQLite one in its folder, or the PostgreSQL database that the folder names."""

from __future__ import annotations

from pathlib import Path

from stateroom.backends.base import Backend
from stateroom.backends.postgres.backend import PostgresBackend
from stateroom.backends.sqlite.backend import SqliteBackend
from stateroom.clock import Clock
from tests.services.store import as_role

Place = Path | str  # a folder of SQLite's, or the address of a database as workers open it


def on_postgres(folder: Path, url: str, *, workers: str = "") -> Path:
    """The plays of this folder are about that database: a superuser's address of it, and how workers get there."""
    folder.mkdir(exist_ok=True)
    (folder / "admin").write_text(url)
    (folder / "url").write_text(as_role(workers or url))
    return folder


def place_of(folder: Path) -> Place:
    named = folder / "url"
    return named.read_text() if named.exists() else folder / "store"


def inside_of(folder: Path) -> Place:
    """The same for somebody who may look at every row."""
    named = folder / "admin"
    return named.read_text() if named.exists() else folder / "store"


def url_of(place: Place) -> str:
    return place if isinstance(place, str) else f"sqlite:///{place}"


async def open_backend(place: Place, *, clock: Clock | None = None, synchronous: str = "full") -> Backend:
    if isinstance(place, str):
        return await PostgresBackend.open(place, clock=clock)
    return await SqliteBackend.open(place, clock=clock, synchronous=synchronous)
