"""What a state's size does to a patch, to hydrating it, and to the bytes of a delta."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from itertools import count

import msgspec

import stateroom
from bench.session.blocks import Side, interleave, p50_ms, ratio, rotated, timed
from bench.session.http import Wire, served
from stateroom import Desk, Room
from stateroom.session.model import SlotPatch

SLOT_BYTES = 1024
SIZES: Mapping[str, int] = {"1KiB": 1, "64KiB": 64, "1MiB": 1024}  # slots of SLOT_BYTES
DELTAS = (1, 16, 256)
_number = count()


def value(size: int = SLOT_BYTES) -> str:
    """Another one each time, of so many bytes as JSON."""
    return f"{next(_number):0{size - 2}}"


def names(slots: int) -> list[str]:
    return [f"slot-{n:04}" for n in range(slots)]


async def desk_of(room: Room, slots: int, size: int = SLOT_BYTES) -> Desk:
    """A session whose state is so many slots."""
    desk = await room.open_session()
    await change(desk, names(slots), size)
    return desk


async def change(desk: Desk, which: list[str], size: int = SLOT_BYTES) -> None:
    for start in range(0, len(which), 256):  # what one patch may change
        await desk.patch({name: value(size) for name in which[start : start + 256]})


# ── a patch ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def patches(room: Room, blocks: int, size: int) -> dict[str, float]:
    """One slot of 1 KiB in a state of 1 KiB and in one of 1 MiB, by every way in."""
    desks = {name: await desk_of(room, slots) for name, slots in SIZES.items() if name != "64KiB"}
    async with served(room.stack) as wire:
        sides = {f"{way}_{name}": made(room, desk, wire) for way, made in WAYS.items() for name, desk in desks.items()}
        found = await interleave(sides, blocks=blocks, size=size)
    out = {f"patch_{way}_1MiB_vs_1KiB": ratio(found, f"{way}_1MiB", f"{way}_1KiB") for way in WAYS}
    return out | {f"patch_{side}_ms_p50": p50_ms(found, side) for side in ("service_1KiB", "desk_1KiB", "desk_1MiB")}


def by_service(room: Room, desk: Desk, wire: Wire) -> Side:
    key, sessions = stateroom.ids.parse("session", desk.id), room.stack.sessions
    return lambda: sessions.patch(room.scope, key, [SlotPatch("slot-0000", json.dumps(value()).encode())])


def by_desk(room: Room, desk: Desk, wire: Wire) -> Side:
    return lambda: desk.patch({"slot-0000": value()})


def by_function(room: Room, desk: Desk, wire: Wire) -> Side:
    """It is given the whole state, so it costs reading that; what is left is that reading is all it costs."""
    return lambda: desk.update(lambda state: state.update({"slot-0000": value()}))


def by_http(room: Room, desk: Desk, wire: Wire) -> Side:
    """By somebody who knows what was there and is told what changed."""

    async def patch() -> None:
        nonlocal known
        path = f"/v1/sessions/{desk.id}?since_version={known}"
        answer = await wire.good("PATCH", path, json.dumps({"slots": {"slot-0000": value()}}).encode())
        known = json.loads(answer.body)["version"]

    known = desk.version
    return patch


def by_http_whole(room: Room, desk: Desk, wire: Wire) -> Side:
    """By somebody who wants to be told all of it."""
    return lambda: wire.good("PATCH", f"/v1/sessions/{desk.id}", json.dumps({"slots": {"slot-0000": value()}}).encode())


WAYS: Mapping[str, Callable[[Room, Desk, Wire], Side]] = {
    "service": by_service, "desk": by_desk, "function": by_function, "http": by_http, "http_whole": by_http_whole,
}  # fmt: skip


# ── hydrating ───────────────────────────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def worker(url: str) -> AsyncIterator[Room]:
    """A handle that has seen nothing yet."""
    room = await stateroom.open(url)
    try:
        yield room
    finally:
        await room.close()


async def hydrating(url: str, room: Room, blocks: int, size: int) -> dict[str, float]:
    """A state that a worker has never seen, one that it has, and one in which a slot has changed since."""
    desks = {name: [await desk_of(room, slots) for _ in range(size)] for name, slots in SIZES.items()}
    found: dict[str, list[float]] = {}
    for number in range(blocks):
        async with worker(url) as fresh:
            for name in rotated(list(SIZES), number):
                for first, desk in enumerate(desks[name]):
                    kind = "very_first" if name == rotated(list(SIZES), number)[0] and not first else "cold"
                    found.setdefault(f"{kind}_{name}", []).append(await timed(lambda d=desk: fresh.session(d.id)))
                for desk in desks[name]:
                    found.setdefault(f"warm_{name}", []).append(await timed(lambda d=desk: fresh.session(d.id)))
                for desk in desks[name]:
                    await change(desk, names(1))
                    found.setdefault(f"delta_{name}", []).append(await timed(lambda d=desk: fresh.session(d.id)))
    return {f"hydrate_{side}_ms_p50": p50(took) for side, took in sorted(found.items())}


def p50(took: list[float]) -> float:
    return p50_ms({"": [took]}, "")


# ── a delta ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def deltas(room: Room, blocks: int, size: int) -> dict[str, float]:
    """How many bytes reach somebody who knows a state of 1 MiB in which k slots have changed, over Python and over HTTP;
    what is left when nothing has; and whether reading it takes as long as the state is large."""
    desk, small, out = await desk_of(room, 1024), await desk_of(room, 1), dict[str, float]()
    async with served(room.stack) as wire:
        nothing = await told(room, desk, wire, desk.version)
        for changed in DELTAS:
            known = desk.version
            await change(desk, names(1024)[:: 1024 // changed])
            for face, got, none in zip(("python", "http"), await told(room, desk, wire, known), nothing, strict=True):
                out[f"delta_{changed}_{face}_bytes_over_content"] = (got - none) / (changed * SLOT_BYTES)
        out["delta_0_python_bytes"], out["delta_0_http_bytes"] = nothing
    for one in (desk, small):
        await change(one, names(1))
    sides = {name: since(room, one) for name, one in (("1MiB", desk), ("1KiB", small))}
    found = await interleave(sides, blocks=blocks, size=size)
    return out | {"delta_1_read_1MiB_vs_1KiB": ratio(found, "1MiB", "1KiB"), "delta_1_read_1MiB_ms_p50": p50_ms(found, "1MiB")}


async def told(room: Room, desk: Desk, wire: Wire, known: int) -> tuple[float, float]:
    """Bytes of what has changed since a version: the records as one encodes them, and the answer on the wire."""
    slots = await room.stack.sessions.slots(room.scope, stateroom.ids.parse("session", desk.id), since=known)
    answer = await wire.good("GET", f"/v1/sessions/{desk.id}?since_version={known}")
    assert len(json.loads(answer.body)["slots"]) == len(slots)
    return float(len(msgspec.msgpack.encode(slots))), float(answer.size)


def since(room: Room, desk: Desk) -> Side:
    key, sessions, known = stateroom.ids.parse("session", desk.id), room.stack.sessions, desk.version - 1
    return lambda: sessions.slots(room.scope, key, since=known)


async def measure(url: str, *, blocks: int, size: int) -> dict[str, float]:
    async with worker(url) as room:
        found = await patches(room, blocks, size)
        found |= await hydrating(url, room, max(len(SIZES), blocks // 3), size)
        return found | await deltas(room, blocks, size)
