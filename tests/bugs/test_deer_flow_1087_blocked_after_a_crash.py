"""bytedance/deer-flow#1087, azure-ai-agentserver-responses 2.3.0: after a crash a run stayed `running` for ever and blocked
its conversation; where it was run again, a resumed stream had a hole. Here the next process takes the run up, and its stream
says so and goes on without a gap: at once where the owner's lock tells that it is dead, else when its lease has ended."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import AsyncIterator

import anyio
import pytest

import stateroom
from stateroom import limits
from stateroom.flows.agent import Turn
from tests.services.places import DURABLE, Place

pytestmark = pytest.mark.anyio

CHILD = """
import anyio, sys, stateroom
from stateroom import limits

limits.LEASE_MS = int(sys.argv[2])

async def agent(turn):
    for number in range(20):
        yield f"{number} "
        await anyio.sleep(0.02)
    await anyio.sleep_forever()

async def main():
    async with await stateroom.open(sys.argv[1], agents=[agent]) as room:
        print((await room.create()).id, flush=True)
        conversation = [head.id for head in await room.conversations()][0]
        async for event in room.stream("Count", conversation=conversation, key="t1"):
            print(event["sequence_number"], event.get("response", {}).get("id", ""), flush=True)

anyio.run(main)
"""


@pytest.mark.parametrize("kind", DURABLE)
async def test_P9_a_crash_blocks_nobody_and_tears_no_hole(place: Place) -> None:
    async def agent(turn: Turn) -> AsyncIterator[str]:
        yield f"attempt {turn.attempt}: "
        yield turn.text

    conversation, run = kill_in_the_middle(place.url, lease_ms=limits.LEASE_MS if place.kind == "sqlite" else 1_000)
    async with await stateroom.open(place.url, agents=[agent]) as room:
        with anyio.fail_after(5):
            again = await room.turn("Still there?", conversation=conversation)
            recovered = await room.turn("Count", conversation=conversation, key="t1")
            events = [event async for event in room.follow(run)]
        assert (again.status, recovered.text) == ("completed", "attempt 2: Count")
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert events[-1]["type"] == "response.completed"
        resets = [event for event in events if event["type"] == "response.in_progress" and event["sequence_number"] > 1]
        assert resets[0]["response"]["output"] == []
        assert len({event["item"]["id"] for event in events if event["type"] == "response.output_item.added"}) == 2


def kill_in_the_middle(store: str, *, lease_ms: int) -> tuple[str, str]:
    """A process that dies while its agent speaks. Returns the conversation and the run."""
    with subprocess.Popen([sys.executable, "-c", CHILD, store, str(lease_ms)], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        conversation = child.stdout.readline().strip()
        run = child.stdout.readline().split()[1]
        while int(child.stdout.readline().split()[0]) < 10:
            pass
        child.send_signal(signal.SIGKILL)
    return conversation, run
