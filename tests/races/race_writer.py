"""One of several processes on one store: appends to a shared conversation and takes turns in it, then says what it did.

python race_writer.py STORE CONVERSATION NAME ROUNDS
"""

from __future__ import annotations

import asyncio
import sys

from stateroom import face
from stateroom.flows.agent import Turn
from stateroom.wire import json


async def echo(turn: Turn) -> str:
    return f"heard {turn.text}"


async def main(store: str, conversation: str, name: str, rounds: int) -> None:
    async with await face.open(store, agents=[echo]) as room:
        print("ready", flush=True)
        sys.stdin.readline()  # all begin at once
        tails, responses = [], {}
        for number in range(rounds):
            item = {"type": "message", "role": "user", "content": f"{name} appends {number}"}
            tails.append(await room.append(conversation, [item]))
            own, shared = f"{name}:{number}", f"shared:{number}"
            responses[own] = (await room.turn(own, conversation=conversation, key=own)).response
            responses[shared] = (await room.turn(shared, conversation=conversation, key=shared)).response
        print(json.encode({"tails": tails, "responses": responses}).decode(), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
