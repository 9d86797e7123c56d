"""Real transcripts as turns with a small state that changes every turn (about 1 KB, five slots, one or two change)."""

from __future__ import annotations

import gzip
import json
import os
import random
from pathlib import Path

import msgspec

Item = tuple[str, str, bytes]  # kind, role, body
HERE = Path(__file__).resolve().parent
SLOTS = ("profile", "slots", "plan", "cart", "notes")


class BenchTurn(msgspec.Struct):
    inputs: list[Item]
    outputs: list[Item]
    slots: dict[str, bytes]
    raw: list[dict[str, object]]

    @property
    def bytes(self) -> int:
        return sum(len(body) for _, _, body in (*self.inputs, *self.outputs))


def data_file() -> Path:
    """`STATEROOM_TRANSCRIPTS`, the shared data beside the checkout, or the sample that ships."""
    named = os.environ.get("STATEROOM_TRANSCRIPTS")
    shared = HERE.parent.parent / "shared" / "data" / "transcripts.jsonl.gz"
    return Path(named) if named else shared if shared.exists() else HERE.parent / "src/stateroom/samples/transcripts.jsonl.gz"


def rows() -> list[dict[str, object]]:
    with gzip.open(data_file(), "rt") as file:
        return [json.loads(line) for line in file]


def split(items: list[dict[str, object]]) -> list[list[dict[str, object]]]:
    turns: list[list[dict[str, object]]] = []
    for item in items:
        if item.get("role") == "user" or not turns:
            turns.append([])
        turns[-1].append(item)
    return turns


def turns(count: int, seed: int = 7) -> list[BenchTurn]:
    """`count` turns of real conversations joined one after another."""
    source, draw = rows(), random.Random(seed)
    draw.shuffle(source)
    found: list[BenchTurn] = []
    while len(found) < count:
        for row in source:
            for items in split(row["items"]):  # type: ignore[arg-type]
                found.append(turn(items, len(found), draw))
    return found[:count]


def turn(items: list[dict[str, object]], number: int, draw: random.Random) -> BenchTurn:
    parts = [(str(i["type"]), str(i.get("role", "")), msgspec.json.encode(i)) for i in items]
    first = 1 if items[0].get("role") == "user" else 0
    changed = draw.sample(SLOTS, 1 + number % 2)
    value = f"{draw.getrandbits(640):0160x}"
    slots = {name: msgspec.json.encode({"v": number, "key": name, "text": value}) for name in changed}
    return BenchTurn(inputs=parts[:first], outputs=parts[first:], slots=slots, raw=items)
