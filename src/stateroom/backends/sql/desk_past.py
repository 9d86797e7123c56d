"""What of a desk's past nobody can ask for any more, in SQL: found among what is new, never by walking what stays."""

from __future__ import annotations

from collections.abc import Sequence

from stateroom.backends.sql.tx import Row, Tx
from stateroom.session.model import Session
from stateroom.session.versions import Over

_HERE = "tenant = ? and home = ? and session = ?"


def _same(one: str, other: str) -> str:
    return " and ".join(f"{one}.{name} = {other}.{name}" for name in ("tenant", "home", "session", "name"))


# Of slots that changed after a version (?4): their rows from the one that it shows on, up to another version (?5), which were
# over by a third (?6). A row is over with the next one of its slot; it stays when a checkpoint lies between. `cross join` makes
# SQLite begin with the slots, of which few have changed, and not with all of the past.
_OVER = (
    "with past as materialized (select p.name, p.version, coalesce("
    f"(select min(n.version) from slot_past n where {_same('n', 'p')} and n.version > p.version), s.version) as until"
    f" from slot s cross join slot_past p where {_same('p', 's')}"
    " and s.tenant = ?1 and s.home = ?2 and s.session = ?3 and s.version > ?4 and p.version <= ?5 and p.version >= coalesce("
    f"(select max(q.version) from slot_past q where {_same('q', 's')} and q.version <= ?4), 0))"
    " select name, version, until from past where until <= ?6 and not exists (select 1 from checkpoint c"
    " where c.tenant = ?1 and c.home = ?2 and c.session = ?3 and c.version >= past.version and c.version < past.until)"
)


def over(tx: Tx, here: Row, *, since: int, before: int) -> list[Over]:
    """Rows that were over by version `before`, that were not yet by `since`, and that no checkpoint shows."""
    return [Over(*row) for row in tx.rows(_OVER, (*here, since, before - 1, before))]


def drop(tx: Tx, here: Row, gone: Sequence[Over]) -> None:
    """Those rows, and the documents that lie beside them."""
    for table in ("slot_past", "slot_doc"):
        tx.many(
            f"delete from {table} where {_HERE} and name = ? and version = ?", [(*here, row.name, row.version) for row in gone]
        )


def free(tx: Tx, here: Row, head: Session, version: int) -> None:
    """A version has one name less. What only that kept is gone with it: compaction does not come by a second time."""
    if version < head.kept_from:
        drop(tx, here, [Over(*row) for row in tx.rows(_OVER, (*here, version, version, head.kept_from))])
