"""A connection that comes back: opened when it is needed, checked, and opened again after it was lost.

The one place where a transaction says whose rows it may touch, and where a worker notices that the database it finds is
not the one it left: a promoted standby has another timeline, and then no cursor and no fence of before is good.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from psycopg.conninfo import conninfo_to_dict

from stateroom import limits
from stateroom.backends.postgres import schema
from stateroom.backends.postgres.pipe import Lost, Pipe, Refused
from stateroom.backends.postgres.tenants import Tenants
from stateroom.backends.postgres.time import SAMPLE, StoreTime
from stateroom.backends.sql.tx import Row
from stateroom.clock import Clock
from stateroom.errors import Unavailable

T = TypeVar("T")
LINE = "substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)"
TIMELINE = f"select new_timeline({LINE}), {LINE}"
KNOWN_TIMELINE = "select (select value::bigint from meta where name = 'epoch'), ''"
NEEDS = "select value::bigint from meta where name = 'needs'"
NAME = "select set_config('stateroom.tenant', ?, true)"
_UNREADY = ("42501", "42P01", "42883", "3F000")  # no grant, no table, no function, no schema
CONNECT_S = 5.0
LOOK_MS = 1_000  # when patience is over, somebody looks again so often; another silent attempt is not begun for less
FENCE_SPAN = 1 << 20  # fences of one epoch; far more than a run has attempts


class Shared:
    """What all connections of a handle have in common."""

    def __init__(self, conninfo: str, clock: Clock, *, prepare: bool, patience_s: float, reading: bool = False) -> None:
        """`reading`: nothing is written through them, so that a role that may only look can use them, on a standby too."""
        self.conninfo, self.clock, self.prepare, self.patience_s = conninfo, clock, prepare, patience_s
        self.reading = reading
        self.time = StoreTime(clock)
        self.tenants = Tenants()
        self.epoch = 0
        self.down_since: int | None = None  # boot ms; while it is set, nobody waits longer than what is left of patience
        self.tried = 0  # boot ms at which somebody found it away last
        self.hosts = max(1, len(str(conninfo_to_dict(conninfo).get("host", "")).split(",")))
        self.lenient_until = 0  # boot ms
        self.closing = threading.Event()

    def left_ms(self) -> float:
        """What is left of patience."""
        since = self.clock.boot_ms() if self.down_since is None else self.down_since
        return self.patience_s * 1000 - (self.clock.boot_ms() - since)

    def connect_s(self) -> float:
        """How long an attempt to connect may take at each host. Lost without one when patience is over, and somebody has just
        looked: who comes now would wait for nothing."""
        if self.down_since is None:
            return CONNECT_S
        left_ms = self.left_ms()
        if left_ms <= 0 and self.clock.boot_ms() - self.tried < LOOK_MS:
            raise Lost("It was away a moment ago.")
        return min(CONNECT_S, max(0.0, left_ms / 1000) / self.hosts)

    def is_away(self, since: int) -> None:
        """Nothing came of what was asked then."""
        self.tried = self.clock.boot_ms()
        self.down_since = self.down_since or since

    def is_back(self) -> None:
        """The database answers again."""
        now = self.clock.boot_ms()
        if self.down_since is not None and now - self.down_since > limits.HEARTBEAT_MS:
            self.lenient_until = now + limits.HEARTBEAT_MS + 1_000
        self.down_since = None


class Link:
    """One connection's life. Used by one thread at a time."""

    def __init__(self, shared: Shared) -> None:
        self.shared, self.time, self.tenants = shared, shared.time, shared.tenants
        self._pipe: Pipe | None = None
        self._line = ""

    @property
    def fence_floor(self) -> int:
        return max(0, self.shared.epoch - 1) * FENCE_SPAN

    def pipe(self, *, bare: bool = False) -> Pipe:
        """The connection, opened now if need be. Lost when there is none to be had. `bare`: it need not have tables."""
        if self._pipe is None:
            pipe = Pipe(self.shared.conninfo, prepare=self.shared.prepare, connect_s=self.shared.connect_s())
            if bare:
                self._pipe = pipe
                return pipe
            try:
                ((self.shared.epoch, self._line),) = pipe.ask(KNOWN_TIMELINE if self.shared.reading else TIMELINE)
                ((needs,),) = pipe.ask(NEEDS)
            except Lost:
                pipe.close()
                raise
            except Refused as refused:
                pipe.close()
                if refused.state in _UNREADY:  # waiting does not help
                    raise
                raise Lost(str(refused)) from refused
            if needs > schema.VERSION:  # it was migrated while this worker ran
                pipe.close()
                raise Unavailable(f"This store now needs a worker that knows schema {needs}: upgrade.", code="store_too_new")
            self._pipe = pipe
            self.shared.is_back()
        return self._pipe

    def drop(self) -> None:
        """Close it; the next user opens another."""
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None

    def patiently(self, act: Callable[[Pipe], T], *, bare: bool = False) -> T:
        """`act` on a working connection, waiting for one as long as patience lasts. Only for what may be done again.
        Unavailable when the database stays away."""
        clock, pause = self.shared.clock, 0.02
        while True:
            began = clock.boot_ms()
            try:
                return act(self.pipe(bare=bare))
            except Lost as lost:
                self.drop()
                self.shared.is_away(began)
                left_ms, silent = self.shared.left_ms(), clock.boot_ms() - began > LOOK_MS
                if left_ms < (LOOK_MS if silent else 0) or self.shared.closing.is_set():
                    raise Unavailable(f"The database does not answer: {lost}", code="store_away") from lost
                self.shared.closing.wait(pause)
                pause = min(2 * pause, 0.5)

    def name(self, pipe: Pipe, tenant: int) -> None:
        """Say whose rows this transaction may touch, for as long as it lasts."""
        pipe.send(NAME, (str(tenant),))

    @contextmanager
    def reading(self, pipe: Pipe, tenant: int) -> Iterator[None]:
        """One snapshot of one tenant. Nothing of it outlives the block."""
        pipe.send("begin isolation level repeatable read read only")
        self.name(pipe, tenant)
        try:
            yield
        except Lost:
            raise
        except BaseException:
            pipe.ask("rollback")
            raise
        pipe.post("commit")

    @property
    def first_sql(self) -> str:
        """What a transaction says and asks first: whose rows it may touch; the server's clock; and behind a pooler, where a
        connection outlives its server, which server it is."""
        line = "''" if self.shared.prepare else LINE
        return SAMPLE.replace("select ", f"select set_config('stateroom.tenant', ?, true), {line}, ", 1)

    def sample(self, pipe: Pipe, row: Row, asked: int) -> None:
        """Inside a transaction: take a look at the server's clock. When it jumped, that is seen to first, and the
        transaction is tried again."""
        if row[1] not in ("", self._line):
            raise Lost("The database behind the pooler is another one now.")
        if self.time.sample(row[2:], asked):
            pipe.ask("rollback")
            self.time.settle(pipe)
            raise Refused("40001", "the server's clock was set")
