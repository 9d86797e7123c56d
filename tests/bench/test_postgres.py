"""PostgreSQL's bench: both sides do the same work, and a worker process answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.postgres import server
from bench.postgres.sides import ByHand, Ours, together
from bench.postgres.workers import Crowd
from bench.workload import BenchTurn, turns
from stateroom.backends.postgres.migrate import migrate
from stateroom.backends.postgres.schema import COPIES
from tests.services.postgres import Server

pytestmark = pytest.mark.anyio


def rows(running: Server, database: str) -> dict[str, int]:
    return {table: running.execute(f"select count(*) from stateroom.{table}", database=database)[0][0] for table in COPIES}


@pytest.mark.parametrize("cursors", [False, True])
async def test_the_same_turns_leave_the_same_rows_on_both_sides(postgres_server: Server, cursors: bool) -> None:
    block, names = turns(24), (f"bench_ours_{cursors}".lower(), f"bench_hand_{cursors}".lower())
    ours = await Ours.open(server.store(postgres_server, names[0]))
    await ours.settle(3)
    by_hand = await ByHand.open(server.store(postgres_server, names[1]), 3, cursors=cursors)
    await together(3, block, ours.by_door)
    await together(3, block, by_hand.whole)
    await ours.close()
    await by_hand.close()

    found = [rows(postgres_server, name) for name in names]
    for name in names:
        postgres_server.drop_database(name)
    assert found[0]["run"] == len(block)
    # ours makes a conversation in a batch of its own, which leaves a leaf; the hand-written side leaves none
    assert found[0] | {"leaf": found[0]["leaf"] - 3} == found[1]


async def test_the_hand_written_side_checks_what_ours_checks(postgres_database: str) -> None:
    migrate(postgres_database, say=lambda _: None)
    by_hand = await ByHand.open(postgres_database.replace("postgres@", "stateroom_app@", 1), 1)
    (client,), (conv,) = by_hand.pool.all, by_hand.places
    turn: BenchTurn = turns(1)[0]
    run = await client.accept(conv, "first", turn.inputs, 1)
    with pytest.raises(KeyError):
        await client.accept(conv, "first", turn.inputs, 1)
    with pytest.raises(RuntimeError, match="busy"):
        await client.accept(conv, "second", turn.inputs, 1)
    await client.finish(run, conv, turn.outputs, turn.slots, 1)
    with pytest.raises(RuntimeError, match="fence"):
        await client.finish(run, conv, turn.outputs, turn.slots, 1)
    await by_hand.close()


def test_workers_take_their_share(tmp_path: Path, postgres_server: Server) -> None:
    with Crowd(postgres_server, tmp_path, 2) as crowd:
        load = crowd.load(2, 4, tenants=2)
    postgres_server.drop_database("workers")
    assert load.turns == 96
    assert load.seconds > 0
    assert load.cpu_s > 0
    assert server.cpu_s(postgres_server) > 0
