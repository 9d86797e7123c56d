"""A plan that was made while the tables were empty stays good: rows are found by their key, whatever lists there are."""

from __future__ import annotations

import psycopg
import pytest

from stateroom.backends.postgres.pipe import dollars
from stateroom.backends.sql.conversation import BRANCH
from stateroom.backends.sql.run_read import KEY, RUN
from stateroom.backends.sql.session import SESSION, SLOT

BY_KEY = {"run": RUN, "branch": BRANCH, "session": SESSION, "slot": SLOT, "turn_key": KEY}


def lines(url: str, statement: str) -> list[str]:
    with psycopg.connect(url, options="-c search_path=stateroom -c enable_seqscan=off") as db:
        return [str(row[0]) for row in db.execute(statement.encode()).fetchall()]


@pytest.mark.parametrize("table", BY_KEY)
def test_a_row_is_found_by_its_key_even_when_the_plan_was_made_on_an_empty_table(postgres_store: str, table: str) -> None:
    plan = "\n".join(lines(postgres_store, f"explain (generic_plan) {dollars(BY_KEY[table])}"))
    assert f"using {table}_pkey" in plan, plan


def test_every_index_beside_the_keys_has_a_condition(postgres_store: str) -> None:
    """Without one it is as good as the key to a planner that knows nothing, and everything of a tenant is walked."""
    found = lines(
        postgres_store,
        "select indexrelid::regclass::text from pg_index join pg_class on pg_class.oid = indexrelid"
        " where not indisprimary and indpred is null and relnamespace = 'stateroom'::regnamespace",
    )
    assert found == ["tenant_name_key"]
