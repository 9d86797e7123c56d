"""The sqlite backend keeps every promise."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import apsw

from stateroom.backends.sqlite.backend import SqliteBackend
from stateroom.conformance import BackendConformance


class TestSqlite(BackendConformance):
    async def open_handle(self, place: Path) -> SqliteBackend:
        return await SqliteBackend.open(place, clock=self.clock)

    def rows(self, place: Path) -> Mapping[str, int]:
        db = apsw.Connection(str(place / "state.db"), flags=apsw.SQLITE_OPEN_READONLY)
        tables = [name for (name,) in db.execute("select name from sqlite_schema where type = 'table'")]
        counts = {name: db.execute(f'select count(*) from "{name}"').get for name in tables}
        db.close()
        return counts | {f"{path.name}/": len(list(path.iterdir())) for path in place.iterdir() if path.is_dir()}
