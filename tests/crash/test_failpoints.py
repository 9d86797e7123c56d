"""A real server is killed at every named place between two durable moments; after a restart the same key has one answer."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2 as httpx
import pytest

from stateroom import limits
from stateroom.backends.sqlite.backend import SqliteBackend
from stateroom.cli.replay.chaos import Child
from stateroom.cli.replay.compare import compare
from stateroom.cli.replay.http import HttpTarget
from stateroom.cli.replay.player import LOST
from stateroom.cli.replay.targets import Answered, Asked, TryAgain
from stateroom.clock import SystemClock
from stateroom.flows.failpoint import NAMES
from tests.crash.checks import broken_invariants, damage, runs_of
from tests.crash.recorded import ITEMS, TAPE

pytestmark = [pytest.mark.anyio, pytest.mark.crash]

# Of an ordinary turn; tests/crash/test_steps.py tries the places of turns that do steps and wait.
IN_A_TURN = tuple(name for name in NAMES if name.startswith("turn.") and name != "turn.paused")


class LaterClock(SystemClock):
    """The machine's clock, a lease from now."""

    def boot_ms(self) -> int:
        return super().boot_ms() + limits.LEASE_MS + 1


class Bench:
    """A server to kill, and one turn to take on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.child = Child(folder, TAPE, delay_ms=20)
        self.target = HttpTarget(self.child.url)
        self.conversation = ""

    async def start(self, failpoint: str = "") -> None:
        await self.child.start(STATEROOM_FAILPOINT=failpoint)

    async def turn(self, key: str = "k", *, streamed: bool = False) -> Answered:
        asked = Asked(key=key, conversation=self.conversation, transcript="one", number=0, input=ITEMS[:1], streamed=streamed)
        return await self.target.turn(asked)

    async def dies_in_a_turn(self, failpoint: str) -> None:
        """Start, take the turn, and see that nobody lived to answer it."""
        await self.start(f"{failpoint}:kill")
        await self.child.ready()
        self.conversation = self.conversation or await self.target.begin("begin")
        with pytest.raises(TryAgain):
            await self.turn(streamed=failpoint == "turn.recorded")
        assert await self.child.dead() == -signal.SIGKILL

    async def restart(self) -> None:
        await self.start()
        await self.child.ready()

    async def lease_passes(self) -> None:
        """Let the store's time go on by a lease, while nobody works on it."""
        backend = await SqliteBackend.open(self.folder / "store", clock=LaterClock())
        await backend.close()

    async def ended(self, *, runs: int = 1) -> None:
        """Stop in order; then the store is sound and holds just these runs."""
        assert await self.child.stop() == 0
        backend = await SqliteBackend.open(self.folder / "store")
        assert await broken_invariants(backend) == []
        assert len(await runs_of(backend)) == runs
        await backend.close()
        assert damage(self.folder / "store") == []


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path)
    async with bench.target:
        yield bench
    await bench.child.kill()


@pytest.mark.parametrize("failpoint", IN_A_TURN)
async def test_P1_P9_P10_P14_killed_in_a_turn_the_same_key_has_one_answer(bench: Bench, failpoint: str) -> None:
    await bench.dies_in_a_turn(failpoint)
    await bench.restart()
    streamed = failpoint == "turn.recorded"
    first, again = await bench.turn(streamed=streamed), await bench.turn(streamed=streamed)
    assert first.status == "completed"
    assert first.replayed, "the turn was durable before the kill"
    assert (again.response, again.outputs) == (first.response, first.outputs)
    verdict = compare(failpoint, ITEMS, await bench.target.record(bench.conversation))
    assert verdict.good, verdict
    await bench.ended()


async def test_P1_P9_P14_killed_again_while_it_recovers(bench: Bench) -> None:
    await bench.dies_in_a_turn("turn.hydrated")
    await bench.start("recover.requeued:kill")
    assert await bench.child.dead() == -signal.SIGKILL
    await bench.lease_passes()
    await bench.restart()
    first, again = await bench.turn(), await bench.turn()
    assert (first.status, first.replayed) == ("completed", True)
    assert (again.response, again.outputs) == (first.response, first.outputs)
    assert compare("recover", ITEMS, await bench.target.record(bench.conversation)).good
    await bench.ended()


async def test_P9_P10_P14_a_turn_whose_worker_dies_every_time_is_given_up_and_its_branch_goes_on(bench: Bench) -> None:
    await bench.dies_in_a_turn("turn.hydrated")
    for _ in range(2):
        await bench.start("turn.hydrated:kill")
        assert await bench.child.dead() == -signal.SIGKILL
    await bench.restart()
    lost, again = await bench.turn(), await bench.turn()
    assert (lost.status, lost.error) == ("failed", LOST)
    assert (again.response, again.status) == (lost.response, "failed")
    new = await bench.turn("another")
    assert (new.status, new.replayed) == ("completed", False)
    kept = await bench.target.record(bench.conversation)
    assert compare("given up", [ITEMS[0], *ITEMS], kept).good, "what was said stays in the record"
    await bench.ended(runs=2)


async def test_P1_P9_P12_killed_after_a_cancel_was_asked_for_the_run_ends_as_cancelled(bench: Bench) -> None:
    await bench.start("cancel.asked:kill")
    await bench.child.ready()
    bench.conversation = await bench.target.begin("begin")
    body = {
        "model": "tape", "metadata": {"tape": "one", "turn": "0"}, "conversation": bench.conversation,
        "input": ITEMS[:1], "background": True,
    }  # fmt: skip
    async with httpx.AsyncClient(base_url=bench.child.url) as client:
        made = (await client.post("/v1/responses", json=body, headers={"Idempotency-Key": "k"})).json()
        with pytest.raises(httpx.TransportError):
            await client.post(f"/v1/responses/{made['id']}/cancel")
        assert await bench.child.dead() == -signal.SIGKILL
        await bench.restart()
        while (found := (await client.get(f"/v1/responses/{made['id']}")).json())["status"] == "in_progress":
            await asyncio.sleep(0.02)
        assert found["status"] == "cancelled"
        again = (await client.post("/v1/responses", json=body, headers={"Idempotency-Key": "k"})).json()
        assert (again["id"], again["status"]) == (made["id"], "cancelled")
    await bench.ended()
