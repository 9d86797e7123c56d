"""Wake-ups between workers: NOTIFY as a hint, coalesced and outside of every transaction that writes.

One thread with one connection both listens and tells. A notification may be lost (its sender was killed, the connection
broke); so now and then, while somebody waits, the heads of the runs that are going on are read and those that moved are
told again. What else somebody waits for, a run that has paused for one, may have moved and stopped again between two
looks: those who wait for it look for themselves. Behind a pooler that cannot LISTEN only these looks are left.
"""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from collections.abc import Callable

from stateroom.backends.postgres.pipe import Lost, Pipe, Refused
from stateroom.backends.wakeups import LocalWakeups
from stateroom.clock import Clock
from stateroom.errors import Unavailable

CHANNEL = "stateroom"
NAME = "stateroom wake-ups"
GATHER_MS = 4  # what lands within this time is told in one notification
SPACE_MS = 25  # between two of them: each is a transaction, and they all queue up at one lock
HELLO = "+"  # somebody new is there
ALONE = (
    "select count(*) = 0 from pg_stat_activity where application_name = ? and datname = current_database()"
    " and pid <> pg_backend_pid()"
)
TOPICS_MAX = 200  # 32 characters each: NOTIFY carries less than 8,000
LOOK_S = 5.0  # how often the heads are read while somebody waits
STILL_LOOKS = 6  # so many looks apart, who waits for something that does not move looks again; 1 without LISTEN
RETRY_S = 0.5
SILENT_S = 5.0  # a connection that has not answered for so long is given up


class PostgresWakeups(LocalWakeups):
    """`tell` is called after a commit, from any thread. `heads` reads the runs that are going on; None when it cannot. Who
    is alone on a database tells nobody; a newcomer says that it is there."""

    def __init__(self, conninfo: str, heads: Callable[[], dict[bytes, int] | None], clock: Clock, *, listen: bool = True) -> None:
        super().__init__()
        self._conninfo, self._heads, self._clock, self._listen = conninfo, heads, clock, listen
        self._alone = False
        self._told = self._looked = 0  # boot ms of the last notification, and of the last look
        self._looks, self._still = 0, set[bytes]()  # what was waited for at the last one and did not move
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
        if topics and self._listen and not self._alone:
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
                pipe = Pipe(self._conninfo, prepare=False, silent_s=SILENT_S)
            except (Lost, Unavailable):
                self._wait(None, RETRY_S)
                continue
            try:
                self._attend(pipe)
            except (Lost, Refused):
                self._wait(None, RETRY_S)
            finally:
                pipe.close()

    def _attend(self, pipe: Pipe) -> None:
        """As long as the connection lives."""
        if self._listen:
            pipe.ask(f"listen {CHANNEL}")
            pipe.ask("select set_config('application_name', ?, false)", (NAME,))
            pipe.ask("select pg_notify(?, ?)", (CHANNEL, HELLO))
            self._alone = pipe.ask(ALONE, (NAME,))[0][0]
        self.touch_all()  # what was told while nobody listened may be missed
        while not self._closing:
            self._turn(pipe)
        self._send(pipe)

    def _turn(self, pipe: Pipe) -> None:
        """Hear, tell, and look when it is time."""
        silent = not self._wait(pipe, LOOK_S)
        if (now := self._clock.boot_ms()) - self._looked >= LOOK_S * 1000:
            self._looked = now
            if self.watched:
                self._look()
        if silent:  # also finds out that a connection is dead while nothing is said
            self._alone = pipe.ask(ALONE, (NAME,))[0][0] and self._listen
        self._send(pipe)
        for pid, payload in pipe.notices():
            if pid != pipe.pid:
                self._hear(payload)

    def _hear(self, payload: str) -> None:
        self._alone = False
        if payload == "*":
            self.touch_all()
        elif payload != HELLO:
            self.touch(*(bytes.fromhex(topic) for topic in payload.split()))

    def _send(self, pipe: Pipe) -> None:
        """One notification for what came together; too much of it says: look at everything."""
        if not self._topics:
            return
        since = self._clock.boot_ms() - self._told
        select.poll().poll(max(GATHER_MS, min(SPACE_MS, SPACE_MS - since)))
        topics = {self._topics.popleft() for _ in range(len(self._topics))}
        payload = " ".join(topic.hex() for topic in topics) if len(topics) <= TOPICS_MAX else "*"
        pipe.ask("select pg_notify(?, ?)", (CHANNEL, payload))
        self._told = self._clock.boot_ms()

    def _look(self) -> None:
        if (heads := self._heads()) is None:
            return
        moved = {run for run, head in heads.items() if self._known.get(run) != head} | (self._known.keys() - heads.keys())
        self._known, self._looks = heads, self._looks + 1
        still = self.topics() - heads.keys()
        moved |= still if self._looks % (STILL_LOOKS if self._listen else 1) == 0 else still - self._still
        self._still = still
        self.touch(*moved)

    def _wait(self, pipe: Pipe | None, seconds: float) -> bool:
        """Until somebody rings or the server says something; False when the time was over."""
        poll = select.poll()  # select() knows no descriptor beyond 1,024
        for source in (self._wake_r, *([pipe.fileno()] if pipe is not None else [])):
            poll.register(source, select.POLLIN)
        ready = [source for source, _ in poll.poll(seconds * 1000)]
        if self._wake_r in ready:
            os.read(self._wake_r, 4096)
        return bool(ready)
