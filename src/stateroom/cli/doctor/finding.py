"""What a doctor says."""

from __future__ import annotations

from typing import Literal

import msgspec


class Finding(msgspec.Struct, frozen=True):
    """What was looked at, how it is, and what to do when it is not well. Codes stay the same, words may change."""

    level: Literal["ok", "warn", "bad"]
    code: str
    what: str
    remedy: str = ""
