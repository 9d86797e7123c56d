"""Somebody reads a turn while its workers die: in another process, going away and coming back, he gets exactly events 1..n,
and what he makes of them is the answer (P3, P4, P5)."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from stateroom.principal import LOCAL
from tests.crash import plays, scale
from tests.crash.actor import begin, ended, opened, take
from tests.crash.test_steps import ALL, ALWAYS
from tests.crash.view import wrong_with_stream
from tests.crash.zygote import Zygote, zygotes

pytestmark = [pytest.mark.anyio, pytest.mark.crash]

PLACES = [f"{name}:{number}" for name in (*ALWAYS, "step.intended", "turn.paused") for number in (1, 3)]


async def read_while_workers_die(
    zygote: Zygote, folder: Path, place: str, *, build: str = "", patience_s: float = 10
) -> list[str]:
    """Faults of what one reader got, from the first event on, over the death of one worker and the work of the next."""
    folder.mkdir(exist_ok=True)
    name, _, number = place.partition(":")
    with zygotes(1) as (other,):
        reader = await other.fork(plays.reads, folder, build=build)
        child = await zygote.fork(
            plays.turns, folder, environ={"STATEROOM_FAILPOINT": f"{name}:kill:{number}"}, kinds=[ALL], pause_s=0.031
        )  # fmt: skip
        await child.ended()
        world = plays.world_of(folder)
        room = await opened(plays.store_of(folder), world, pause_s=0.01)
        ticket = await take(room, f"{ALL} t0", conversation=await begin(room, "c"), key="k0")
        await ended(room, world, ticket.run.id)
        try:
            await asyncio.wait_for(reader.ended(), patience_s)
            faults = []
        except TimeoutError:
            faults = ["the reader never heard of the end"]
            reader.signal(signal.SIGKILL)
            await reader.ended()
        start = room.followers.at(ticket.run, 0)
        whole = [event[1] async for event in room.followers.events(LOCAL, ticket.run.id, start) if event is not None]
        await room.close()
    heard = plays.heard_in(folder)
    if heard != msgspec.json.decode(msgspec.json.encode(whole)):
        faults.append(f"heard {[event['sequence_number'] for event in heard]} of {len(whole)}")
    return faults + wrong_with_stream(whole)


@pytest.mark.parametrize("place", PLACES[1 :: scale.STRIDE])
async def test_P3_P4_P5_a_reader_outlives_workers(zygote: Zygote, tmp_path: Path, place: str) -> None:
    assert await read_while_workers_die(zygote, tmp_path, place) == []


@pytest.mark.parametrize("build", ["notify only", "one too far"])
async def test_P4_builds_that_tell_too_little_are_found_out(
    zygote: Zygote, tmp_path: Path, build: str, figure: Callable[[str], None]
) -> None:
    """The negative controls."""
    faults = await read_while_workers_die(zygote, tmp_path, "turn.recorded:1", build=build, patience_s=1.5)
    figure(f"readers of a build that is {build}: red, as they must be: {faults[0][:60]}")
    assert faults
