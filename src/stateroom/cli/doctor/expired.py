"""Sessions that have expired, and that nobody has looked after: the same for both kinds of stores."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from stateroom.cli.doctor.finding import Finding
from stateroom.cli.terminal import when

LATE_MS: Final = 600_000  # whoever has what is to be done with them looks every second


def told(wanted: str, late: int, since: int) -> Iterator[Finding]:
    """`wanted` is what the store notes that is done with them; `late` of them have waited longer than LATE_MS."""
    if not late:
        return
    remedy = "Start a worker: 'stateroom serve'."
    if wanted:
        remedy = (
            f"Start a worker that has {wanted!r}: STATEROOM_ON_EXPIRY, or on_expiry of stateroom.stack.open. When some run, look"
            " into their logs. Or say 'nothing' to have them purged."
        )
    what = f"{late} sessions have expired and wait" + (f" for a process that has {wanted!r}" if wanted else "")
    yield Finding("warn", "expired_waiting", f"{what}, since {when(since)}", remedy)
