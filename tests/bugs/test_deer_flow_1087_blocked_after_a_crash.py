"""bytedance/deer-flow#1087, azure-ai-agentserver-responses 2.3.0: after a crash a run stayed `running` for ever and blocked
its conversation; where it was run again, a resumed stream had a hole. Here the owner's lock is free as soon as it is
dead: the next process takes the run up at once, and its stream says so and goes on without a gap."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

import stateroom
from stateroom.flows.agent import Turn

pytestmark = pytest.mark.anyio

CHILD = """
import anyio, sys, stateroom

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


async def test_P9_a_crash_blocks_nobody_and_tears_no_hole(tmp_path: Path) -> None:
    async def agent(turn: Turn) -> AsyncIterator[str]:
        yield f"attempt {turn.attempt}: "
        yield turn.text

    store = f"sqlite:///{tmp_path / 'store'}"
    conversation, run = kill_in_the_middle(store)
    async with await stateroom.open(store, agents=[agent]) as room:
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


def kill_in_the_middle(store: str) -> tuple[str, str]:
    """A process that dies while its agent speaks. Returns the conversation and the run."""
    with subprocess.Popen([sys.executable, "-c", CHILD, store], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        conversation = child.stdout.readline().strip()
        run = child.stdout.readline().split()[1]
        while int(child.stdout.readline().split()[0]) < 10:
            pass
        child.send_signal(signal.SIGKILL)
    return conversation, run
