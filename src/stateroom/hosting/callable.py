"""A Python function as an agent."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

from stateroom.errors import StateroomError
from stateroom.flows.agent import AgentEvent, Delta, Done, End, Output, Start, Turn, Usage
from stateroom.run.model import Style

_EVENTS = (Start, Delta, Done, Output, Usage, End)


class CallableAgent:
    """Answers with what `function(turn)` gives.

    An `async def` returns the text of a message, an item, a list of items, or None for nothing to say. An async
    generator yields text as it comes, whole items, or events of the agent contract. Anything else ends the turn with
    `agent_answer_invalid`.
    """

    def __init__(self, name: str, function: Callable[[Turn], Any], style: Style = "responses") -> None:
        self.name = name
        self.style = style
        self._function = function

    async def work(self, turn: Turn) -> AsyncIterator[AgentEvent]:
        answer = self._function(turn)
        if inspect.isawaitable(answer):
            for event in _whole(await answer):
                yield event
        elif inspect.isasyncgen(answer):
            async with aclosing(answer), aclosing(_streamed(answer)) as events:
                async for event in events:
                    yield event
        else:
            raise _invalid(f"{self.name} must be an async function or an async generator; it gave", answer)


def _whole(answer: Any) -> list[AgentEvent]:
    if answer is None:
        return []
    if isinstance(answer, str):
        return [_message(), Delta(answer), Done()]
    items = answer if isinstance(answer, list) else [answer]
    for item in items:
        if not isinstance(item, dict):
            raise _invalid("An agent returns text, an item, a list of items or None; this one returned", item)
    return [Output(item) for item in items]


async def _streamed(pieces: AsyncIterator[Any]) -> AsyncGenerator[AgentEvent, None]:
    """Events from whatever a generator yields; what was begun is completed before anything else begins."""
    begun = False
    async for piece in pieces:
        for event in _events_of(piece, begun):
            begun = isinstance(event, Start | Delta) or (begun and isinstance(event, Usage))
            yield event
    if begun:
        yield Done()


def _events_of(piece: Any, begun: bool) -> list[AgentEvent]:
    if isinstance(piece, str):
        piece = Delta(piece)
    elif isinstance(piece, dict):
        piece = Output(piece)
    if not isinstance(piece, _EVENTS):
        raise _invalid("An agent yields text, items or events; this one yielded", piece)
    if isinstance(piece, Delta) and not begun:
        return [_message(), piece]
    if isinstance(piece, Start | Output | End) and begun:
        return [Done(), piece]
    return [piece]


def _message() -> Start:
    return Start({"type": "message", "role": "assistant"})


def _invalid(why: str, found: Any) -> StateroomError:
    return StateroomError(f"{why} {type(found).__name__}.", code="agent_answer_invalid")
