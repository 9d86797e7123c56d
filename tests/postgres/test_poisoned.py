"""A pooler may give away a server that somebody left in the middle of an exchange: his answers are never taken for ours."""

from __future__ import annotations

from contextlib import suppress

import psycopg

from stateroom.backends.postgres.pipe import Lost, Pipe
from tests.services.fixtures import need_pgbouncer
from tests.services.pgbouncer import Pooler
from tests.services.postgres import Server


def leave_in_the_middle(url: str) -> None:
    """Two exchanges are under way; this client goes when it has the answer of the first."""
    connection = psycopg.connect(url, autocommit=True)
    pg = connection.pgconn
    pg.enter_pipeline_mode()
    for statement in (b"select 'mine'", b"select 'mine, too' from pg_sleep(0.3)"):
        pg.send_query_params(statement, [])
        pg.pipeline_sync()
    pg.flush()
    while pg.get_result() is None:
        pass
    connection.close()


def test_P28_the_answers_of_somebody_who_left_are_nobodys(postgres_server: Server, postgres_database: str) -> None:
    need_pgbouncer()
    with Pooler.start(postgres_server, pool_size=1) as pooler:
        url = pooler.url(postgres_database.rpartition("/")[2].partition("?")[0])
        told = []
        for number in range(12):
            leave_in_the_middle(url)
            pipe = Pipe(url, prepare=False, silent_s=2.0)
            with suppress(Lost):
                told.append((number, pipe.ask("select ?", (number,))))
            pipe.close()
        assert all(rows == [(number,)] for number, rows in told), told
