"""Several workers want one conversation at the same moment: the rows that decide are locked until the one who is first has
landed. A worker that is stopped while it holds them is cut off by the server."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import psycopg
import pytest

from stateroom.backends.postgres import ahead
from stateroom.backends.postgres.backend import PostgresBackend
from stateroom.backends.postgres.tx import PostgresTx
from stateroom.conformance.kit import WORKER, Actor, row
from stateroom.errors import StateroomError
from stateroom.principal import LOCAL
from stateroom.run.model import Accepted, Finish, Finished, Run
from tests.crash import plays
from tests.crash.builds import break_it
from tests.crash.invariants import violations
from tests.crash.test_stopped import stopped
from tests.crash.where import on_postgres
from tests.crash.zygote import Zygote
from tests.services.store import as_role

pytestmark = [pytest.mark.anyio, pytest.mark.crash]

WORKERS, ROUNDS, TURNS = 4, 6, 4


@pytest.fixture
async def workers(postgres_store: str) -> AsyncIterator[list[Actor]]:
    made = [await PostgresBackend.open(as_role(postgres_store)) for _ in range(WORKERS)]
    yield [Actor(backend) for backend in made]
    for backend in made:
        await backend.close()


async def rush(workers: Sequence[Actor]) -> None:
    """All take turns in one conversation at once, and end what they got."""
    for _ in range(ROUNDS):
        conversation = await workers[0].opens_conversation()
        await asyncio.gather(*(_takes(worker, conversation) for worker in workers for _ in range(TURNS)))


async def _takes(worker: Actor, conversation: bytes) -> None:
    accepted = await worker.asks(conversation, "a turn")
    assert isinstance(accepted, Accepted)
    run: Run | None = accepted.run if accepted.run.status == "in_progress" else None
    while run is not None:
        end = Finish(run=run.id, fence=run.fence, status="completed", rows=(row("end"),), next=WORKER)
        finished = (await worker.does(end))[0]
        assert isinstance(finished, Finished)
        run = finished.next.run if finished.next is not None else None


async def test_P2_P9_workers_that_rush_for_one_conversation_leave_it_in_order(workers: list[Actor], postgres_store: str) -> None:
    await rush(workers)
    assert violations(postgres_store) == []


async def test_P2_P9_a_build_without_row_locks_is_found_out(
    workers: list[Actor], postgres_store: str, figure: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control."""
    monkeypatch.setattr(ahead, "LOCK", ahead.LOCK)  # as they were, afterwards
    monkeypatch.setattr(PostgresTx, "__init__", PostgresTx.__init__)
    break_it("no locks")
    try:
        await rush(workers)
        faults = violations(postgres_store)
    except StateroomError as error:
        faults = [repr(error)]
    figure(f"PostgreSQL: a build without row locks: {len(faults)} faults found, as they must be: {faults[0][:100]}")
    assert faults


IDLE_S = 1


async def test_P7_P8_a_worker_that_stops_inside_a_transaction_is_cut_off_and_goes_on(
    zygote: Zygote, tmp_path: Path, postgres_fresh_store: str
) -> None:
    """Nobody waits for it longer than the server lets a transaction idle; what it wanted to write lands once it goes on."""
    with psycopg.connect(postgres_fresh_store, autocommit=True) as db:
        setting = f"set idle_in_transaction_session_timeout = '{IDLE_S}s'"
        db.execute(f"alter role stateroom_app in database {db.info.dbname} {setting}".encode())
    backend = await PostgresBackend.open(as_role(postgres_fresh_store))
    alice = Actor(backend, LOCAL)
    branch = await alice.opens_conversation()
    folder = on_postgres(tmp_path, postgres_fresh_store)
    (folder / "branch").write_text(branch.hex())
    child = await zygote.fork(plays.stops_inside, folder, text="late")
    try:
        await stopped(child.pid)
        began = asyncio.get_running_loop().time()
        await alice.appends(branch, "in time")
        assert asyncio.get_running_loop().time() - began < IDLE_S + 2
        child.signal(signal.SIGCONT)
        assert await child.ended() == 0, child.last_words()
    except BaseException:
        await child.killed()
        raise
    assert await alice.reads(branch) == ["in time", "late"]
    assert [told.key for told in plays.told_in(folder)] == ["late"]
    await backend.close()
