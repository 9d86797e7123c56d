"""What of a desk's past nobody can ask for any more, in SQL: found among what is new, never by walking what stays."""

from __future__ import annotations

from collections.abc import Sequence

from stateroom.backends.sql.tx import Row, Tx
from stateroom.session.model import Session
from stateroom.session.versions import Over

_HERE = "tenant = ? and home = ? and session = ?"


def _of_slot(which: str, name: str) -> str:
    """A version among the past rows of one slot, found by key."""
    return f"(select {which} from slot_past p where p.tenant = ?1 and p.home = ?2 and p.session = ?3 and p.name = {name}"


# Of every slot that changed after a version (?4): its rows, from the last one up to another version (?5) back to the one that
# ?4 shows, as far as they were over by a third (?6). A row is over with the next one of its slot; it stays when a checkpoint
# lies between. Walked row by row: a join SQLite would begin with all of the past, and PostgreSQL would hash it.
_OVER = (
    "with recursive past(name, version, until) as (select s.name, "
    f"{_of_slot('max(p.version)', 's.name')} and p.version <= ?5),"
    f" coalesce({_of_slot('min(p.version)', 's.name')} and p.version > ?5), s.version)"
    " from slot s where s.tenant = ?1 and s.home = ?2 and s.session = ?3 and s.version > ?4"
    f" union all select past.name, {_of_slot('max(p.version)', 'past.name')} and p.version < past.version), past.version"
    " from past where past.version > ?4)"
    " select name, version, until from past where version is not null and until <= ?6 and not exists (select 1 from checkpoint c"
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
