"""A window: 64 KiB, 20 times a second. What an append waits for, what lies on the disk, what reading as of a time takes.

A window of as many seconds as are measured fills up; then it goes on for half as long, so that old entries leave while new
ones come. Nobody vacuums. The disk is everything in the store's folder, its log included, at its largest since the window
was full. Beside it a plain file gets the same now and then, with fdatasync: what the disk itself makes one wait for.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

from bench.session.blocks import quantile
from bench.session.state import worker
from stateroom import Desk

ENTRY_BYTES, PER_S = 64 << 10, 20
NAME = "lidar"


class Sensor:
    """One window under way."""

    def __init__(self, desk: Desk, seconds: float, disk: Callable[[], int], plain: Path) -> None:
        self.desk, self.seconds, self.disk, self.plain = desk, seconds, disk, plain
        self.draw = random.Random(7)
        self.filling, self.full = list[float](), list[float]()
        self.newest, self.second, self.probes = list[float](), list[float](), list[float]()
        self.largest = self.at_rest = 0

    async def run(self) -> None:
        await self.desk.window(NAME, seconds=self.seconds)
        count, began = round(self.seconds * PER_S), time.monotonic()
        for number in range(count + count // 2):
            await asyncio.sleep(max(0, began + number / PER_S - time.monotonic()))
            await self.append(self.filling if number < count else self.full)
            if number % 3 == 2:
                await self.look()
            elif number % 3 == 1:
                self.probe()
            if number >= count:
                self.largest = max(self.largest, self.disk())

    async def append(self, took: list[float]) -> None:
        entry, began = os.urandom(ENTRY_BYTES), time.perf_counter()
        await self.desk.observe(NAME, entry)
        took.append(time.perf_counter() - began)

    def probe(self) -> None:
        entry, began = os.urandom(ENTRY_BYTES), time.perf_counter()
        with self.plain.open("ab") as file:
            file.write(entry)
            file.flush()
            os.fdatasync(file.fileno())
        self.probes.append(time.perf_counter() - began)

    async def look(self) -> None:
        """What there was to see at some moment: the last entry, and the last second."""
        at = round(1000 * (time.time() - self.draw.random() * min(self.seconds, len(self.filling) / PER_S)))
        for limit, took in ((1, self.newest), (PER_S, self.second)):
            began = time.perf_counter()
            seen = await self.desk.entries(NAME, as_of=at, limit=limit)
            took.append(time.perf_counter() - began)
            assert all(entry.at <= at for entry in seen)

    def figures(self) -> dict[str, float]:
        held = self.desk.state[NAME]
        appends = self.filling + self.full
        return {
            "window_append_ms_p50": 1000 * quantile(appends, 0.5),
            "window_append_ms_p99": 1000 * quantile(appends, 0.99),
            "window_append_once_full_ms_p99": 1000 * quantile(self.full, 0.99),
            "window_disk_bytes_over_window": self.largest / held["held"],
            "window_as_of_newest_ms_p50": 1000 * quantile(self.newest, 0.5),
            "window_as_of_one_second_ms_p50": 1000 * quantile(self.second, 0.5),
            "window_as_of_newest_ms_p99": 1000 * quantile(self.newest, 0.99),
            "window_as_of_one_second_ms_p99": 1000 * quantile(self.second, 0.99),
            "window_plain_file_ms_p50": 1000 * quantile(self.probes, 0.5),
            "window_plain_file_ms_p99": 1000 * quantile(self.probes, 0.99),
            "window_MB": held["held"] / 1e6,
        }


async def measure(url: str, disk: Callable[[], int], plain: Path, *, seconds: float) -> dict[str, float]:
    """`disk` says how many bytes the store has on it; `plain` is a file on the same one."""
    async with worker(url) as room:
        sensor = Sensor(await room.open_session(), seconds, disk, plain)
        await sensor.run()
        return sensor.figures()
