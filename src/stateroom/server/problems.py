"""One table from errors to HTTP answers, in the OpenAI error shape."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response

from stateroom import errors, ids
from stateroom.errors import StateroomError
from stateroom.wire import json

log = logging.getLogger("stateroom.server")

STATUS: Mapping[type[StateroomError], int] = {
    errors.StateroomError: 500,
    errors.InvalidInput: 400,
    errors.NotFound: 404,
    errors.Gone: 410,
    errors.Conflict: 409,
    errors.KeyReused: 422,
    errors.Unauthorized: 401,
    errors.Forbidden: 403,
    errors.Unavailable: 503,
    errors.StorageFull: 507,
}
# Reasons whose status is not their class's.
STATUS_OF_REASON: Mapping[str, int] = {
    "body_too_large": 413,
    "body_too_slow": 408,
    "media_type_unsupported": 415,
    "origin_refused": 403,
    "previous_response_not_found": 400,  # as OpenAI answers it
    "queue_full": 429,
    "version_conflict": 412,
}
TYPES: Mapping[int, str] = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
RETRY_AFTER_S: Mapping[int, int] = {429: 1, 503: 1, 507: 5}
PASSING = ("conversation_busy", "previous_response_in_progress")  # conflicts that go away by waiting
_UNKNOWN_PATH = {404: "path_unknown", 405: "method_not_allowed"}


def status_of(error: StateroomError) -> int:
    """The HTTP status of an error: by its reason, else by the nearest class the table names."""
    if (status := STATUS_OF_REASON.get(error.reason)) is not None:
        return status
    return next(STATUS[cls] for cls in type(error).__mro__ if cls in STATUS)


def answer(error: Exception) -> Response:
    """The answer for any exception. What is not ours is logged, and shows nothing of its inside."""
    if isinstance(error, HTTPException):
        code = _UNKNOWN_PATH.get(error.status_code, "http_error")
        return shaped(error.status_code, code, error.detail, headers=error.headers)
    ours = known(error)
    return shaped(status_of(ours), ours.reason, ours.message, param=ours.param, details=details(ours))


def known(error: Exception) -> StateroomError:
    """The error as one of ours. Any other is logged."""
    if isinstance(error, StateroomError):
        return error
    log.error("a request met a fault", exc_info=error)
    return StateroomError("The server met a fault.", code="internal_error")


def frame(error: Exception) -> dict[str, Any]:
    """An error as a frame of OpenAI's WebSocket mode."""
    ours = known(error)
    status = status_of(ours)
    return {"type": "error", "status": status, "error": body_of(status, ours.reason, ours.message, param=ours.param)}


def body_of(status: int, code: str, message: str, *, param: str | None) -> dict[str, Any]:
    return {"message": message, "type": type_of(status), "param": param, "code": code}


def shaped(
    status: int,
    code: str,
    message: str,
    *,
    param: str | None = None,
    details: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """An error in the OpenAI shape, with what a client needs to know about trying again."""
    body = body_of(status, code, message, param=param)
    if details:
        body["details"] = details
    retry: dict[str, str] = {}
    if status in RETRY_AFTER_S:
        retry["Retry-After"] = str(RETRY_AFTER_S[status])
    elif (status == 409 and code not in PASSING) or status >= 500:
        retry["x-should-retry"] = "false"
    return Response(json.encode({"error": body}), status, {**retry, **(headers or {})}, "application/json")


def type_of(status: int) -> str:
    return TYPES.get(status) or ("server_error" if status >= 500 else "invalid_request_error")


def details(error: StateroomError) -> dict[str, Any]:
    """The actual values behind a conflict, so that the caller can hydrate and try again."""
    if not isinstance(error, errors.Conflict):
        return {}
    return {name: ids.text("run", value) if isinstance(value, bytes) else value for name, value in error.facts.items()}
