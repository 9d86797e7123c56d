"""What callers give, looked at before it meets a store: the same refusal at every face and on every kind of store."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final

from stateroom import limits
from stateroom.errors import InvalidInput

SECONDS_MAX: Final = 2.0**43  # beyond what any rule allows, and still a whole number of ms everywhere


def text(given: Any, name: str) -> str:
    """Text that every store and language can hold: without NUL characters and lone surrogates."""
    if not isinstance(given, str):
        raise InvalidInput(f"'{name}' is text, not {type(given).__name__}.", code="wrong_type", param=name)
    if "\0" in given:
        raise InvalidInput(f"'{name}' has a zero character in it.", code="text_invalid", param=name)
    if not given.isascii():
        try:
            given.encode()
        except UnicodeEncodeError:
            raise InvalidInput(f"'{name}' has half a character in it.", code="text_invalid", param=name) from None
    return given


def whole(given: Any, name: str, *, least: int = 0) -> int:
    """A version, a cursor, a time in ms: a whole number that every store and language can hold."""
    if type(given) is not int or not least <= given <= limits.JSON_INT_MAX:
        raise InvalidInput(f"'{name}' is a whole number from {least} on.", code="number_invalid", param=name)
    return given


def whole_or_none(given: Any, name: str) -> int | None:
    return None if given is None else whole(given, name)


def place(given: Any, name: str = "to") -> str | int:
    """A checkpoint by its name, or a version."""
    return text(given, name) if isinstance(given, str) else whole(given, name)


def key(given: Any, name: str = "key") -> str:
    """An idempotency key: what fits into a header, so that a retry may come by any way."""
    if isinstance(given, str) and 0 < len(given) <= limits.KEY_CHARS_MAX and given.isascii() and given.isprintable():
        return given
    raise InvalidInput(
        f"An idempotency key has 1 to {limits.KEY_CHARS_MAX} printable ASCII characters.", code="idempotency_key_invalid",
        param=name,
    )  # fmt: skip


def ms(given: Any, name: str, *, code: str) -> int:
    """Seconds, as ms; how many may be is for the rules of whatever they are for."""
    if type(given) is not int and not (isinstance(given, float) and math.isfinite(given)):
        raise InvalidInput(f"'{name}' is a number of seconds.", code=code, param=name)
    return round(min(max(given, -SECONDS_MAX), SECONDS_MAX) * 1000)


def names(given: Any, name: str) -> tuple[str, ...]:
    """Several names. One that stands alone is none: its letters are not what was meant."""
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise InvalidInput(f"'{name}' is a list of names.", code="wrong_type", param=name)
    return tuple(text(one, name) for one in given)


def deadline_ms(given: Any, *, stored: bool) -> int:
    """In how many ms a turn has to end; 0: whenever."""
    if given is None:
        return 0
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0.001 <= given <= limits.DEADLINE_S_MAX:
        why = f"'deadline_s' lies between 0.001 and {limits.DEADLINE_S_MAX}."
        raise InvalidInput(why, code="deadline_invalid", param="deadline_s")
    if not stored:
        raise InvalidInput("A turn that is not stored has no deadline.", code="deadline_invalid", param="deadline_s")
    return round(given * 1000)
