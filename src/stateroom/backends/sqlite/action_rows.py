"""Rows of actions in SQLite."""

from __future__ import annotations

from msgspec.structs import replace

from stateroom import ids
from stateroom.backends.sqlite.run_rows import clear_line
from stateroom.backends.sqlite.tx import Tx, columns
from stateroom.ids import NIL
from stateroom.run.steps import Action

ACTION = columns(Action.__struct_fields__)


def insert_action(tx: Tx, new: Action, number: int) -> None:
    """A key that is there already keeps its action: a later attempt asks nobody twice."""
    tx.run(
        "insert into action(tenant, home, n, id, run, key, kind, name, status, digest, queue, body, resolution, by, until,"
        " policy, at) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) on conflict(tenant, home, run, key) do nothing",
        (
            tx.tenant, ids.home(new.run), number, new.id, new.run, new.key, new.kind, new.name, "pending", new.digest, new.queue,
            new.body, b"", "", new.until, new.policy, tx.at,
        ),
    )  # fmt: skip
    if new.until:
        tx.run("insert or ignore into due(kind, at, tenant, id) values ('action', ?, ?, ?)", (new.until, tx.tenant, new.id))


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
    rows = tx.rows(f"select {ACTION} from action where tenant = ? and home = ? and run = ? order by at, n", place)
    return [Action(*row) for row in rows]


def action(tx: Tx, run_id: bytes, id_: bytes) -> Action:
    row = tx.one(f"select {ACTION} from action where id = ? and tenant = ? and run = ?", (id_, tx.tenant, run_id))
    if row is None:
        raise ids.missing("action", id_)
    return Action(*row)


def owner_of(tx: Tx, id_: bytes) -> bytes:
    """The run of an action, for the sweeper, which only knows the action."""
    row = tx.one("select run from action where id = ? and tenant = ?", (id_, tx.tenant))
    return NIL if row is None else row[0]
