"""Two processes on one store, appending and taking turns in one conversation at the same time."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from typing import Any

import msgspec
import pytest

from stateroom import face, ids
from stateroom.conformance.register import Seen, faults
from stateroom.conversation.model import ItemQuery
from stateroom.principal import LOCAL
from tests.crash.checks import broken_invariants
from tests.races import desk_writer, race_writer

pytestmark = pytest.mark.anyio

ROUNDS = 25


def raced(writer: str, names: str, *given: str, rounds: int = ROUNDS) -> list[Any]:
    """Start one process a name, let them begin at once, and collect what each did."""
    command = [sys.executable, writer, *given]
    processes = [
        subprocess.Popen([*command, name, str(rounds)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for name in names
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        outputs = []
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        for process in processes:
            output, _ = process.communicate(timeout=60)
            assert process.returncode == 0
            outputs.append(msgspec.json.decode(output))
        return outputs
    finally:
        for process in processes:
            process.kill()
            process.wait()


async def test_P2_P14_two_processes_share_one_conversation(store_url: str) -> None:
    async with await face.open(store_url) as room:
        conversation = (await room.create()).id
    a, b = await asyncio.to_thread(raced, str(race_writer.__file__), "ab", store_url, conversation)

    tails = a["tails"] + b["tails"]
    assert len(set(tails)) == len(tails), "every append got numbers of its own"
    shared = {key for key in a["responses"] if key.startswith("shared:")}
    assert {key: a["responses"][key] for key in shared} == {key: b["responses"][key] for key in shared}, "one key, one answer"

    async with await face.open(store_url) as room:
        texts = Counter([str(item["content"]) async for item in room.items(conversation) if item["role"] == "user"])
        wanted = {f"{name} appends {number}" for name in "ab" for number in range(ROUNDS)}
        wanted |= set(a["responses"]) | set(b["responses"])
        assert texts == Counter(wanted), "every input once, whoever sent it"
        branch = await room.stack.conversations.branch(LOCAL, ids.parse("conversation", conversation))
        items = await room.stack.conversations.items(LOCAL, ItemQuery(branch=branch.id, limit=1000))
        assert [item.seq for item in items] == list(range(1, branch.tail + 1)), "dense, in order"
        assert len({item.id for item in items}) == len(items)
        assert branch.tail == 2 * ROUNDS + 2 * (3 * ROUNDS)
        assert await broken_invariants(room.stack.backend) == []


async def test_P14_twenty_racing_posts_of_one_key_are_one_turn(store_url: str) -> None:
    async with await face.open(store_url, agents=[race_writer.echo]) as room:
        conversation = (await room.create()).id
        replies = await asyncio.gather(*(room.turn("hello", conversation=conversation, key="one") for _ in range(20)))
        assert len({reply.response for reply in replies}) == 1
        assert {reply.text for reply in replies} == {"heard hello"}
        assert len([item async for item in room.items(conversation)]) == 2


async def test_P14_twenty_racing_turns_of_one_key_without_a_place_begin_one_conversation(store_url: str) -> None:
    async with await face.open(store_url, agents=[race_writer.echo]) as room:
        replies = await asyncio.gather(*(room.turn("hello", key="one") for _ in range(20)))
        assert len({(reply.response, reply.conversation) for reply in replies}) == 1
        assert len(await room.conversations()) == 1


PROCESSES, DESK_ROUNDS = "abcd", 6


async def test_P13_P21_P22_sixteen_writers_in_four_processes_share_one_desk(store_url: str) -> None:
    """One winner for each version of a register whose history is linearizable; of what commutes, everything is there."""
    async with await face.open(store_url) as room:
        register, board = (await room.open_session()).id, (await room.open_session()).id
    told = await asyncio.to_thread(raced, str(desk_writer.__file__), PROCESSES, store_url, register, board, rounds=DESK_ROUNDS)
    operations = [msgspec.convert(seen, Seen) for process in told for seen in process]
    assert faults(operations) == []
    won = [operation for operation in operations if operation.wrote]
    assert len(won) >= DESK_ROUNDS
    marks = {f"{name}{n}.{turn}" for name in PROCESSES for n in range(desk_writer.WRITERS) for turn in range(DESK_ROUNDS)}
    async with await face.open(store_url) as room:
        assert (await room.session(register)).version == len(won)
        state = (await room.session(board)).state
        assert (state["count"], state["updates"]) == (len(marks), len(marks))
        assert set(state["members"]) == set(state["list"]) == set(state["map"]) == marks
        assert len(state["list"]) == len(marks), "each once"
        assert await broken_invariants(room.stack.backend) == []
