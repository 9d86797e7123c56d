"""What was released: the digest of each migration, and how to make a store of an earlier schema with rows in it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import apsw
import psycopg

from stateroom.backends.postgres import schema as postgres_schema
from stateroom.backends.postgres.migrate import migrate as migrate_postgres
from stateroom.backends.sqlite import schema as sqlite_schema
from stateroom.backends.sqlite.migrate import migrate as migrate_sqlite

HERE: Final = Path(__file__).parent
# A new migration gets a line; a line is never changed.
SQLITE: Final[Mapping[int, str]] = {
    1: "264a4b94b42be25204b1205c3f9109117386ebac42b4d62b58ec48e024af5877",
    2: "d6d4ae248c9d2d2c468a51b58dbd538774f219c3e2dd7a7725a7e166ee940c1b",
    3: "e56feb281b8b26e00d34d24b177e90292dfcbb1cea264b6ce71769c23414a4e6",
    4: "32ea5bd98fea8965e8d57d608f48cfa0f0a3901f387d31a2f4d707686f57c229",
}
POSTGRES: Final[Mapping[int, str]] = {
    1: "352f6edd7b835c2b4efac1e7f35343d09b31dc279748083dfe8beb8f94987148",
    2: "553ea85068f02e70529ebdc16fc1f581c57be4554a6c52e22b933b3e75e2d202",
    3: "485ab0efb4fe769d20ba4b39cc42aa61872c8872f03c469ec50b121e5199e18c",
    4: "195319b3f4effd2188dca202378f8d0e218feba53fa9cb76cb18ca74dc20d7a9",
}


def rows_of(version: int) -> str:
    """What the last worker of that schema left: turns that ended, one that was cut short, and one that waits behind it."""
    return (HERE / f"schema_{version}.sql").read_text(encoding="utf-8")


def make_sqlite(folder: Path, version: int) -> None:
    """A folder as it was at that schema."""
    folder.mkdir(exist_ok=True)
    db = apsw.Connection(str(folder / "state.db"))
    migrate_sqlite(db, 0, migrations=sqlite_schema.MIGRATIONS[:version])
    db.execute("drop table migration_step")  # there was none in those days
    db.execute(rows_of(version))
    db.close()


def make_postgres(url: str, version: int) -> None:
    """A database as it was at that schema."""
    migrate_postgres(url, say=lambda line: None, migrations=postgres_schema.MIGRATIONS[:version])
    rows = rows_of(version).replace("insert into tenant(number, name) values (1, ", "insert into tenant(name) values (")
    with psycopg.connect(url, options="-c search_path=stateroom") as db:
        db.execute(re.sub(r"x'([0-9a-f]*)'", r"'\\x\1'", rows).encode())
