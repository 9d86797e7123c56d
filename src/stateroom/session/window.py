"""Windows: the last seconds or bytes of what was observed. Pure rules; entries are rows of their own, appended and dropped,
never rewritten.

A window is of time, not of versions: rolling back neither hides nor brings back what was observed, and a fork sees of its
parent's window what that still keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from stateroom import given, limits
from stateroom.errors import InvalidInput, LimitExceeded
from stateroom.session.model import Entry, NewEntry
from stateroom.wire import json


class Window(msgspec.Struct, frozen=True, omit_defaults=False):
    """What is kept: `seconds` or `bytes`, or what fits both. `entries` and `held` (bytes) lie there now, `newest` is the
    latest time among them (ms)."""

    seconds: float | None = None
    bytes: int | None = None
    entries: int = 0
    held: int = 0
    newest: int = 0


_decode = msgspec.json.Decoder(Window).decode


def of(body: bytes | None) -> Window:
    """A stored slot's window."""
    return _decode(body) if body is not None else Window()


def defined(value: Any, old: Window) -> Window:
    """What a caller asks for, on what lies there already. InvalidInput for anything that bounds nothing."""
    if not isinstance(value, dict) or not value.keys() <= {*Window.__struct_fields__}:
        raise _invalid()
    seconds, size = value.get("seconds"), value.get("bytes")
    if seconds is None and size is None:
        raise _invalid()
    if seconds is not None and not (_number(seconds) and 0 < seconds <= limits.WINDOW_SECONDS_MAX):
        raise _invalid()
    if size is not None and not (type(size) is int and 0 < size <= limits.WINDOW_SLOT_BYTES_MAX):
        raise _invalid()
    return msgspec.structs.replace(old, seconds=seconds, bytes=size)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _invalid() -> InvalidInput:
    return InvalidInput(
        f"A window keeps 'seconds' (up to {limits.WINDOW_SECONDS_MAX}) or 'bytes' (up to {limits.WINDOW_SLOT_BYTES_MAX}).",
        code="window_invalid",
    )


def check_entries(entries: Sequence[NewEntry]) -> None:
    """Number, sizes and times of what is appended."""
    if not entries:
        raise InvalidInput("An append to a window has entries.", code="window_invalid")
    if len(entries) > limits.WINDOW_APPEND_MAX:
        raise LimitExceeded(f"One patch appends {limits.WINDOW_APPEND_MAX} entries to a window.", code="patch_too_large")
    for entry in entries:
        if type(entry.at) is not int or not isinstance(entry.body, bytes) or not isinstance(entry.media, str):
            raise InvalidInput("An entry has bytes, a time in ms and a short media type.", code="entry_invalid")
        given.text(entry.media, "media")
        if len(entry.body) > limits.SLOT_BYTES_MAX:
            raise LimitExceeded(f"An entry holds {limits.SLOT_BYTES_MAX} bytes.", code="entry_too_large")
        if not 0 <= entry.at <= limits.JSON_INT_MAX or len(entry.media) > limits.NAME_CHARS_MAX:
            raise InvalidInput("An entry has a time in ms and a short media type.", code="entry_invalid")


def appended(old: Window, entries: Sequence[NewEntry], now: int) -> tuple[Window, tuple[NewEntry, ...]]:
    """The window with these entries, and the entries with their times. One that claims to be from far ahead would push out
    whatever comes until then: InvalidInput."""
    if any(entry.at > now + limits.ENTRY_AHEAD_MS for entry in entries):
        raise InvalidInput("An entry's time is in ms, and at most a day ahead.", code="entry_invalid", param="at")
    timed = tuple(msgspec.structs.replace(entry, at=entry.at or now) for entry in entries)
    window = msgspec.structs.replace(
        old,
        entries=old.entries + len(timed),
        held=old.held + sum(len(entry.body) for entry in timed),
        newest=max([old.newest, *(entry.at for entry in timed)]),
    )
    return window, timed


def horizon(window: Window, at: int) -> int:
    """What was observed at or before this time lies outside a window that is looked at as of `at`."""
    return -1 if window.seconds is None else at - round(window.seconds * 1000)


def seen(window: Window, entries: Sequence[Entry], *, at: int, limit: int) -> list[Entry]:
    """What the window shows as of a time, the newest `limit` of it, oldest first; never anything past it. `entries` are by
    time."""
    edge, found, held = horizon(window, at), list[Entry](), 0
    for entry in reversed(entries):
        if entry.at > at:
            continue
        held += len(entry.body)
        if entry.at <= edge or len(found) >= limit or (window.bytes is not None and held > window.bytes):
            break
        found.append(entry)
    return found[::-1]


def leaving(window: Window, oldest: Sequence[tuple[int, int]], now: int) -> int:
    """How many of the oldest entries, given as (at, size), have left the window. Time goes on with what was observed, but
    not past the store's now: an entry from the future pushes nothing out."""
    gone, held, edge = 0, window.held, horizon(window, min(window.newest, now))
    for count, (at, size) in enumerate(oldest):
        too_many = window.entries - count > limits.WINDOW_ENTRIES_MAX
        if not (at <= edge or too_many or (window.bytes is not None and held > window.bytes)):
            break
        gone, held = gone + 1, held - size
    return gone


def without(window: Window, gone: Sequence[tuple[int, int]]) -> Window:
    return msgspec.structs.replace(window, entries=window.entries - len(gone), held=window.held - sum(size for _, size in gone))


def bare(body_: bytes) -> bytes:
    """What a window keeps, and nothing of what it holds."""
    kept = _decode(body_)
    return body(Window(seconds=kept.seconds, bytes=kept.bytes))


def body(window: Window) -> bytes:
    return json.encode(window)
