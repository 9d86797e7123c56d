"""P11: every backend agrees with ram, whatever is asked of it; and the machine notices one that does not."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from msgspec.structs import replace

from stateroom.backends.base import Backend
from stateroom.backends.postgres.backend import PostgresBackend
from stateroom.backends.ram import accept
from stateroom.backends.ram import conversation as record
from stateroom.backends.ram import run as work
from stateroom.backends.ram import run_rows as work_rows
from stateroom.backends.ram import steps as waiting
from stateroom.backends.ram.backend import WRITES, RamBackend
from stateroom.backends.ram.store import RamStore, Transaction
from stateroom.backends.sqlite.backend import SqliteBackend
from stateroom.clock import FrozenClock
from stateroom.conversation.model import Append, Fork
from stateroom.ids import NIL
from stateroom.run.model import AcceptTurn, Finish, Requeue
from stateroom.run.steps import Compact, Drain, Pause, Resolve
from tests.crash.scale import WHOLE
from tests.services.store import as_role, empty
from tests.stateful.agreement import Agreement
from tests.stateful.both import Factory
from tests.stateful.returning import Returning

BOUNDED = settings(
    phases=[Phase.generate],  # add Phase.shrink to look into a failure: it takes minutes
    max_examples=30,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


def machine(factory: Factory, of: type[Agreement] = Agreement) -> type[Agreement]:
    return type(of.__name__, (of,), {"factory": staticmethod(factory)})


async def sqlite(place: Path, clock: FrozenClock) -> Backend:
    return await SqliteBackend.open(place, clock=clock, synchronous="off")


def on(url: str) -> Factory:
    async def postgres(place: Path, clock: FrozenClock) -> Backend:
        await asyncio.to_thread(empty, url)
        return await PostgresBackend.open(as_role(url), clock=clock)

    return postgres


def test_P11_ram_and_sqlite_agree() -> None:
    run_state_machine_as_test(machine(sqlite), settings=BOUNDED)


def test_P11_P18_ram_and_sqlite_agree_on_what_goes_back_and_comes_back() -> None:
    run_state_machine_as_test(machine(sqlite, Returning), settings=BOUNDED)


def test_P11_P18_ram_and_postgres_agree_on_what_goes_back_and_comes_back(postgres_store: str) -> None:
    run_state_machine_as_test(machine(on(postgres_store), Returning), settings=settings(BOUNDED, max_examples=30 if WHOLE else 6))


def test_P11_ram_and_postgres_agree(postgres_store: str) -> None:
    run_state_machine_as_test(machine(on(postgres_store)), settings=settings(BOUNDED, max_examples=30 if WHOLE else 6))


# ── broken on purpose ───────────────────────────────────────────────────────────────────────────────────────────────


def append_expects_nothing(tx: Transaction, write: Append) -> Any:
    return record.append(tx, replace(write, expected_tail=None))


def fork_knows_all_deletions(tx: Transaction, write: Fork) -> Any:
    receipt = record.fork(tx, write)
    tx.put_branch(replace(record.see_branch(tx, write.id), parent_count=99))
    return receipt


def requeue_keeps_the_fence(tx: Transaction, write: Requeue) -> Any:
    receipt = work.requeue(tx, write)
    tx.put_run(replace(receipt.run, fence=write.fence))
    return receipt


def finish_forgets_the_fence(tx: Transaction, write: Finish) -> Any:
    return work.finish(tx, replace(write, fence=None))


def accept_drops_nobody(tx: Transaction, write: AcceptTurn) -> Any:
    return accept.accept(tx, replace(write, policy="enqueue") if write.policy == "latest" else write)


def pause_asks_in_no_order(tx: Transaction, write: Pause) -> Any:
    return waiting.pause(tx, replace(write, actions=write.actions[::-1]))


def resolve_leaves_its_line_due(tx: Transaction, write: Resolve) -> Any:
    receipt = waiting.resolve(tx, write)
    tx.tables.due.put((tx.tenant, write.action, "action"), tx.now)
    return receipt


def drain_points_nowhere(tx: Transaction, write: Drain) -> Any:
    receipt = waiting.drain(tx, write)
    for run in receipt.runs:
        tx.put_run(replace(work_rows.see_run(tx, run), merged_into=NIL))
    return receipt


def compact_goes_on_counting(tx: Transaction, write: Compact) -> Any:
    receipt = waiting.compact(tx, write)
    row = work_rows.see_run(tx, write.run)
    tx.put_run(replace(row, head=row.head + 1))
    return receipt


@pytest.mark.parametrize(
    "broken",
    [
        {Append: append_expects_nothing},
        {Fork: fork_knows_all_deletions},
        {Requeue: requeue_keeps_the_fence},
        {Finish: finish_forgets_the_fence},
        {AcceptTurn: accept_drops_nobody},
        {Pause: pause_asks_in_no_order},
        {Resolve: resolve_leaves_its_line_due},
        {Drain: drain_points_nowhere},
        {Compact: compact_goes_on_counting},
    ],
    ids=lambda broken: next(iter(broken.values())).__name__,
)
def test_P11_a_backend_that_differs_is_found(broken: dict[Any, Any]) -> None:
    async def wrong(place: Path, clock: FrozenClock) -> Backend:
        return RamBackend(RamStore(clock), {**WRITES, **broken})

    with pytest.raises(AssertionError):
        run_state_machine_as_test(machine(wrong), settings=settings(BOUNDED, max_examples=100))
