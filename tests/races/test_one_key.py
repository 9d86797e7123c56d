"""Fifty requests with one key, in several processes at once: one run, one effect, fifty identical answers (P14, P15)."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from stateroom.principal import LOCAL
from tests.crash import plays
from tests.crash.actor import begin, ended, opened, take, text_of
from tests.crash.checks import runs_of
from tests.crash.invariants import violations
from tests.crash.where import on_postgres, place_of
from tests.crash.zygote import Zygote, zygotes
from tests.services.places import Place

pytestmark = pytest.mark.anyio

PROCESSES, REQUESTS = 3, 50


@pytest.fixture(scope="module")
def parents() -> Iterator[list[Zygote]]:
    with zygotes(PROCESSES) as made:
        yield made


@pytest.mark.parametrize("failpoint", ["", "turn.accepted:kill", "step.performed:kill", "turn.finished:kill"])
async def test_P14_P15_fifty_requests_with_one_key_are_one_run_and_one_effect(
    place: Place, tmp_path: Path, parents: list[Zygote], failpoint: str
) -> None:
    """One of the processes may be killed while it works on it; its callers ask again."""
    folder = tmp_path if isinstance(place.inside, Path) else on_postgres(tmp_path, place.inside, workers=place.url)
    lease_ms = 0 if place.kind == "sqlite" else 1_000  # there a lock tells that somebody is dead, here only time does
    world = plays.world_of(folder)
    room = await opened(place_of(folder), world)
    await begin(room, "c")
    await room.close()
    shares = [REQUESTS // PROCESSES + (number < REQUESTS % PROCESSES) for number in range(PROCESSES)]
    children = [
        await parent.fork(plays.the_same, folder, count=share, lease_ms=lease_ms, environ={"STATEROOM_FAILPOINT": failpoint})
        for parent, share in zip(parents, shares, strict=True)
    ]
    for parent, share, child in zip(parents, shares, children, strict=True):
        if (status := await child.ended()) == -signal.SIGKILL:
            child = await parent.fork(plays.the_same, folder, count=share, lease_ms=lease_ms)
            status = await child.ended()
        assert status == 0, child.last_words()
    told = plays.told_in(folder)
    assert len(told) == REQUESTS
    assert len(set(told)) == 1, "identical answers"
    assert world.effects().total() == 1

    room = await opened(place_of(folder), world)
    assert len(await runs_of(room.backend)) == 1
    again = await take(room, "once t", conversation=await begin(room, "c"), key="k")
    answered = await asyncio.wait_for(ended(room, world, again.run.id), 5)
    assert again.replayed
    assert text_of(answered) == told[0].text
    assert (await room.backend.run(LOCAL, again.run.id)) == answered.run
    await room.close()
    assert violations(place.inside) == []
