"""Group commit without a queue manager: the caller that finds nobody leading leads, and commits for everybody waiting.

Synchronous callers lead in their own thread. Asynchronous callers never block their loop: a thread of ours leads for
them. Whatever is queued meanwhile shares one fsync, a savepoint per batch; nothing is answered before COMMIT returns.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable

from stateroom import limits
from stateroom.batch import Batch, Receipt
from stateroom.errors import Closed, Unavailable


class Entry:
    """A batch on its way in, and its fate: receipts or an error, valid once `settled`."""

    __slots__ = ("batch", "fate", "future", "loop", "settled", "signal")

    def __init__(self, batch: Batch, future: asyncio.Future[None] | None = None) -> None:
        self.batch = batch
        self.fate: tuple[Receipt, ...] | BaseException | None = None
        self.settled = False
        self.future = future
        self.loop = future.get_loop() if future is not None else None
        self.signal = threading.Lock()  # released when it is settled, or when this caller has to lead
        self.signal.acquire()

    def result(self) -> tuple[Receipt, ...]:
        if isinstance(self.fate, BaseException):
            raise self.fate
        assert self.settled
        assert self.fate is not None
        return self.fate


class Writer:
    """Takes batches from any thread or loop and hands them, in groups, to `commit_group`."""

    def __init__(self, commit_group: Callable[[list[Entry]], None]) -> None:
        self._commit_group = commit_group
        self._mutex = threading.Lock()
        self._queue: deque[Entry] = deque()
        self._leading = False
        self._closed = False
        self._wake: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def commit_now(self, batch: Batch) -> tuple[Receipt, ...]:
        """Commit in this thread, or wait for the one that is committing."""
        entry = Entry(batch)
        if not self._enqueue(entry):
            entry.signal.acquire()
        if not entry.settled:
            self._lead(entry)
        return entry.result()

    async def commit(self, batch: Batch) -> tuple[Receipt, ...]:
        """Commit without blocking the loop. Cancelling the caller does not undo the batch."""
        entry = Entry(batch, asyncio.get_running_loop().create_future())
        if self._enqueue(entry):
            self._start_leader()
        assert entry.future is not None
        await entry.future
        return entry.result()

    def close(self) -> None:
        """Refuse new batches and let the queued ones land."""
        with self._mutex:
            self._closed = True
        if self._thread is not None:
            self._wake.put(False)
            self._thread.join()

    def _enqueue(self, entry: Entry) -> bool:
        """Whether the caller has to lead."""
        with self._mutex:
            if self._closed:
                raise Closed("This store was closed.")
            if len(self._queue) >= limits.PENDING_BATCHES_MAX:
                raise Unavailable("Too many writes are waiting; come back in a moment.", code="overloaded")
            self._queue.append(entry)
            if self._leading:
                return False
            self._leading = True
            return True

    def _lead(self, own: Entry | None) -> None:
        """Commit groups until the queue is empty, or until one's own batch is done and somebody else can go on."""
        while True:
            with self._mutex:
                group = self._take()
                if not group:
                    self._leading = False
                    return
            try:
                self._commit_group(group)
            except BaseException as error:  # noqa: BLE001  a fault in here must not leave callers waiting for ever
                for entry in group:
                    if not entry.settled:
                        entry.fate, entry.settled = error, True
            settle(group, own)
            if own is not None and own.settled and self._hand_over():
                return

    def _take(self) -> list[Entry]:
        """The next group, bounded in batches and bytes."""
        group: list[Entry] = []
        size = 0
        while self._queue and len(group) < limits.GROUP_BATCHES_MAX and size < limits.GROUP_BYTES_MAX:
            entry = self._queue.popleft()
            group.append(entry)
            size += sum(
                len(d.body) for write in entry.batch.writes for d in getattr(write, "items", getattr(write, "outputs", ()))
            )
        return group

    def _hand_over(self) -> bool:
        """Give the lead to the next one waiting. False: nobody waits, look once more and stop."""
        with self._mutex:
            if not self._queue:
                return False
            following = self._queue[0]
        if following.future is not None:
            self._start_leader()
        else:
            following.signal.release()
        return True

    def _start_leader(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="stateroom-writer", daemon=True)
            self._thread.start()
        self._wake.put(True)

    def _serve(self) -> None:
        while self._wake.get():
            self._lead(None)


def settle(group: list[Entry], own: Entry | None) -> None:
    """Tell everybody in the group, one wake-up per event loop."""
    loops: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for entry in group:
        if entry.future is not None and entry.loop is not None:
            loops.setdefault(entry.loop, []).append(entry.future)
        elif entry is not own:
            entry.signal.release()
    for loop, futures in loops.items():
        if not loop.is_closed():
            loop.call_soon_threadsafe(_resolve, futures)


def _resolve(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
