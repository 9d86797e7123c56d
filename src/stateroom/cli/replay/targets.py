"""Where a replay plays: a store in this process here, a server in `http`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from stateroom.face import Room


class TryAgain(Exception):
    """No answer came; whether the request was taken is unknown. The same key makes it safe to ask again."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A turn as it is sent: which one of the tape, where, under which key."""

    key: str
    conversation: str
    transcript: str
    number: int
    input: Sequence[Mapping[str, Any]]
    streamed: bool = False

    @property
    def options(self) -> dict[str, Any]:
        """The request without its input and place."""
        return {"model": "tape", "metadata": {"tape": self.transcript, "turn": str(self.number)}}


class Answered(msgspec.Struct, frozen=True):
    """A turn's end, acknowledged. `error` is its code; `replayed`: the key was known. `outputs` as the face shows them."""

    response: str
    status: str
    error: str
    replayed: bool
    outputs: Sequence[Mapping[str, Any]]


class Target(Protocol):
    """What a replay needs. Every method may raise TryAgain."""

    async def begin(self, key: str) -> str:
        """A new conversation's id."""
        ...

    async def append(self, key: str, conversation: str, items: Sequence[Mapping[str, Any]]) -> None: ...

    async def turn(self, asked: Asked) -> Answered: ...

    async def record(self, conversation: str) -> list[dict[str, Any]]:
        """Everything the conversation shows, oldest first, verbatim."""
        ...


class StoreTarget:
    """A room in this process whose agent is the tape."""

    def __init__(self, room: Room) -> None:
        self._room = room

    async def begin(self, key: str) -> str:
        return (await self._room.create(key=key)).id

    async def append(self, key: str, conversation: str, items: Sequence[Mapping[str, Any]]) -> None:
        await self._room.append(conversation, items, expected_tail=0)

    async def turn(self, asked: Asked) -> Answered:
        options = asked.options | ({"stream": True} if asked.streamed else {})
        reply = await self._room.turn(asked.input, conversation=asked.conversation, key=asked.key, options=options)
        code = str((reply.error or {}).get("code", ""))
        return Answered(reply.response, reply.status, code, replayed=not reply.timings, outputs=reply.items)

    async def record(self, conversation: str) -> list[dict[str, Any]]:
        return [item async for item in self._room.items(conversation)]
