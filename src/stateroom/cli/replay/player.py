"""Plays transcripts on a target: turn by turn, each with its key, several conversations at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from stateroom.cli.replay.targets import Answered, Asked, Target, TryAgain
from stateroom.errors import StateroomError, Unavailable
from stateroom.hosting.transcripts import TapedTurn, Transcript

T = TypeVar("T")
_AGAIN_S = 0.1
LOST = "run_lost"  # a turn that ended so was never answered: it is said again, under a new key


class Acknowledged(msgspec.Struct, frozen=True):
    """A turn whose end reached us. `items` is what the record must show of it from then on."""

    asked: Asked
    answer: Answered
    items: Sequence[Mapping[str, Any]]


class Story(msgspec.Struct):
    """One conversation as it went: what was acknowledged, in order."""

    name: str
    conversation: str
    opening: Sequence[Mapping[str, Any]] = ()
    turns: list[Acknowledged] = []

    @property
    def said(self) -> list[Mapping[str, Any]]:
        """What the record must be."""
        return [*self.opening, *(item for turn in self.turns for item in turn.items)]


class Player:
    """One run of a replay. `run` makes its keys its own; `streamed` says which turns ask for a stream.

    A request without an answer is sent again, under the same key, for `patience_s`; then Unavailable.
    """

    def __init__(
        self, target: Target, *, run: str, streamed: Callable[[int], bool] = lambda number: False, patience_s: float = 10.0
    ) -> None:
        self._target, self._run, self._streamed, self._patience_s = target, run, streamed, patience_s
        self.stories: list[Story] = []
        self.took_s: list[float] = []
        self.items = 0  # acknowledged so far
        self.retries = 0  # requests sent again
        self.replayed = 0  # answers that came from an earlier request with the same key
        self.lost_runs = 0  # turns that ended as run_lost and were said again
        self.stopping = False

    async def play(self, transcripts: Iterable[Transcript], *, concurrency: int) -> None:
        """Play them all, or until `stop`."""
        source = iter(transcripts)
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(self._work(source))

    def stop(self) -> None:
        """Finish the turns that are going on, and begin no others."""
        self.stopping = True

    async def _work(self, source: Iterator[Transcript]) -> None:
        for transcript in source:
            if self.stopping:
                return
            await self._perform(transcript, len(self.stories))

    async def _perform(self, transcript: Transcript, number: int) -> None:
        """`number` tells apart the times that one transcript is played."""
        mark = f"{self._run}.{number}"
        story = Story(name=transcript.id, conversation="")
        self.stories.append(story)
        story.conversation = await self._insist(lambda: self._target.begin(f"{transcript.id}:begin+{mark}"))
        turns = transcript.turns()
        if turns and not turns[0].input:
            opening = turns[0].outputs
            await self._insist(lambda: self._target.append(f"{transcript.id}:opening+{mark}", story.conversation, opening))
            story.opening = opening
        for place, turn in enumerate(turns):
            if self.stopping:
                return
            if turn.input:
                await self._take(story, turn, place, f"{transcript.id}:{place}+{mark}")

    async def _take(self, story: Story, turn: TapedTurn, place: int, key: str) -> None:
        tries = 0
        while True:
            asked = Asked(
                key=key if not tries else f"{key}~{tries}", conversation=story.conversation, transcript=story.name, number=place,
                input=turn.input, streamed=self._streamed(place),
            )  # fmt: skip
            answer = await self._timed(asked)
            if answer.status == "completed":
                story.turns.append(Acknowledged(asked, answer, [*turn.input, *turn.outputs]))
                self.items += len(turn.input) + len(turn.outputs)
                return
            if answer.error != LOST:
                raise StateroomError(
                    f"Turn {place} of {story.name} ended as {answer.status}.", code=answer.error or "turn_failed"
                )
            story.turns.append(Acknowledged(asked, answer, turn.input))  # kept and marked: it was said
            self.items += len(turn.input)
            self.lost_runs += 1
            tries += 1

    async def _timed(self, asked: Asked) -> Answered:
        started = asyncio.get_running_loop().time()
        answer = await self._insist(lambda: self._target.turn(asked))
        self.took_s.append(asyncio.get_running_loop().time() - started)
        self.replayed += answer.replayed
        return answer

    async def _insist(self, ask: Callable[[], Awaitable[T]]) -> T:
        loop = asyncio.get_running_loop()
        until = loop.time() + self._patience_s
        while True:
            try:
                return await ask()
            except TryAgain as error:
                if loop.time() > until:
                    message = f"No answer within {self._patience_s:.0f} s: {error}."
                    raise Unavailable(message, code="server_unreachable") from error
                self.retries += 1
                await asyncio.sleep(_AGAIN_S)


async def ask_again(target: Target, stories: Iterable[Story]) -> tuple[int, int]:
    """Every acknowledged turn once more, under its key: (how many were asked, how many got another answer)."""
    asked = different = 0
    for story in stories:
        for turn in story.turns:
            answer = await target.turn(turn.asked)
            asked += 1
            different += (answer.response, answer.status, answer.outputs) != (
                turn.answer.response, turn.answer.status, turn.answer.outputs,
            )  # fmt: skip
    return asked, different


def payload(stories: Iterable[Story]) -> int:
    """Bytes of what was acknowledged, as compact JSON."""
    return sum(len(msgspec.json.encode(item)) for story in stories for item in story.said)
