"""Actions of runs in ram, in the order they were asked."""

from __future__ import annotations

from msgspec.structs import replace

from stateroom import ids
from stateroom.backends.ram.store import Reader, Transaction
from stateroom.errors import AlreadyExists
from stateroom.run.steps import Action


def actions_of(reader: Reader, run: bytes) -> tuple[Action, ...]:
    return reader.tables.actions.get((reader.tenant, run)) or ()


def action_of(reader: Reader, run: bytes, action: bytes) -> Action:
    for found in actions_of(reader, run):
        if found.id == action:
            return found
    raise ids.missing("action", action)


def add_action(tx: Transaction, run: bytes, new: Action) -> None:
    """A key that is there already keeps its action: a later attempt asks nobody twice."""
    known = actions_of(tx, run)
    if any(action.key == new.key for action in known):
        return
    if tx.tables.action_places.taken((tx.tenant, new.id)):
        raise AlreadyExists("An action with this id is there already.")
    new = replace(new, run=run, status="pending", resolution=b"", by="", at=tx.at)
    tx.tables.actions.put((tx.tenant, run), (*known, new))
    tx.tables.action_places.put((tx.tenant, new.id), run)
    if new.until:
        tx.tables.due.put((tx.tenant, new.id, "action"), new.until)


def put_action(tx: Transaction, changed: Action) -> None:
    """An action that is no longer waited for, and so not looked at any more."""
    actions = (changed if action.id == changed.id else action for action in actions_of(tx, changed.run))
    tx.tables.actions.put((tx.tenant, changed.run), tuple(actions))
    tx.tables.due.drop((tx.tenant, changed.id, "action"))


def close_actions(tx: Transaction, run: bytes) -> None:
    """The run has ended: nobody needs to answer any more."""
    for left in actions_of(tx, run):
        if left.status == "pending":
            put_action(tx, replace(left, status="closed"))
