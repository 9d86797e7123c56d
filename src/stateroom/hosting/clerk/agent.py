"""The clerk as an agent: hears a turn, decides what to do, tells it word by word."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final

import anyio

from stateroom.flows.agent import AgentEvent, Delta, Done, Output, Start, Turn, Usage, text_of
from stateroom.hosting.clerk import calls
from stateroom.hosting.clerk.answers import INTENTS, report
from stateroom.hosting.clerk.visit import Visit
from stateroom.run.model import Style

PACE_MS_MAX: Final = 1000


class Clerk:
    """Answers in short English, and runs the shop's tools itself. A tool that the caller brings is called when the
    words fit its name or `tool_choice` insists. `metadata: {"pace_ms": "20"}` makes it speak at that pace, so that
    cancel and resume can be tried."""

    style: Style = "responses"

    def __init__(self, name: str = "clerk") -> None:
        self.name = name

    async def work(self, turn: Turn) -> AsyncIterator[AgentEvent]:
        visit = Visit(turn)
        events = _tell(visit, _respond(visit))
        if visit.changed:
            turn.update(visit.changes)
        pace_s = _pace_s(turn.request)
        for event in events:
            await anyio.sleep(pace_s)
            yield event
        yield Usage(_usage(turn, events))


def _respond(visit: Visit) -> str | dict[str, Any]:
    """The words of the answer, or a call of one of the caller's own tools."""
    if outputs := calls.answered(visit.turn):
        return report(outputs)
    if tool := calls.wanted(visit.turn, visit.text):
        return calls.call(tool, visit.text, visit.call_id())
    return next(answer(visit) for fits, answer in INTENTS if fits(visit))


def _tell(visit: Visit, answer: str | dict[str, Any]) -> list[AgentEvent]:
    """What was done, then what is said, in the pieces it is streamed in."""
    done: list[AgentEvent] = [Output(item) for item in visit.items]
    if isinstance(answer, str):
        words = [Delta(word) for word in re.findall(r"\s*\S+", answer)]
        return [*done, Start({"type": "message", "role": "assistant"}), *words, Done()]
    head = {name: answer[name] for name in ("type", "name", "call_id")}
    return [*done, Start(head), Delta(answer["arguments"]), Done(answer)]


def _pace_s(request: Mapping[str, Any]) -> float:
    metadata = request.get("metadata")
    wish = metadata.get("pace_ms") if isinstance(metadata, dict) else None
    if isinstance(wish, str) and wish.isdecimal():
        return int(wish[:6]) / 1000 if len(wish) < 4 else PACE_MS_MAX / 1000
    return 0.0


def _usage(turn: Turn, events: Sequence[AgentEvent]) -> dict[str, Any]:
    """One token a word, in the form of the Responses wire."""
    asked = sum(_words(item) for item in turn.window) + len(str(turn.request.get("instructions") or "").split())
    spoken = sum(len(event.text.split()) for event in events if isinstance(event, Delta))
    spoken += sum(_words(event.item) for event in events if isinstance(event, Output))
    return {
        "input_tokens": asked,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": spoken,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": asked + spoken,
    }


def _words(item: Mapping[str, Any]) -> int:
    return len(text_of(item).split()) + sum(len(str(item[name]).split()) for name in ("arguments", "output") if name in item)
