"""The postgres backend keeps every promise."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import psycopg
import pytest

from stateroom.backends.postgres import schema
from stateroom.backends.postgres.backend import PostgresBackend
from stateroom.conformance import BackendConformance
from tests.services.store import as_role


class TestPostgres(BackendConformance):
    @pytest.fixture
    def place(self, tmp_path: Path, postgres_store: str) -> Path:
        """A folder that says where the store is."""
        (tmp_path / "url").write_text(postgres_store)
        return tmp_path

    async def open_handle(self, place: Path) -> PostgresBackend:
        return await PostgresBackend.open(as_role((place / "url").read_text()), clock=self.clock)

    def rows(self, place: Path) -> Mapping[str, int]:
        with psycopg.connect((place / "url").read_text(), options="-c search_path=stateroom") as db:
            found = db.execute(
                "select relname from pg_class where relnamespace = 'stateroom'::regnamespace"
                " and relkind in ('r', 'p') and not relispartition"
            )
            return {name: db.execute(f'select count(*) from "{name}"').fetchone()[0] for (name,) in found.fetchall()}

    def holds(self, place: Path, words: bytes) -> bool:
        with psycopg.connect((place / "url").read_text(), options="-c search_path=stateroom") as db:
            for table in schema.COPIES:
                columns = db.execute(
                    "select attname from pg_attribute where attrelid = %s::regclass and attnum > 0 and not attisdropped", (table,)
                )
                for (name,) in columns.fetchall():
                    sql = f'select 1 from "{table}" where position(%s in convert_to("{name}"::text, \'utf8\')) > 0 limit 1'
                    raw = f'select 1 from "{table}" where position(%s::bytea in "{name}") > 0 limit 1'
                    is_bytes = db.execute(f'select pg_typeof("{name}")::text from "{table}" limit 1').fetchone()
                    if is_bytes and db.execute(raw if is_bytes[0] == "bytea" else sql, (words,)).fetchone():
                        return True
        return False
