"""Group commit: the caller that finds nobody committing commits, and for everybody waiting.

A synchronous caller commits in its own thread; when others came meanwhile, a thread of ours goes on for them, so that
the first one is not kept. Asynchronous callers never block their loop: that thread commits for them too. Whatever is
queued meanwhile shares one fsync, a savepoint per batch; nothing is answered before COMMIT returns.
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

# Callers that were just answered come back with their next batch within this time. Without the pause they would fight
# the committing thread for the interpreter while it works on the few who were already waiting: measured, 8 threads get
# 1.2 times the turns per second with it, and a lone caller never meets it.
REGROUP_S = 0.0002


class Entry:
    """A batch on its way in, and its fate: receipts or an error, valid once `settled`."""

    __slots__ = ("batch", "fate", "future", "loop", "settled", "signal")

    def __init__(self, batch: Batch, future: asyncio.Future[None] | None = None) -> None:
        self.batch = batch
        self.fate: tuple[Receipt, ...] | BaseException | None = None
        self.settled = False
        self.future = future
        self.loop = future.get_loop() if future is not None else None
        self.signal = threading.Lock()  # released when it is settled
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
        self._pause = threading.Event()  # never set: a sleep by another name

    def commit_now(self, batch: Batch) -> tuple[Receipt, ...]:
        """Commit in this thread, or wait for the one that is committing."""
        entry = Entry(batch)
        if self._enqueue(entry):
            self._lead(entry)
        else:
            entry.signal.acquire()
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
        """Commit groups until the queue is empty. A caller that leads (`own`) commits the first group only."""
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
            if len(group) > 1:
                self._pause.wait(REGROUP_S)
            if own is not None and self._queue:  # others came meanwhile: our thread goes on for them
                self._start_leader()
                return

    def _take(self) -> list[Entry]:
        """The next group, bounded in batches and bytes."""
        if len(self._queue) == 1:
            return [self._queue.popleft()]
        group: list[Entry] = []
        size = 0
        while self._queue and len(group) < limits.GROUP_BATCHES_MAX and size < limits.GROUP_BYTES_MAX:
            entry = self._queue.popleft()
            group.append(entry)
            size += entry.batch.weight
        return group

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
