"""The doctor's command: which store, and how its findings are shown."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterable
from typing import Any

from stateroom.backends import urls
from stateroom.cli.doctor import sqlite
from stateroom.cli.doctor.finding import Finding
from stateroom.cli.extra import load
from stateroom.cli.place import add_place, folder_of, url_of
from stateroom.cli.terminal import FAILED, OK, show_json
from stateroom.errors import InvalidInput, NotFound

_DESCRIPTION = (
    "Look a store over: whether it can be used, what it holds, and what threatens it. A folder: permissions, disk space, version,"
    " integrity, log size, who is alive, runs that hang, the clock. A PostgreSQL database: version, role, row-level security,"
    " migrations, durability, connections, long transactions, vacuum, standbys, and the record of each tenant."
)
_EPILOG = """examples:
  stateroom doctor --data ./stateroom-data
  stateroom doctor --store postgresql://stateroom_app@db.example/app    with the URL that workers use, or stateroom_reader's

exit code 1 when something is bad"""


def add(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "doctor", help="what is wrong with a store, and what to do", description=_DESCRIPTION, epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add_place(parser)
    parser.add_argument("--json", action="store_true", help="for machines: one finding a line")
    parser.set_defaults(command=_run)


async def _run(args: argparse.Namespace) -> int:
    url = url_of(args)
    if urls.is_postgres(url):
        examine = load("stateroom.cli.doctor.postgres").examine
        return await asyncio.to_thread(_told, args, examine(url))
    if (folder := folder_of(url)) is None:
        raise InvalidInput("A store that is gone with its process needs no doctor.", code="store_url_invalid")
    if not await asyncio.to_thread(folder.exists):
        raise NotFound(f"There is no store at {folder}.", code="store_missing")
    return _told(args, sqlite.examine(folder))


def _told(args: argparse.Namespace, findings: Iterable[Finding]) -> int:
    """Each as soon as it is found; the exit code."""
    bad = False
    for finding in findings:
        bad = bad or finding.level == "bad"
        if args.json:
            show_json(finding)
            continue
        print(f"{finding.level:<4}  {finding.what}" + (f"  ({finding.code})" if finding.level != "ok" else ""), flush=True)
        if finding.remedy:
            print(f"      {finding.remedy}", flush=True)
    return FAILED if bad else OK
