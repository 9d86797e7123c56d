"""The only place that asks what time it is. Time is data and deadlines, never order."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Protocol

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Clock(Protocol):
    """Two clocks: the wall (data people read) and the time since boot (what leases are measured with)."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970, as the machine believes. May jump."""
        ...

    def boot_ms(self) -> int:
        """Milliseconds since this boot, the same in every process of the machine. Never jumps."""
        ...

    def boot_id(self) -> str:
        """Names the boot that `boot_ms` counts from."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def __init__(self) -> None:
        try:
            self._boot_id = _BOOT_ID.read_text().strip()
        except OSError:  # not Linux: boot time restarts at a boot, which `store_time` notices by itself
            self._boot_id = "unknown"

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def boot_ms(self) -> int:
        source = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
        return time.clock_gettime_ns(source) // 1_000_000

    def boot_id(self) -> str:
        return self._boot_id


class FrozenClock:
    """A clock that tests move by hand; wall and boot time move apart on purpose."""

    def __init__(self, wall_ms: int = 1_700_000_000_000, boot_ms: int = 1_000) -> None:
        self.wall, self.boot, self.boot_name = wall_ms, boot_ms, "boot-1"

    def wall_ms(self) -> int:
        return self.wall

    def boot_ms(self) -> int:
        return self.boot

    def boot_id(self) -> str:
        return self.boot_name

    def advance(self, ms: int) -> None:
        """Both clocks move, as time normally passes."""
        self.wall += ms
        self.boot += ms


def store_time(clock: Clock, *, boot: str, boot_ms: int, store_ms: int) -> int:
    """The store's time: what was persisted, plus the time since boot. Wall jumps cannot reach it.

    `boot`, `boot_ms`, `store_ms` are the persisted mark. Within one boot the answer grows with boot time only;
    after a reboot it continues from the mark or the wall, whichever is later, and so never goes back.
    """
    elapsed = clock.boot_ms() - boot_ms
    if boot == clock.boot_id() and elapsed >= 0:
        return store_ms + elapsed
    return max(store_ms, clock.wall_ms())
