"""Wake-ups between workers: NOTIFY as a hint, coalesced and outside of every transaction that writes.

One thread with one connection both listens and tells. A notification may be lost (its sender was killed, the connection
broke); so now and then, while somebody waits, the heads of the runs that are going on are read and those that moved are
told again. Behind a pooler that cannot LISTEN only that look is left.
"""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from collections.abc import Callable

import psycopg

from stateroom.backends.wakeups import LocalWakeups

CHANNEL = "stateroom"
GATHER_S = 0.004  # what lands within this time is told in one notification
TOPICS_MAX = 200  # 32 characters each: NOTIFY carries less than 8,000
LOOK_S = 5.0  # how often the heads are read while somebody waits
RETRY_S = 0.5


class PostgresWakeups(LocalWakeups):
    """`tell` is called after a commit, from any thread. `heads` reads the runs that are going on; None when it cannot."""

    def __init__(self, conninfo: str, heads: Callable[[], dict[bytes, int] | None], *, listen: bool = True) -> None:
        super().__init__()
        self._conninfo, self._heads, self._listen = conninfo, heads, listen
        self._topics: deque[bytes] = deque()
        self._known: dict[bytes, int] = {}
        self._closing = False
        self._wake_r, self._wake_w = os.pipe()
        os.set_blocking(self._wake_r, False)
        os.set_blocking(self._wake_w, False)
        self._thread = threading.Thread(target=self._serve, name="stateroom-wakeups", daemon=True)
        self._thread.start()

    def tell(self, topics: set[bytes]) -> None:
        """Our own waiters at once, the other workers' soon."""
        self.touch(*topics)
        if topics and self._listen:
            self._topics.extend(topics)
            self._ring()

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._ring()
            self._thread.join()
            os.close(self._wake_r)
            os.close(self._wake_w)

    def _ring(self) -> None:
        try:
            os.write(self._wake_w, b"!")
        except BlockingIOError:  # it is full of rings already
            pass

    def _serve(self) -> None:
        while not self._closing:
            try:
                with self._connect() as connection:
                    self.touch_all()  # what was told while nobody listened may be missed
                    while not self._closing:
                        self._turn(connection)
                    self._send(connection)
            except psycopg.Error:
                self._wait(None, RETRY_S)

    def _connect(self) -> psycopg.Connection:
        connection = psycopg.connect(self._conninfo, autocommit=True, connect_timeout=5)
        if self._listen:
            connection.execute(f"listen {CHANNEL}")
        return connection

    def _turn(self, connection: psycopg.Connection) -> None:
        """Hear, tell, and look when it is time."""
        if not self._wait(connection, LOOK_S):
            if self.watched:
                self._look()
            connection.execute("select 1")  # finds out that a connection is dead while nothing is said
        self._send(connection)
        for notice in connection.notifies(timeout=0):
            if notice.pid != connection.info.backend_pid:
                self._hear(notice.payload)

    def _hear(self, payload: str) -> None:
        if payload == "*":
            self.touch_all()
        else:
            self.touch(*(bytes.fromhex(topic) for topic in payload.split()))

    def _send(self, connection: psycopg.Connection) -> None:
        """One notification for what came together; too much of it says: look at everything."""
        if not self._topics:
            return
        select.poll().poll(GATHER_S * 1000)
        topics = {self._topics.popleft() for _ in range(len(self._topics))}
        payload = " ".join(topic.hex() for topic in topics) if len(topics) <= TOPICS_MAX else "*"
        connection.execute("select pg_notify(%s, %s)", (CHANNEL, payload))

    def _look(self) -> None:
        if (heads := self._heads()) is None:
            return
        moved = {run for run, head in heads.items() if self._known.get(run) != head} | (self._known.keys() - heads.keys())
        self._known = heads
        self.touch(*moved)

    def _wait(self, connection: psycopg.Connection | None, seconds: float) -> bool:
        """Until somebody rings or the server says something; False when the time was over."""
        poll = select.poll()  # select() knows no descriptor beyond 1,024
        for source in (self._wake_r, *([connection.fileno()] if connection is not None else [])):
            poll.register(source, select.POLLIN)
        ready = [source for source, _ in poll.poll(seconds * 1000)]
        if self._wake_r in ready:
            os.read(self._wake_r, 4096)
        return bool(ready)
