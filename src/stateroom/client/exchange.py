"""One call of a program, over as many connections as it takes. No I/O: a client asks what to send next, and tells what came.

What makes it exactly once: a turn keeps its key, so that the server takes it once; a reader keeps the cursor of the last
event it handed out, applies the next number, passes over what it has seen, and comes back when one is missing. An event
whose end did not arrive is none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from stateroom import ids
from stateroom.client.model import Event, cursor_of, run_of
from stateroom.client.refusals import made, passes, refusal, wait_s
from stateroom.clock import Clock
from stateroom.connection.model import Cursor
from stateroom.errors import CursorInvalid, StateroomError, Unavailable
from stateroom.wire import json
from stateroom.wire.frames import Frame, Frames

TERMINAL: Final = frozenset({"response.completed", "response.incomplete", "response.failed", "session.ended"})
BACKOFF_S: Final = 0.1  # doubled with every try, up to …
BACKOFF_S_MAX: Final = 5.0
FIRST_S_MAX: Final = 0.02  # a connection that brought something and was cut is made again almost at once
LONG_MS: Final = 5_000  # a try that failed after this long is no sign that the server is out of reach
_EPOCH: Final = "stateroom-epoch"
FAULTS_MAX: Final = 5  # streams in a row that cannot be read on, before that is told


class Request(msgspec.Struct, frozen=True):
    """What to send."""

    method: str
    path: str
    headers: Mapping[str, str] = {}
    content: bytes | None = None


WELL: Final = Request("GET", "/v1/healthz")


class Exchange:
    """Ask `first` until there is an answer, or, when a stream answers, until the run it is about has ended.

    `run` and `after` make it a reader of that run from the beginning; a turn becomes one when its stream names its run.
    `watch` is the path of a session's patches, which may begin anywhere. An
    answer that does not come may only take long: then the server is asked whether it is well, and the same thing again.

    While `over` is false: wait `wait_s`, send `request()`; `feed` what comes when a stream `begins`, until it is `done`, or
    tell the `answered` rest; tell what was `cut`. Then `answer` is the object that was asked for, or None at a run's end.
    """

    def __init__(
        self, first: Request | None = None, *, run: str = "", watch: str = "", after: str = "", clock: Clock, patience_s: float
    ) -> None:
        self._first, self._run, self._cursor = first, run, _given(after)
        self._watch = watch
        self._clock, self._patience_ms = clock, patience_s * 1000
        self._asked, self._asked_ms = first, clock.boot_ms()
        self._failing_ms: int | None = None  # since when nothing was heard of the server
        self._tries = self._faults = 0
        self._frames, self._broken = Frames(), False
        self._doubted = False
        self.wait_s = 0.0
        self.over = False
        self.answer: dict[str, Any] | None = None

    def request(self) -> Request:
        """What to send on the next connection."""
        self._asked_ms = self._clock.boot_ms()
        self._frames, self._broken = Frames(), False  # what the last one left of a frame is no event
        self._asked = self._next()
        return self._asked

    def begins(self, status: int, headers: Mapping[str, str]) -> bool:
        """Whether a stream begins. Otherwise the whole answer is to be read and `answered`."""
        return status == 200 and headers.get("content-type", "").startswith("text/event-stream")

    def answered(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """An answer as a whole. Raises the error it stands for, unless it passes."""
        if self._asked is WELL and status < 500:  # it is well: what we wait for takes its time
            self._doubted, self._failing_ms, self.wait_s = False, None, 0.0
        elif status == 204:
            self.over = True
        elif status == 200 and _EPOCH in headers:  # a document: bytes, and what goes with them
            version = headers.get("etag", "").strip('"')
            self.answer = {"snapshot": body, "epoch": int(headers[_EPOCH]), "version": int(version)}
            self.over = True
        elif status == 200:
            self.answer = self._parsed(body)
            self.over = self.answer is not None
        elif passes(status, headers):
            self._failed(refusal(status, body), after_s=wait_s(headers))
        else:
            raise refusal(status, body)

    def feed(self, piece: bytes) -> Iterator[Event]:
        """The events that a piece of the stream completes."""
        for frame in self._frames.feed(piece):
            event = self._taken(frame)
            if event is not None:
                yield event
            if self.done:
                return
        self._failing_ms = None

    @property
    def done(self) -> bool:
        """Whether nothing more is wanted from this connection."""
        return self.over or self._broken

    def cut(self, why: object) -> None:
        """The connection is gone. Unavailable when that has been so for too long."""
        if not self.done:
            self._failed(Unavailable(f"The server does not answer: {why}.", code="server_unreachable"))

    # ── inside ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _next(self) -> Request:
        if self._run or self._watch or self._first is None:
            headers = {} if self._cursor is None else {"Last-Event-ID": str(self._cursor)}
            return Request("GET", self._watch or f"/v1/runs/{self._run}/events", headers)
        return WELL if self._doubted else self._first

    def _taken(self, frame: Frame) -> Event | None:
        """The event of a frame, when it is the next one."""
        if not frame.id:
            self._told(frame)
            return None
        cursor, last = cursor_of(frame.id), self._cursor
        seen = 0 if last is None else last.seq
        if cursor is None or (last is not None and cursor.epoch != last.epoch):
            self._fault(f"An event has the cursor {frame.id[:40]!r}, after {last}.")
        elif self._watch and last is None:
            return self._applied(cursor, frame.body)
        elif cursor.seq > seen + 1:
            self._fault(f"Event {seen + 1} is missing; {cursor.seq} came.")
        elif cursor.seq == seen + 1:
            return self._applied(cursor, frame.body)
        return None

    def _applied(self, cursor: Cursor, body: bytes) -> Event | None:
        parsed = self._parsed(body)
        if parsed is None:
            return None
        event = Event(str(cursor), parsed)
        response = parsed.get("response") or {}
        self._run = self._run or run_of(response.get("id", ""))
        self._cursor, self._tries, self._faults = cursor, 0, 0
        if event.type in TERMINAL:
            self.answer, self.over = response or parsed, True
        return event

    def _told(self, frame: Frame) -> None:
        """What is said beside the log: that we lag, or that the stream cannot go on. The cursor stays."""
        if frame.event == "lagged":
            self._break(Unavailable("The server closed a stream that was not read.", code="server_unreachable"))
        elif frame.event == "error" and (told := self._parsed(frame.body)) is not None:
            error = made(503, str(told.get("code")), str(told.get("message")))
            if not isinstance(error, Unavailable):
                raise error
            self._break(error)

    def _parsed(self, body: bytes) -> dict[str, Any] | None:
        try:
            found = json.decode_trusted(body)
        except msgspec.DecodeError:
            found = None
        if isinstance(found, dict):
            return found
        self._fault(f"This is no JSON object: {body[:80]!r}")
        return None

    def _fault(self, what: str) -> None:
        """This is not what it should be; the next try may be."""
        error = StateroomError(what, code="stream_faulty")
        self._faults += 1
        if self._faults >= FAULTS_MAX:
            raise error
        self._break(error)

    def _break(self, error: StateroomError) -> None:
        self._failed(error)
        self._broken = True

    def _failed(self, error: StateroomError, *, after_s: float = 0.0) -> None:
        now = self._clock.boot_ms()
        self._doubted = self._doubted or now - self._asked_ms >= LONG_MS
        if self._failing_ms is None:
            self._failing_ms = now
        if now - self._failing_ms > self._patience_ms:
            raise error
        self.wait_s = max(after_s, backoff_s(self._tries, progressed=self._cursor is not None))
        self._tries += 1


def backoff_s(tries: int, *, progressed: bool) -> float:
    """How long to wait before the next try, with chance in it, so that many readers do not come back as one."""
    most = FIRST_S_MAX if progressed and not tries else min(BACKOFF_S * 2 ** min(tries, 16), BACKOFF_S_MAX)
    return most * (0.5 + int.from_bytes(ids.salt()[:2], "big") / 2**17)


def _given(cursor: str) -> Cursor | None:
    """A cursor from outside. CursorInvalid when it is none."""
    if not cursor:
        return None
    found = cursor_of(cursor)
    if found is None:
        raise CursorInvalid("A cursor looks like 'epoch.seq'; every event has one.", param="after")
    return found
