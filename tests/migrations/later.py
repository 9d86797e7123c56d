"""A version that has not been written yet: a column with a default, a column that is filled in batches, an index made while
the table is written, a table. `python -m tests.migrations.later URL` runs its migration on PostgreSQL."""

from __future__ import annotations

import sys
from typing import Final

from stateroom.backends.postgres import schema as postgres_schema
from stateroom.backends.postgres.migrate import migrate
from stateroom.backends.sql.migration import Migration, Step
from stateroom.backends.sqlite import schema as sqlite_schema

_TAG: Final = "create table tag(tenant bigint, home bigint, id bytea, name text, primary key (tenant, home, id, name));"
POSTGRES: Final = Migration(
    version=postgres_schema.VERSION + 1,
    name="a later build",
    needs=postgres_schema.VERSION,
    steps=(
        Step("alter table item add column mood text not null default 'calm'; alter table run add column weight bigint"),
        postgres_schema.concurrently("run_by_weight", "run(tenant, weight) where weight is not null"),
        Step(
            "update run set weight = head * 2 where ctid = any(array(select ctid from run where weight is null limit 30))",
            batched=True,
        ),
        Step(_TAG + postgres_schema.wall_of("tag")),
    ),
)
SQLITE: Final = Migration(
    version=sqlite_schema.VERSION + 1,
    name="a later build",
    needs=sqlite_schema.VERSION,
    steps=(
        Step("alter table item add column mood text not null default 'calm'; alter table run add column weight integer"),
        Step("create index run_by_weight on run(tenant, weight)"),
        Step(
            "update run set weight = head * 2 where rowid in (select rowid from run where weight is null limit 3)",
            batched=True,
        ),
        Step("create table tag(tenant integer, home integer, id blob, name text, primary key (tenant, home, id, name))"),
    ),
)


def say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    migrate(sys.argv[1], say=say, migrations=(*postgres_schema.MIGRATIONS, POSTGRES))
