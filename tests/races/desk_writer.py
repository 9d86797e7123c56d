"""One of several processes on two desks: four writers each that compare and set, count, add, append and update.

python desk_writer.py STORE REGISTER BOARD NAME ROUNDS
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import msgspec

from stateroom import face
from stateroom.conformance.register import Seen
from stateroom.desk import Desk
from stateroom.errors import Conflict
from stateroom.wire import json

WRITERS = 4


def bump(state: dict[str, Any]) -> None:
    state["updates"] = state.get("updates", 0) + 1


class Writer:
    def __init__(self, register: Desk, board: Desk, name: str) -> None:
        self.register, self.board, self.name, self.record = register, board, name, list[Seen]()

    async def work(self, rounds: int) -> list[Seen]:
        for number in range(rounds):
            mark = f"{self.name}.{number}"
            await self.read()
            await self.compare_and_set(mark)
            await self.board.count("count", 1)
            await self.board.add("members", mark)
            await self.board.append("list", mark)
            await self.board.put("map", {mark: number})
            await self.board.update(bump)
        return self.record

    async def read(self) -> None:
        called = time.monotonic_ns()
        await self.register.refresh()
        self.saw(called, self.register.version, self.register.state.get("it"))

    async def compare_and_set(self, mark: str) -> None:
        """Time is the machine's, which all processes share."""
        called, expected = time.monotonic_ns(), self.register.version
        try:
            version = await self.register.patch({"it": mark}, expected={"it": expected})
        except Conflict as lost:
            self.saw(called, lost.facts["slots"]["it"], None)
            return
        answered = time.monotonic_ns()
        seen = Seen(called=called, answered=answered, version=version, value=mark, wrote=True, expected=expected)
        self.record.append(seen)

    def saw(self, called: int, version: int, value: Any) -> None:
        self.record.append(Seen(called=called, answered=time.monotonic_ns(), version=version, value=value, wrote=False))


async def main(store: str, register: str, board: str, name: str, rounds: int) -> None:
    async with await face.open(store) as room:
        writers = [Writer(await room.session(register), await room.session(board), f"{name}{n}") for n in range(WRITERS)]
        print("ready", flush=True)
        sys.stdin.readline()  # all begin at once
        records = await asyncio.gather(*(writer.work(rounds) for writer in writers))
        print(json.encode(msgspec.to_builtins([seen for record in records for seen in record])).decode(), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:5], rounds=int(sys.argv[5])))
