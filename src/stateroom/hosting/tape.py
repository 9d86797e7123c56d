"""An agent that says what was recorded: the whole stack can be replayed and compared without any model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import anyio

from stateroom.errors import InvalidInput, NotFound
from stateroom.flows.agent import AgentEvent, Delta, Done, Output, Start, Turn, text_of
from stateroom.hosting import transcripts
from stateroom.hosting.transcripts import TapedTurn, Transcript
from stateroom.run.model import Style


class Tape:
    """Recorded turns, by transcript id and number from 0."""

    def __init__(self, recorded: Iterable[Transcript]) -> None:
        self._turns = {transcript.id: transcript.turns() for transcript in recorded}

    @classmethod
    def load(cls, path: str | Path) -> Tape:
        """The tape in a transcript file. Errors as in `transcripts.read`."""
        return cls(transcripts.read(path))

    def turn(self, transcript: str, number: int) -> TapedTurn:
        """NotFound when there is no such recording."""
        turns = self._turns.get(transcript, [])
        if not 0 <= number < len(turns):
            raise NotFound(f"The tape has no turn {number} of {transcript[:80]!r}.", code="not_on_tape")
        return turns[number]


class TapeAgent:
    """Answers with the outputs of the turn that the request's metadata names: {"tape": transcript id, "turn": "0"…}.

    `stream_chars`: messages come as deltas of this many characters (0: whole). `delay_ms` passes before each event, so
    that a crash test finds something to interrupt.
    """

    style: Style = "responses"

    def __init__(self, tape: Tape, *, name: str = "tape", stream_chars: int = 0, delay_ms: int = 0) -> None:
        self.name = name
        self._tape = tape
        self._stream_chars = stream_chars
        self._delay_ms = delay_ms

    async def work(self, turn: Turn) -> AsyncIterator[AgentEvent]:
        for item in self._tape.turn(*_named(turn)).outputs:
            for event in self._spoken(item):
                if self._delay_ms:
                    await anyio.sleep(self._delay_ms / 1000)
                yield event

    def _spoken(self, item: dict[str, Any]) -> list[AgentEvent]:
        text = text_of(item)
        if not self._stream_chars or not text or item.get("type", "message") != "message":
            return [Output(item)]
        pieces = [text[at : at + self._stream_chars] for at in range(0, len(text), self._stream_chars)]
        head = {"type": "message", "role": item.get("role", "assistant")}
        return [Start(head), *(Delta(piece) for piece in pieces), Done(item)]


def _named(turn: Turn) -> tuple[str, int]:
    """Which recording the request asks for."""
    metadata = turn.request.get("metadata")
    if isinstance(metadata, dict):
        transcript, number = metadata.get("tape"), metadata.get("turn")
        if isinstance(transcript, str) and isinstance(number, str) and number.isdecimal() and len(number) < 9:
            return transcript, int(number)
    raise InvalidInput('Name the recording in the metadata: {"tape": "<id>", "turn": "<number>"}.', code="tape_not_named")
