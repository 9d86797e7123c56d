"""What compaction and watching cost on a session with a long past that is kept, beside one with a short past.

A past that has names is kept for good; looking for what may go, and telling what is new, must not walk it each time.
"""

from __future__ import annotations

import time

import stateroom
from bench.session.blocks import p50_ms, ratio, rotated
from bench.session.state import change, desk_of, names, worker
from stateroom import Desk, Room, ids
from stateroom.batch import Batch
from stateroom.limits import DESK_TURNS_KEPT
from stateroom.principal import operator
from stateroom.session.model import CompactPast

SLOTS, BYTES = 64, 64
NAMED = {"short": 4, "long": 256}  # checkpoints, each with every slot changed before it
SPAN = 8  # versions between two looks, and that are kept


async def lived(room: Room, named: int) -> Desk:
    """A session and its past, already looked through once."""
    desk = await desk_of(room, SLOTS, BYTES)
    for number in range(named):
        await change(desk, names(SLOTS), BYTES)
        await desk.checkpoint(f"state {number}")
    await look(room, desk)
    return desk


async def look(room: Room, desk: Desk) -> tuple[float, float]:
    """Some more versions; how long compaction takes then, and telling the newest of them."""
    for _ in range(SPAN):
        await change(desk, names(1), BYTES)
    key, backend, at = ids.parse("session", desk.id), room.stack.backend, room.stack.backend.clock.wall_ms()
    write = CompactPast(session=key, before=desk.version - SPAN, turns=DESK_TURNS_KEPT)
    batch = Batch(id=ids.new(ids.home(key), at), scope=operator("local", "system"), at=at, writes=(write,))
    began = time.perf_counter()
    await backend.commit(batch)
    there = time.perf_counter()
    await backend.told(stateroom.LOCAL, key, after=desk.version - 1, limit=1)
    return there - began, time.perf_counter() - there


async def measure(url: str, *, blocks: int, size: int) -> dict[str, float]:
    async with worker(url) as room:
        desks = {name: await lived(room, named) for name, named in NAMED.items()}
        found: dict[str, list[list[float]]] = {f"{what}_{name}": [] for what in ("compaction", "told") for name in NAMED}
        for number in range(blocks + 1):  # the first one only warms up
            for name in rotated(list(NAMED), number):
                took = [await look(room, desks[name]) for _ in range(size)]
                for what, seconds in zip(("compaction", "told"), zip(*took, strict=True), strict=True):
                    found[f"{what}_{name}"] += [list(seconds)] if number else []
    return {
        "past_long_vs_short": NAMED["long"] / NAMED["short"],
        "past_compaction_long_vs_short": ratio(found, "compaction_long", "compaction_short"),
        "past_told_long_vs_short": ratio(found, "told_long", "told_short"),
        "past_compaction_long_ms_p50": p50_ms(found, "compaction_long"),
        "past_told_long_ms_p50": p50_ms(found, "told_long"),
    }
