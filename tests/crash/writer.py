"""A program that embeds the library and takes turns until it is killed; each one that was acknowledged is a line on stdout.

    python writer.py FOLDER SYNCHRONOUS TASKS NAME

Each task has a conversation of its own and goes on with it after a restart: its keys say which turn is which.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from stateroom.backends.sqlite.backend import SqliteBackend
from stateroom.face import Room
from stateroom.flows.agent import Turn
from stateroom.hosting.callable import CallableAgent
from stateroom.principal import LOCAL
from stateroom.stack import Stateroom


async def echo(turn: Turn) -> str:
    turn.set("turns", turn.slots.get("turns", 0) + 1)
    return answer_to(turn.text)


def answer_to(text: str) -> str:
    """What is answered, as every checker knows."""
    return f"heard {text}"


async def opened(folder: Path, *, synchronous: str = "full") -> Room:
    """The store with its agent, as the writer and whoever checks it open it."""
    backend = await SqliteBackend.open(folder, synchronous=synchronous)
    stack = Stateroom(backend, {"echo": CallableAgent("echo", echo)}, owner=backend.owner, default_agent="echo")
    await stack.start()
    return Room(stack, LOCAL)


async def write(room: Room, task: str) -> None:
    """Turns for ever. A line is written only when the answer is there: key, conversation, response."""
    conversation = (await room.create(key=f"{task}:conversation")).id
    number = 0
    while True:
        key = f"{task}:{number}"
        reply = await room.turn(f"turn {key}", conversation=conversation, key=key)
        assert reply.text == answer_to(f"turn {key}")
        os.write(1, f"{key} {conversation} {reply.response}\n".encode())
        number += 1


async def main(folder: str, synchronous: str, tasks: int, name: str) -> None:
    room = await opened(Path(folder), synchronous=synchronous)
    async with asyncio.TaskGroup() as group:
        for number in range(tasks):
            group.create_task(write(room, f"{name}{number}"))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]))
