"""What PostgreSQL's refusals mean to us, by SQLSTATE."""

from __future__ import annotations

from stateroom.backends.postgres.pipe import Refused
from stateroom.errors import AlreadyExists, InvalidInput, StateroomError, StorageFull, Unavailable

# The transaction is gone as if it had never been: it may be tried again as it is.
TRY_AGAIN = frozenset({"40001", "40P01", "55P03", "23505", "26000", "42P05"})
TAKEN = "23505"
_UNFIT = ("22021", "22003", "22P05", "54000")
_AWAY = {
    "25006": "The database takes no writes: it is a standby.",
    "53300": "The database has no connection left for this worker: raise max_connections, or use fewer lanes.",
    "57014": "The database took too long; try again.",
}


def translate(error: Refused) -> StateroomError | Refused:
    """Ours, or the refusal itself when it is a fault of ours."""
    if error.state == "53100":
        return StorageFull("The database's disk is full: free some space. Nothing acknowledged is lost.")
    if error.state in _UNFIT:
        return InvalidInput(f"A value is more than the database can hold: {error}.", code="text_invalid")
    if error.state == TAKEN:
        return AlreadyExists("An object with one of these ids exists.")
    if error.state in TRY_AGAIN:
        return Unavailable("Others hold what this needs; try again.", code="store_busy")
    if error.state in _AWAY or error.state[:2] in ("53", "57", "58", "08"):
        return Unavailable(_AWAY.get(error.state, f"The database cannot take work now: {error}"), code="store_away")
    if error.state in ("42P01", "3F000", "42501"):
        return Unavailable(
            f"The database is not set up for this worker ({error}). Run 'stateroom migrate'; 'stateroom doctor' explains.",
            code="store_not_ready",
        )
    return error
