"""Which store a command means, and how it is opened for reading: no agents, no recovery."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from stateroom import ids, stack
from stateroom.backends import urls
from stateroom.backends.base import Backend
from stateroom.errors import NotFound
from stateroom.principal import Scope, operator

FOLDER = "stateroom-data"


def add_place(parser: argparse.ArgumentParser) -> None:
    """--data or --store: where the store is."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--data", metavar="DIR", default=FOLDER, help=f"folder of the embedded store (default ./{FOLDER})")
    group.add_argument("--store", metavar="URL", help="its URL: sqlite:///folder, sqlite:////folder, postgresql://role@host/db")


def add_reading(parser: argparse.ArgumentParser) -> None:
    """What every command that shows something takes."""
    add_place(parser)
    parser.add_argument("--tenant", default="local", help="whose objects (default: local)")
    parser.add_argument("--json", action="store_true", help="for machines: JSON, one document a line")


def url_of(args: argparse.Namespace) -> str:
    """The store's URL."""
    return args.store or f"sqlite:///{args.data}"


def folder_of(url: str) -> Path | None:
    """The folder of an embedded store; None for any other."""
    scheme, _, rest = url.partition("://")
    return Path(rest[1:]) if scheme == "sqlite" and rest.startswith("/") and len(rest) > 1 else None


def is_shared(url: str) -> bool:
    """Whether several processes can use the store."""
    return folder_of(url) is not None or urls.is_postgres(url)


def scope_of(args: argparse.Namespace) -> Scope:
    """Whoever can read the store's files, or log in at its database, sees a whole tenant."""
    return operator(args.tenant)


@asynccontextmanager
async def opened(args: argparse.Namespace, *, writing: bool = False) -> AsyncIterator[Backend]:
    """The store, for reading unless it is said otherwise. NotFound (`store_missing`) instead of making a new one."""
    url = url_of(args)
    folder = folder_of(url)
    if folder is not None and not (folder / "state.db").exists():
        raise NotFound(f"There is no store at {folder}.", code="store_missing")
    backend = await stack.open_backend(url, reading=not writing)
    try:
        yield backend
    finally:
        await backend.close()


def run_id(given: str) -> bytes:
    """A run's id, by the run's or its response's text. NotFound for anything else."""
    return ids.parse("response" if given.startswith("resp_") else "run", given)
