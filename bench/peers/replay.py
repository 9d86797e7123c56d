"""The workload as every peer gets it: turns of real conversations, and a state of about 1 KB that each turn changes."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec

from bench import workload

Items = list[dict[str, Any]]


class Turn(msgspec.Struct):
    """`items`: the user's message and everything until the next one. `delta`: the slots that change; `state`: all of
    them afterwards. `native`: what the peer's own interface takes."""

    items: Items
    delta: dict[str, Any]
    state: dict[str, Any]
    native: Any = None

    @property
    def bytes(self) -> int:
        return sum(len(msgspec.json.encode(item)) for item in self.items)


@cache
def rows() -> list[dict[str, Any]]:
    return workload.rows()


def turns(parts: list[Items], seed: int) -> list[Turn]:
    draw, state, made = random.Random(seed), dict[str, Any](), list[Turn]()
    for number, items in enumerate(parts):
        delta = {name: msgspec.json.decode(body) for name, body in workload.turn(items, number, draw).slots.items()}
        state = {**state, **delta}
        made.append(Turn(items=items, delta=delta, state=state))
    return made


def conversations(count: int, seed: int = 7) -> list[list[Turn]]:
    """Real conversations."""
    chosen = random.Random(seed).sample(rows(), min(count, len(rows())))
    return [turns(workload.split(row["items"]), seed + n) for n, row in enumerate(chosen)]


def grown(length: int, unit: str, more: int) -> tuple[list[Turn], list[Turn]]:
    """One conversation of exactly `length` turns or items, and `more` turns to go on with."""
    source, past, have = joined(), list[Items](), 0
    while have < length:
        items = next(source)
        if unit == "items" and have + len(items) > length:
            items = items[:1]  # does not fit: its first message does
        past.append(items)
        have += len(items) if unit == "items" else 1
    made = turns(past + [next(source) for _ in range(more)], length)
    return made[: len(past)], made[len(past) :]


def joined(seed: int = 11) -> Iterator[Items]:
    """Turns of real conversations, one conversation after another, call ids kept apart; without end."""
    order = rows().copy()
    random.Random(seed).shuffle(order)
    for lap in itertools.count():
        for n, row in enumerate(order):
            items, part = row["items"], f"{lap}-{n}"
            yield from workload.split([{**i, "call_id": f"{part}-{i['call_id']}"} if "call_id" in i else i for i in items])
