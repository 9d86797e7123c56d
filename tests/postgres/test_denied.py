"""Who is turned away for good is told so at once; who may come back later waits."""

from __future__ import annotations

import asyncio

import pytest

from stateroom.backends.postgres.backend import PostgresBackend
from stateroom.backends.postgres.pipe import Lost, lost_or_denied
from stateroom.errors import Unavailable
from tests.services.store import as_role

pytestmark = pytest.mark.anyio


async def test_a_role_or_a_database_that_does_not_exist_is_no_reason_to_wait(postgres_store: str) -> None:
    for url in (as_role(postgres_store, "nobody_at_all"), as_role(postgres_store).replace("/store_", "/nowhere_")):
        began = asyncio.get_running_loop().time()
        with pytest.raises(Unavailable) as refused:
            await PostgresBackend.open(url)
        assert refused.value.reason == "store_denied"
        assert "does not exist" in refused.value.message
        assert asyncio.get_running_loop().time() - began < 5


@pytest.mark.parametrize(
    ("message", "for_good"),
    [
        ('FATAL:  password authentication failed for user "app"', True),
        ('FATAL:  no pg_hba.conf entry for host "10.0.0.1", user "app", database "x", no encryption', True),
        ('FATAL:  database "x" does not exist', True),
        ("FATAL:  no such database: x", True),
        ("FATAL:  server login has been failing, try again later (server_login_retry)", False),
        ("FATAL:  query_wait_timeout", False),
        ("FATAL:  pgbouncer cannot connect to server", False),
        ("FATAL:  sorry, too many clients already", False),
        ("FATAL:  the database system is starting up", False),
        ("connection refused", False),
    ],
)
def test_only_what_will_not_pass_is_a_refusal(message: str, for_good: bool) -> None:
    """A pooler says FATAL, too, while the database behind it restarts."""
    assert isinstance(lost_or_denied(message), Unavailable if for_good else Lost)
