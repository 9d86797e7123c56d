"""Recorded conversations, and how they fall into turns. Shared by the tape agent and the replay command."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from stateroom.errors import InvalidInput
from stateroom.wire import json


class TapedTurn(msgspec.Struct, frozen=True):
    """One input to its outcome, as recorded. `input` is empty where the assistant began, `outputs` where nobody answered."""

    input: list[dict[str, Any]]
    outputs: list[dict[str, Any]]


class Transcript(msgspec.Struct, frozen=True):
    """One recorded conversation: `items` in order, `source` says where it was recorded."""

    id: str
    source: str
    items: list[dict[str, Any]]

    def turns(self) -> list[TapedTurn]:
        """A user message and everything up to the next one. What comes before the first is a turn without input."""
        turns: list[TapedTurn] = []
        for item in self.items:
            if is_user_message(item):
                turns.append(TapedTurn(input=[item], outputs=[]))
                continue
            if not turns:
                turns.append(TapedTurn(input=[], outputs=[]))
            turns[-1].outputs.append(item)
        return turns


def is_user_message(item: dict[str, Any]) -> bool:
    return item.get("type", "message") == "message" and item.get("role") == "user"


def read(path: str | Path) -> Iterator[Transcript]:
    """The transcripts of a JSONL file, plain or gzipped, one {"id", "source", "items"} a line. InvalidInput names the
    line that is none; OSError when the file cannot be read."""
    with open(path, "rb") as file:
        zipped = file.read(2) == b"\x1f\x8b"
    with gzip.open(path, "rb") if zipped else open(path, "rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield _transcript(line, f"{path}, line {number}")


def _transcript(line: bytes, place: str) -> Transcript:
    try:
        return msgspec.convert(json.decode(line), Transcript)
    except (InvalidInput, msgspec.ValidationError) as error:
        raise InvalidInput(f"{place} is no transcript: {error}", code="transcript_invalid") from error
