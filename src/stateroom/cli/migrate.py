"""`stateroom migrate`: brings a store's tables, and for PostgreSQL its roles and grants, up to this version."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import apsw

from stateroom.backends import urls
from stateroom.backends.sql.migration import left
from stateroom.backends.sqlite import db, migrate, schema
from stateroom.cli.extra import load
from stateroom.cli.place import add_place, folder_of, url_of
from stateroom.cli.terminal import FAILED, OK
from stateroom.clock import SystemClock
from stateroom.errors import InvalidInput

_EPILOG = """examples:
  stateroom migrate --store postgresql://admin@db.example/app          before workers of a new version start
  stateroom migrate --store postgresql://admin@db.example/app --check  what is missing; exit code 1 when something is
  stateroom migrate --data ./stateroom-data

Workers go on meanwhile. It may be interrupted and run again: what was done is recorded. For PostgreSQL name a role that may
create roles and, in this database, schemas; workers then connect as stateroom_app. Passwords are better kept out of the URL:
libpq reads ~/.pgpass and PGPASSWORD."""


def add(commands: Any) -> None:
    what = "bring a store's tables up to this version, while workers use it; for PostgreSQL roles and grants too"
    parser: argparse.ArgumentParser = commands.add_parser(
        "migrate", help="bring a store up to this version", description=what, epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add_place(parser)
    parser.add_argument(
        "--check",
        "--dry-run",
        action="store_true",
        help="only say what is missing or wrong (roles, grants, walls); then the exit code is 1",
    )
    parser.set_defaults(command=_run)


class Migrator(Protocol):
    """What both kinds of stores bring."""

    def run(self) -> int:
        """How many steps ran."""
        ...

    def stop(self) -> None: ...


async def _run(args: argparse.Namespace) -> int:
    url = url_of(args)
    if urls.is_postgres(url):
        return await _postgres(url, check=args.check)
    if (folder := folder_of(url)) is None:
        raise InvalidInput("There is nothing to migrate in a store that is gone with its process.", code="store_url_invalid")
    return await _sqlite(folder, check=args.check)


async def _postgres(url: str, *, check: bool) -> int:
    settings = load("stateroom.backends.postgres.settings").Settings.parse(url)
    if settings.pooler:
        raise InvalidInput(
            "A migrator holds a lock for as long as it works, which a pooler does not allow: give it the database's own address.",
            code="pooler_in_the_way",
        )
    module = load("stateroom.backends.postgres.migrate")
    if check:
        missing = await asyncio.to_thread(module.missing, settings.conninfo)
        found = [] if missing else await asyncio.to_thread(module.unsound, settings.conninfo)
        return _told(missing, [f"{finding.what} {finding.remedy}" for finding in found])
    if await _work(module.Migrator(settings.conninfo, say=_say)):
        _say("workers connect as stateroom_app, people who look as stateroom_reader: see that the server lets them in")
    return OK


async def _sqlite(folder: Path, *, check: bool) -> int:
    file = folder / "state.db"
    if check and not file.exists():
        return _told([migration.title(number) for migration, number in left(schema.MIGRATIONS, ())])
    await asyncio.to_thread(folder.mkdir, mode=0o700, parents=True, exist_ok=True)
    try:
        connection = db.connect(file, readonly=check)
        try:
            if check:
                return _told([migration.title(number) for migration, number in migrate.missing(connection)])
            await _work(migrate.Migrator(connection, SystemClock().wall_ms(), say=_say))
            return OK
        finally:
            connection.close(True)
    except apsw.Error as error:
        raise db.translate(error) from error


async def _work(migrator: Migrator) -> int:
    """How many steps ran. It runs beside the loop, which hears Ctrl-C; its statement is ended then, and what was done before
    it is kept."""
    working = asyncio.create_task(asyncio.to_thread(migrator.run))
    try:
        ran = await asyncio.shield(working)
    except asyncio.CancelledError:
        await asyncio.to_thread(migrator.stop)
        await asyncio.gather(working, return_exceptions=True)
        _say("stopped; what was done is recorded, run it again to go on from there")
        raise
    _say(f"done: {_steps(ran)}" if ran else "nothing to do: the tables are as this version needs them")
    return ran


def _told(missing: list[str], wrong: Sequence[str] = ()) -> int:
    for title in missing:
        _say(f"missing: {title}")
    for what in wrong:
        _say(f"wrong: {what}")
    if missing or wrong:
        return FAILED
    _say("nothing is missing")
    return OK


def _steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count} steps"


def _say(line: str) -> None:
    print(line, flush=True)
