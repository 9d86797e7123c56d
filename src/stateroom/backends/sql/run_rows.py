"""Rows of the run room in SQLite: the run itself, its log, its line in the due table, its branch's head."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from msgspec.structs import replace

from stateroom import ids
from stateroom.backends.sql.tx import Tx, nil
from stateroom.conversation.model import Branch
from stateroom.run.model import NewRow, Run

_FIELDS = Run.__struct_fields__
_INSERT = f"insert into run(tenant, home, {', '.join(_FIELDS)}, due_at) values (?, ?, {', '.join('?' * len(_FIELDS))}, ?)"
_NULLABLE_AT = tuple(_FIELDS.index(name) for name in ("conversation", "branch", "session", "previous", "merged_into"))
_all = attrgetter(*_FIELDS)


def values_of(row: Run) -> tuple[object, ...]:
    values = list(_all(row))
    for index in _NULLABLE_AT:
        values[index] = nil(values[index])
    return tuple(values)


def insert(tx: Tx, row: Run, *, due_at: int) -> None:
    if not row.stored:
        tx.run("insert into due(kind, at, tenant, id) values ('lease', ?, ?, ?)", (due_at, tx.tenant, row.id))
    if row.deadline_at:
        tx.run("insert into due(kind, at, tenant, id) values ('deadline', ?, ?, ?)", (row.deadline_at, tx.tenant, row.id))
    tx.runs[row.id] = row
    tx.run(_INSERT, (tx.tenant, ids.home(row.id), *values_of(row), due_at))


def save(tx: Tx, row: Run, *, due_at: int) -> None:
    """What moves in a run's life; its identity, place and options never do."""
    tx.runs[row.id] = row
    tx.run(
        "update run set status = ?, attempt = ?, fence = ?, lease_owner = ?, lease_until = ?, cancel_at = ?, queue_no = ?,"
        " in_lo = ?, in_hi = ?, out_hi = ?, head = ?, usage = ?, error = ?, started_at = ?, finished_at = ?, desk_version = ?,"
        " due_at = ?"
        " where tenant = ? and home = ? and id = ?",
        (
            row.status, row.attempt, row.fence, row.lease_owner, row.lease_until, row.cancel_at, row.queue_no,
            row.in_lo, row.in_hi, row.out_hi, row.head, row.usage, row.error,
            row.started_at, row.finished_at, row.desk_version, due_at,
            tx.tenant, ids.home(row.id), row.id,
        ),
    )  # fmt: skip


def save_branch(tx: Tx, branch: Branch) -> None:
    tx.made.pop(branch.id, None)
    tx.run(
        "update branch set tail = ?, revision = ?, active_run = ?, queued = ?, last_run = ?"
        " where tenant = ? and home = ? and id = ?",
        (
            branch.tail, branch.revision, nil(branch.active_run), branch.queued, nil(branch.last_run),
            tx.tenant, ids.home(branch.id), branch.id,
        ),
    )  # fmt: skip


def clear_due(tx: Tx, row: Run) -> None:
    """The run's line in the due table: where its lease ends, or where a waiting run is looked after."""
    clear_line(tx, "lease", at=due_at_of(tx, row) if row.status == "queued" else row.lease_until, id_=row.id)


def clear_deadline(tx: Tx, row: Run) -> None:
    if row.deadline_at:
        clear_line(tx, "deadline", at=row.deadline_at, id_=row.id)


def clear_compaction(tx: Tx, row: Run) -> None:
    """The only line of a run that has ended."""
    clear_line(tx, "compact", at=due_at_of(tx, row), id_=row.id)


def due_at_of(tx: Tx, row: Run) -> int:
    (at,) = tx.rows("select due_at from run where tenant = ? and home = ? and id = ?", (tx.tenant, ids.home(row.id), row.id))[0]
    return int(at)


def clear_line(tx: Tx, kind: str, *, at: int, id_: bytes) -> None:
    tx.run("delete from due where kind = ? and at = ? and tenant = ? and id = ?", (kind, at, tx.tenant, id_))


def log(tx: Tx, row: Run, rows: Sequence[NewRow]) -> Run:
    """Entries get the next wire numbers; the caller saves the run with its new head."""
    head = row.head
    for new in rows:
        tx.run(
            "insert into run_log(tenant, home, run, first, count, kind, body, at, item) values (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (tx.tenant, ids.home(row.id), row.id, head + 1, new.count, new.kind, new.body, tx.at, nil(new.item)),
        )
        head += new.count
    return replace(row, head=head)
