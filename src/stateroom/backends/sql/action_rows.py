"""Rows of actions in SQLite."""

from __future__ import annotations

from msgspec.structs import replace

from stateroom import ids
from stateroom.backends.sql.run_rows import clear_line
from stateroom.backends.sql.tx import Tx, columns
from stateroom.run.steps import Action

ACTION = columns(Action.__struct_fields__)


def insert_action(tx: Tx, run_id: bytes, new: Action) -> None:
    """A key that is there already keeps its action: a later attempt asks nobody twice."""
    place = (tx.tenant, ids.home(run_id), run_id)
    if tx.one("select 1 from action where tenant = ? and home = ? and run = ? and key = ?", (*place, new.key)):
        return
    tx.run(
        "insert into action(tenant, home, run, n, id, key, kind, name, status, digest, queue, body, resolution, by, until,"
        " policy, at) values (?1, ?2, ?3, (select count(*) from action where tenant = ?1 and home = ?2 and run = ?3), ?4, ?5,"
        " ?6, ?7, 'pending', ?8, ?9, ?10, x'', '', ?11, ?12, ?13)",
        (*place, new.id, new.key, new.kind, new.name, new.digest, new.queue, new.body, new.until, new.policy, tx.at),
    )
    if new.until:
        tx.run("insert into due(kind, at, tenant, id) values ('action', ?, ?, ?)", (new.until, tx.tenant, new.id))


def save_action(tx: Tx, changed: Action) -> None:
    tx.run(
        "update action set status = ?, resolution = ?, by = ? where tenant = ? and home = ? and run = ? and key = ?",
        (changed.status, changed.resolution, changed.by, tx.tenant, ids.home(changed.run), changed.run, changed.key),
    )
    if changed.until:
        clear_line(tx, "action", at=changed.until, id_=changed.id)


def close_actions(tx: Tx, run_id: bytes) -> None:
    """The run has ended: nobody needs to answer any more."""
    for left in actions_of(tx, run_id):
        if left.status == "pending":
            save_action(tx, replace(left, status="closed"))


def actions_of(tx: Tx, run_id: bytes) -> list[Action]:
    place = (tx.tenant, ids.home(run_id), run_id)
    rows = tx.rows(f"select {ACTION} from action where tenant = ? and home = ? and run = ? order by n", place)
    return [Action(*row) for row in rows]


def action(tx: Tx, run_id: bytes, id_: bytes) -> Action:
    place = (tx.tenant, ids.home(run_id), run_id)
    row = tx.one(f"select {ACTION} from action where id = ? and tenant = ? and home = ? and run = ?", (id_, *place))
    if row is None:
        raise ids.missing("action", id_)
    return Action(*row)
