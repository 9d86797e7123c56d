"""Reads of the run room in SQLite."""

from __future__ import annotations

from stateroom import ids
from stateroom.backends.sql.tx import Row, Tx, columns
from stateroom.batch import Draft, KeyRow
from stateroom.conversation.model import Branch
from stateroom.ids import NIL
from stateroom.run import machine
from stateroom.run.model import TERMINAL, Due, LogRow, Run, RunQuery

_RUN = columns(Run.__struct_fields__)
_LOG = columns(LogRow.__struct_fields__)
RUN = f"select {_RUN} from run where tenant = ? and home = ? and id = ?"
KEY = (
    "select operation, key, fingerprint, ref, at from turn_key"
    " where tenant = ? and home = ? and principal = ? and operation = ? and key = ?"
)
_HEADS_MAX = 256
_OWNER = Run.__struct_fields__.index("owner")
_STORED = Run.__struct_fields__.index("stored")
_MERGE = Run.__struct_fields__.index("merge")


def run_of(row: Row) -> Run:
    values = list(row)
    values[_STORED], values[_MERGE] = bool(values[_STORED]), bool(values[_MERGE])
    return Run(*values)


def run(tx: Tx, id_: bytes, kind: str = "run") -> Run:
    """The run, if the scope may see it; `kind` is what the caller calls it."""
    if (known := tx.runs.get(id_)) is not None and tx.scope.may_see(known.owner):
        return known
    row = tx.one(f"{RUN}{tx.lock}", (tx.tenant, ids.home(id_), id_))
    found = tx.runs[id_] = run_of(tx.seen(kind, id_, row, owner=_OWNER))
    return found


def run_row(tx: Tx, id_: bytes) -> Run | None:
    """The run, whoever owns it: for the branch's own queue."""
    row = tx.one(f"{RUN}{tx.lock}", (tx.tenant, ids.home(id_), id_))
    return None if row is None else run_of(row)


def waiting_on(tx: Tx, branch_id: bytes) -> list[Run]:
    """A branch's own queue, first to last, whoever owns what waits there."""
    rows = tx.rows(
        f"select {_RUN} from run where tenant = ? and home = ? and branch = ? and status = 'queued' order by queue_no{tx.lock}",
        (tx.tenant, ids.home(branch_id), branch_id),
    )
    return [run_of(row) for row in rows]


def active_on(tx: Tx, branch: Branch) -> Run | None:
    """The run that has the branch, or waits first in its queue to go on."""
    if branch.active_run != NIL:
        return run_row(tx, branch.active_run)
    first = run_row(tx, first_queued(tx, branch.id)) if branch.queued else None
    return first if machine.underway(first) else None


def first_queued(tx: Tx, branch_id: bytes) -> bytes:
    found = tx.one(
        "select id from run where tenant = ? and home = ? and branch = ? and status = 'queued' order by queue_no limit 1",
        (tx.tenant, ids.home(branch_id), branch_id),
    )
    return found[0] if found else NIL


def runs(tx: Tx, query: RunQuery) -> list[Run]:
    """The latest accepted first, by the order of acceptance, never by time: walks rows backwards, sorts nothing."""
    where, values = "", list[object]((tx.tenant,))
    if query.conversation != NIL:
        where += " and home = ? and conversation = ?"
        values += [ids.home(query.conversation), query.conversation]
    if query.session != NIL:
        where += " and session = ?"
        values.append(query.session)
    if query.status is not None:
        where += " and status = ?"
        values.append(query.status)
    if query.after != NIL:
        where += f" and {tx.ACCEPTED} < (select {tx.ACCEPTED} from run where tenant = ? and home = ? and id = ?)"
        values += [tx.tenant, ids.home(query.after), run(tx, query.after).id]
    if not tx.scope.sees_all:
        where += f" and {tx.of_seen}"
        values += sorted(tx.scope.sees)
    listed = f"select {_RUN} from run where tenant = ? and {tx.ACCEPTED} > 0"
    rows = tx.rows(f"{listed}{where} order by {tx.ACCEPTED} desc limit ?", (*values, query.limit))
    return [run_of(row) for row in rows]


def key(tx: Tx, operation: str, key_: str, home: int) -> KeyRow | None:
    row = tx.one(f"{KEY}{tx.lock}", (tx.tenant, home, tx.scope.principal, operation, key_))
    return None if row is None else KeyRow(*row)


def inbox(tx: Tx, run_id: bytes) -> list[Draft]:
    rows = tx.rows(
        "select id, kind, role, origin, trust, body from inbox where tenant = ? and home = ? and run = ? order by n",
        (tx.tenant, ids.home(run_id), run_id),
    )
    return [Draft(*row) for row in rows]


def log(tx: Tx, run_id: bytes, after: int, limit: int) -> list[LogRow]:
    """Walks the key from the entry that covers `after` + 1: reading on costs what is read, not what was read before."""
    run(tx, run_id)
    rows = tx.rows(
        f"select {_LOG} from run_log where tenant = ?1 and home = ?2 and run = ?3 and first >= coalesce("
        "(select max(first) from run_log where tenant = ?1 and home = ?2 and run = ?3 and first <= ?4 + 1), 0)"
        " and first + count - 1 > ?4 order by first limit ?5",
        (tx.tenant, ids.home(run_id), run_id, after, limit),
    )
    return [LogRow(*row) for row in rows]


def heads(tx: Tx, run_ids: list[bytes]) -> dict[bytes, tuple[int, bool]]:
    """One statement for many; few lengths of it, so that a store keeps them prepared."""
    found: dict[bytes, tuple[int, bool]] = {}
    for start in range(0, len(run_ids), _HEADS_MAX):
        asked = run_ids[start : start + _HEADS_MAX]
        asked += asked[-1:] * ((1 << (len(asked) - 1).bit_length()) - len(asked))
        places = ", ".join(["(?, ?)"] * len(asked))
        values = [value for id_ in asked for value in (ids.home(id_), id_)]
        for id_, owner, status, head in tx.rows(
            f"select id, owner, status, head from run where tenant = ? and (home, id) in (values {places})", (tx.tenant, *values)
        ):
            if tx.scope.may_see(owner):
                found[id_] = (head, status in TERMINAL)
    return found


def due(tx: Tx, kind: str, until: int, limit: int) -> list[Due]:
    rows = tx.rows(
        "select kind, at, name, id from due join tenant on number = due.tenant where kind = ? and at <= ? order by at limit ?",
        (kind, until, limit),
    )
    return [Due(*row) for row in rows]


def going_on(tx: Tx) -> dict[bytes, int]:
    """As `system`: the heads of runs that are worked on or wait for it; -1 for the latter. Walks two small indexes."""
    found = dict.fromkeys((id_ for (id_,) in tx.rows("select id from run where status = 'queued'", ())), -1)
    found.update((row[0], row[1]) for row in tx.rows("select id, head from run where lease_owner <> ''", ()))
    return found


def due_run(tx: Tx, action: bytes) -> bytes:
    """The run of an action, for the sweeper, which only knows the action."""
    row = tx.one("select run from action where id = ? and tenant = ? and home = ?", (action, tx.tenant, ids.home(action)))
    return NIL if row is None else row[0]


def leased_by(tx: Tx, owner: str, limit: int) -> list[Due]:
    rows = tx.rows(
        "select 'lease', lease_until, name, id from run join tenant on number = run.tenant where lease_owner = ? limit ?",
        (owner, limit),
    )
    return [Due(*row) for row in rows]


def owners(tx: Tx) -> list[str]:
    return [owner for (owner,) in tx.rows("select distinct lease_owner from run where lease_owner <> ''", ())]
