"""The store's time on PostgreSQL: the server's clock, less its jumps (D4, P13).

Workers have clocks of their own; leases must mean the same to all of them, so they are measured on the server's wall
clock plus a correction that all workers share. Each worker watches that sum beside its own boot time: when the two part
by more than they drift, the server's clock was set, and the worker that notices first moves the correction by as much
the other way. Time that was given out never goes back: a mark persists how far it has come.
"""

from __future__ import annotations

import threading

from stateroom.backends.postgres.pipe import Lost, Pipe
from stateroom.backends.sql.tx import Row
from stateroom.clock import Clock, SystemClock, store_time

JUMP_MS = 2_000  # clocks that agree drift less than this between two looks; a network adds its delay
MARK_MS = 5_000  # how old the persisted mark may get

SAMPLE = "select clock_ms(), correction, boot, boot_ms, store_ms from clock"
_LOOK = SAMPLE.replace("clock_ms()", "(extract(epoch from clock_timestamp()) * 1000)::bigint")


class StoreTime:
    """One per handle. `sample` takes what a transaction read from the server; `now` continues from there."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._offset: int | None = None  # store time less boot time
        self._last = 0
        self._marked = 0

    def now(self) -> int:
        """Store time in ms."""
        with self._lock:
            assert self._offset is not None, "opened with a sample"
            self._last = max(self._last, self._clock.boot_ms() + self._offset)
            return self._last

    def asking(self) -> int:
        """The moment at which a look at the server's clock is asked for."""
        return self._clock.boot_ms()

    def sample(self, row: tuple[int, int, str, int, int], asked: int) -> int:
        """Take a look at the server's clock, which it took at some moment since it was `asked`. By how much the server
        jumped, or 0: a clock that fits any moment of these is right, however slow the answer was."""
        server_ms, correction, boot, boot_ms, store_ms = row
        if not isinstance(self._clock, SystemClock):  # a test's clock stands for the server's too
            server_ms = self._clock.wall_ms()
        measured, mine = server_ms + correction, self._clock.boot_ms()
        with self._lock:
            if self._offset is None:
                self._offset = self._first(measured, boot, boot_ms=boot_ms, store_ms=store_ms) - mine
            ahead, behind = measured - (mine + self._offset), measured - (asked + self._offset)
            if ahead > JUMP_MS:
                return ahead
            if behind < -JUMP_MS:
                return behind
            self._offset += ahead if ahead > 0 else max(behind, -1) if behind < 0 else 0
            return 0

    def _first(self, measured: int, boot: str, *, boot_ms: int, store_ms: int) -> int:
        """Where time stands when this worker comes: exactly where the mark says when this machine wrote it, else at the
        server's time, and never behind the mark."""
        if boot == self._clock.boot_id() and boot_ms <= self._clock.boot_ms():
            return store_time(self._clock, boot=boot, boot_ms=boot_ms, store_ms=store_ms)
        return max(measured, store_ms)

    def settle(self, pipe: Pipe) -> None:
        """A transaction of its own, alone with the clock's row: take a sample, and move the correction if the server's
        clock jumped and nobody else has seen to it."""
        asked = self.asking()
        pipe.send("begin")
        pipe.send(f"{SAMPLE} for update")
        found = pipe.gather()[-1][0]
        if self._offset is None and self.asking() - asked > JUMP_MS // 2:
            raise Lost("The server takes too long to tell the time.")  # a wrong first idea of it would look like jumps
        if jumped := self.sample(found, asked):
            pipe.send("update clock set correction = correction - ?", (jumped,))
        pipe.send("commit")
        pipe.gather()

    def look(self, pipe: Pipe) -> None:
        """The same for whoever only reads: a jump is for others to mend."""
        asked = self.asking()
        self.sample(pipe.ask(_LOOK)[0], asked)

    def mark(self) -> tuple[str, Row] | None:
        """The statement that persists how far time has come; None while the last one is young. Whoever finds the row held
        leaves it: the holder does as much."""
        if (now := self.now()) - self._marked < MARK_MS:
            return None
        self._marked = now
        return (
            "update clock set boot = ?, boot_ms = ?, store_ms = greatest(store_ms, ?)"
            " where exists (select 1 from clock for update skip locked)",
            (self._clock.boot_id(), self._clock.boot_ms(), now),
        )
