"""A server's refusal as the error it was on the other side: by its code, else by its status."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from stateroom import errors
from stateroom.errors import StateroomError
from stateroom.wire import json

# Codes whose class is not the usual one of their status, or that a stream tells without a status.
_CODES: Mapping[str, type[StateroomError]] = {
    **{cls.code: cls for cls in errors.all_errors() if cls is not errors.Known},
    "integer_too_large": errors.InvalidInput,
    "previous_response_not_found": errors.NotFound,
    "cursor_ahead": errors.CursorInvalid,
    "cursor_gone": errors.Gone,
    "answer_not_kept": errors.Gone,
    "batch_landed": errors.AlreadyExists,
    "session_bound": errors.AlreadyExists,
    "checkpoint_exists": errors.AlreadyExists,
    "counter_out_of_range": errors.LimitExceeded,
    "origin_refused": errors.InvalidInput,
    "not_stored": errors.IllegalMove,
    "conversation_busy": errors.Busy,
    "queue_full": errors.Busy,
}
_STATUSES: Mapping[int, type[StateroomError]] = {
    401: errors.Unauthorized,
    403: errors.Forbidden,
    404: errors.NotFound,
    409: errors.Conflict,
    410: errors.Gone,
    412: errors.Conflict,
    422: errors.KeyReused,
    429: errors.Unavailable,
    500: StateroomError,
    507: errors.StorageFull,
}
# What a program can do about a 410, beside what the server says.
_ADVICE: Mapping[str, str] = {
    "cursor_gone": "follow(run) without a cursor shows the run from its start.",
    "answer_not_kept": "It was taken with store=False: take the turn again, under another key.",
}
# Answers after which the same request may be sent again; `x-should-retry` overrules.
_PASSING: Final = frozenset({408, 425, 429})
WAIT_S_MAX: Final = 30.0  # what a server may ask us to wait


def refusal(status: int, body: bytes) -> StateroomError:
    """The error an answer stands for."""
    try:
        told = json.decode_trusted(body)["error"]
        code, message = str(told.get("code") or told.get("type")), str(told["message"])
        param, facts = told.get("param"), dict(told.get("details") or {})
    except (msgspec.DecodeError, KeyError, TypeError, ValueError, AttributeError):  # a proxy's words
        code, message = "http_error", f"The server answered {status}: {body[:200].decode(errors='replace')}"
        param, facts = None, {}
    return made(status, code, message, param=param, facts=facts)


def made(
    status: int, code: str, message: str, *, param: str | None = None, facts: Mapping[str, Any] | None = None
) -> StateroomError:
    """The error with this code. `status` decides where the code is not known here."""
    bound = errors.LimitExceeded if code.endswith("_too_large") or code.startswith("too_many_") else None
    cls = _CODES.get(code) or bound or _STATUSES.get(status) or (errors.Unavailable if status > 500 else errors.InvalidInput)
    own = {name: value for name, value in (facts or {}).items() if name not in ("message", "code", "param")}
    advice = _ADVICE.get(code)
    return cls(f"{message} {advice}" if advice else message, code=code, param=param, **own)


def passes(status: int, headers: Mapping[str, str]) -> bool:
    """Whether asking again may help."""
    return headers.get("x-should-retry") != "false" and (status in _PASSING or status >= 500)


def wait_s(headers: Mapping[str, str]) -> float:
    """How long the server wants us to wait, bounded; 0 when it does not say."""
    try:
        return min(max(float(headers.get("retry-after", "0")), 0.0), WAIT_S_MAX)
    except ValueError:  # a date: nobody sends one here, and clocks differ
        return 0.0
