"""Every error Stateroom raises, as one tree. Each class has a stable `code`; the server maps them to HTTP in one table.

StateroomError
├── InvalidInput            the request can never succeed as it is
│   ├── LimitExceeded       a bound of limits.py
│   └── CursorInvalid       malformed, or of another run
├── NotFound                unknown, or not yours: the two look the same
├── Gone                    existed, and is no more
├── Conflict                the caller's view is behind: hydrate and try again
│   ├── AlreadyExists
│   ├── StaleFence          somebody else holds the lease now
│   ├── IllegalMove         the run machine forbids it
│   └── Busy                a run is active and the policy says no
├── KeyReused               one key, two different requests
├── Known                   not a failure: this key was used before, here is what it made
├── Unauthorized
├── Forbidden               this agent may not
└── Unavailable             try later; nothing was acknowledged
    ├── StorageFull
    └── Closed
"""

from __future__ import annotations

from typing import Any, ClassVar


class StateroomError(Exception):
    """Base of the tree. `param` names the offending field, `facts` carry the actual values."""

    code: ClassVar[str] = "error"

    def __init__(self, message: str, *, code: str | None = None, param: str | None = None, **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.facts = facts
        self.reason = code or self.code


class InvalidInput(StateroomError):
    """The request is wrong as it stands; repeating it cannot help."""

    code = "invalid_input"


class LimitExceeded(InvalidInput):
    """A bound was passed; the message names it."""

    code = "limit_exceeded"


class CursorInvalid(InvalidInput):
    """The cursor is malformed or belongs to another stream."""

    code = "cursor_invalid"


class NotFound(StateroomError):
    """No such object in what this principal may see."""

    code = "not_found"


class Gone(StateroomError):
    """It existed and is no longer kept (deleted, expired, never stored)."""

    code = "gone"


class Conflict(StateroomError):
    """A precondition did not hold. `facts` has the actual values."""

    code = "conflict"


class AlreadyExists(Conflict):
    """An object with this id is there already."""

    code = "already_exists"


class StaleFence(Conflict):
    """The lease was taken by somebody else; this worker must stop."""

    code = "stale_fence"


class IllegalMove(Conflict):
    """The run machine has no such move from the present status."""

    code = "illegal_move"


class Busy(Conflict):
    """A turn is active on this branch, or its queue is full."""

    code = "busy"


class KeyReused(StateroomError):
    """The idempotency key was used before with another request."""

    code = "idempotency_key_reused"


class Known(StateroomError):
    """The batch's key is known. `ref` is the object it made, `version` the session's version that came of it (0: none),
    `fingerprint` what was asked then."""

    code = "turn_known"

    def __init__(self, *, ref: bytes, fingerprint: bytes, version: int = 0) -> None:
        super().__init__("this key was used before")
        self.ref = ref
        self.version = version
        self.fingerprint = fingerprint


class Unauthorized(StateroomError):
    """No valid credentials."""

    code = "unauthorized"


class Forbidden(StateroomError):
    """This agent may not do that on this desk."""

    code = "forbidden"


class Unavailable(StateroomError):
    """The store cannot take work now. Nothing was acknowledged; try again."""

    code = "unavailable"


class StorageFull(Unavailable):
    """No room on the disk. Reads go on; writes work again when there is space."""

    code = "storage_full"


class Closed(Unavailable):
    """This handle was closed."""

    code = "closed"


def all_errors() -> list[type[StateroomError]]:
    """Every class of the tree, base first, for the reference page and its test."""
    found: list[type[StateroomError]] = [StateroomError]
    for cls in found:
        found.extend(cls.__subclasses__())
    return found
