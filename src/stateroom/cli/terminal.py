"""What commands print, and how they complain."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from stateroom.errors import StateroomError
from stateroom.wire import json

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2

# What to do about an error, by its code.
HINTS: Mapping[str, str] = {
    "store_missing": "Start one with 'stateroom serve', or name another with --data or --store.",
    "store_too_new": "Nothing was changed. Upgrade stateroom on this machine.",
    "store_damaged": "Run 'stateroom doctor' on it, and keep a copy of the folder before you do anything else.",
    "storage_full": "Free some space on the disk; nothing that was acknowledged is lost.",
    "store_busy": "Another process holds the store for long; 'stateroom doctor' says who is alive.",
    "store_io_error": "Check the disk and the folder's permissions; 'stateroom doctor' looks at both.",
    "not_found": "Ids are shown by 'stateroom conversation list' and 'stateroom run show'; --tenant says whose to look at.",
    "extra_missing": "Install it with: pip install 'stateroom[server]'",
    "store_not_shared": "Name one with --data or --store, or leave --workers out.",
    "store_away": "'stateroom doctor' with the same --store says more, when it can be reached at all.",
    "migration_failed": "What was done before it is recorded.",
    "tokens_needed": "Make a tokens file and name it with --tokens, or listen on 127.0.0.1.",
    "port_taken": "Stop what listens there, or choose another one with --port.",
    "agent_unknown": "Name 'clerk', or a function as 'package.module:function'.",
    "server_unreachable": "Start it with 'stateroom serve', or give another --url.",
}


def count(text: str) -> int:
    """An option's value that is a whole number, 1 or more."""
    if not text.isdecimal() or not 1 <= int(text) <= 10**9:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is no whole number from 1 on")
    return int(text)


def complain(message: str, code: str, hint: str = "") -> None:
    """One line on stderr, and one that says what to do."""
    print(f"stateroom: {message} ({code})", file=sys.stderr)
    if hint:
        print(f"  {hint}", file=sys.stderr)


def hint_of(error: StateroomError) -> str:
    """What to do about it, where we know."""
    if extra := error.facts.get("extra"):
        return f"Install it with: pip install 'stateroom[{extra}]'"
    return HINTS.get(error.reason, HINTS.get(error.code, ""))


def show_json(value: Any) -> None:
    """One JSON document on one line."""
    print(json.encode(value).decode())


def show_table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Columns as wide as they need to be; the last one as it is."""
    lines = [list(map(str, heads)), *(list(map(str, row)) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads) - 1)]
    for line in lines:
        print("  ".join([*(text.ljust(width) for text, width in zip(line, widths, strict=False)), line[-1]]).rstrip())


def show_pairs(pairs: Mapping[str, object]) -> None:
    """Names and values below each other; empty values are left out."""
    width = max(map(len, pairs))
    for name, value in pairs.items():
        if value not in ("", None, {}):
            print(f"{name.ljust(width)}  {value}")


def when(wall_ms: int) -> str:
    """A time for people, in UTC."""
    return "" if not wall_ms else datetime.fromtimestamp(wall_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def short(text: str, chars_max: int = 100) -> str:
    """One line of at most `chars_max` characters. Control characters are shown, not obeyed."""
    line = "".join(char if char.isprintable() else "·" if char in "\r\n\t" else f"\\x{ord(char):02x}" for char in text)
    return line if len(line) <= chars_max else line[: chars_max - 1] + "…"


def size(amount: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024 or unit == "GiB":
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    raise AssertionError("GiB is the last unit")
