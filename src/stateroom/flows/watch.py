"""Watch a desk: its patches one by one, each once, live until its end (D9).

The cursor is the session's version, which is dense: whoever has seen version v gets v + 1 next, in any process and at any
time. A watcher holds one page, however many versions it is behind; what is told comes from the store, never from a writer.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any

from stateroom import ids, limits
from stateroom.backends.base import Backend
from stateroom.connection.model import Cursor, epoch_of, parse
from stateroom.connection.store import Bell
from stateroom.errors import CursorInvalid, Gone, InvalidInput
from stateroom.ids import NIL
from stateroom.principal import Scope
from stateroom.session import access
from stateroom.session.model import Slot
from stateroom.wire import json

Events = AsyncGenerator[tuple[Cursor, dict[str, Any]] | None, None]
LOOK_S = 1.0  # a version that was written elsewhere is seen after this, should its wake-up be lost


class Watchers:
    """Opens watchers on desks. Each costs its cursor."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def cursor(self, session: bytes, given: str | None) -> Cursor | None:
        """The cursor a client gave for this desk; None: it begins with the desk as it is."""
        return None if not given else parse(given, epoch=self._epoch(session))

    def at(self, session: bytes, version: int) -> Cursor:
        return Cursor(self._epoch(session), version)

    async def check(self, scope: Scope, session: bytes, start: Cursor | None) -> None:
        """Raise, before anything is told, what cannot be told: CursorInvalid for what lies ahead, Gone for what is gone."""
        await self._told(scope, session, -1 if start is None else start.seq)

    async def events(
        self, scope: Scope, session: bytes, start: Cursor | None, *, bell: Bell | None = None, agent: str = ""
    ) -> Events:
        """(cursor, event) for every version after `start`, in order; None when LOOK_S passed without one or `bell` was rung.
        Without a start the first one is the whole state. The last one says that the desk is over."""
        wakeups, seq = self._backend.wakeups, -1 if start is None else start.seq
        if start is None:
            head = await self._backend.session(scope, session)
            slots = await self._backend.slots(scope, session)
            seq = max([head.version, *(slot.version for slot in slots)])
            yield self.at(session, seq), _state(session, seq, access.seen(head.access, agent, slots))
        while True:
            seen, found = wakeups.generation(session), False
            try:
                until, rows = await self._told(scope, session, seq)
            except Gone as over:
                if over.reason in ("version_not_kept", "cursor_gone"):
                    raise
                yield self.at(session, seq + 1), _over(session, seq + 1, over.reason)
                return
            rules = (await self._backend.session(scope, session)).access if agent and until > seq else ""
            for version in range(seq + 1, until + 1):
                seq, found = version, True
                changed = [slot for slot in rows if slot.version == version]
                yield self.at(session, version), _patch(session, version, access.seen(rules, agent, changed))
            if not found:
                await wakeups.wait(session, seen, LOOK_S, bell=bell)
                if wakeups.generation(session) == seen:
                    yield None

    async def _told(self, scope: Scope, session: bytes, after: int) -> tuple[int, Sequence[Slot]]:
        if after < 0:
            return (await self._backend.session(scope, session)).version, ()
        try:
            page = await self._backend.told(scope, session, after=after, limit=limits.FOLLOW_ROWS_MAX)
        except InvalidInput as ahead:
            if ahead.reason != "version_unknown":
                raise
            raise CursorInvalid("This version of the session is still to come.", code="cursor_ahead") from ahead
        except Gone as gone:
            if gone.reason != "version_not_kept":
                raise
            raise Gone("Versions so old are no longer told: begin without a cursor.", code="cursor_gone") from gone
        return page.until, page.slots

    def _epoch(self, session: bytes) -> str:
        return epoch_of(self._backend.epoch, session)


def _head(kind: str, session: bytes, version: int) -> dict[str, Any]:
    return {"type": f"session.{kind}", "session": ids.text("session", session), "version": version}


def _content(slots: Sequence[Slot]) -> dict[str, Any]:
    living = [slot for slot in slots if slot.body is not None]
    return {
        "slots": {slot.name: json.decode_trusted(slot.body or b"null") for slot in living},
        "kinds": {slot.name: slot.kind for slot in living},
        "trust": {slot.name: slot.trust for slot in living},
    }


def _state(session: bytes, version: int, slots: Sequence[Slot]) -> dict[str, Any]:
    versions = {slot.name: slot.version for slot in slots if slot.body is not None}
    return {**_head("state", session, version), **_content(slots), "slot_versions": versions}


def _patch(session: bytes, version: int, slots: Sequence[Slot]) -> dict[str, Any]:
    """A version as it was written. One of which nothing is shown (a window went on since, or all of it is for others) is
    told all the same, so that no number is missing."""
    by = slots[0] if slots else None
    return {
        **_head("patch", session, version),
        **_content(slots),
        "removed": [slot.name for slot in slots if slot.body is None],
        "by": by.by if by else None,
        "agent": (by.agent or None) if by else None,
        "run": ids.text("run", by.run) if by and by.run != NIL else None,
        "at": by.at if by else None,
    }


def _over(session: bytes, version: int, why: str) -> dict[str, Any]:
    return {**_head("ended", session, version), "reason": why}
