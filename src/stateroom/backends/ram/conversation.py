"""Conversations in ram: reads, and one function per write."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from msgspec.structs import replace

from stateroom import ids
from stateroom.backends.ram import desk_rows
from stateroom.backends.ram.store import Reader, Transaction
from stateroom.batch import Draft
from stateroom.conversation import rules
from stateroom.conversation.model import (
    Append,
    Appended,
    Branch,
    Changed,
    Conversation,
    CreateConversation,
    Created,
    DeleteConversation,
    DeleteItem,
    Fork,
    Forked,
    Item,
    ItemQuery,
    Mark,
    MoveBranch,
    SetMetadata,
)
from stateroom.errors import AlreadyExists, Conflict
from stateroom.ids import NIL

PURGED = b"{}"  # what is left of a body that nobody shows any more

# ── reads ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def see_conversation(reader: Reader, conversation: bytes) -> Conversation:
    row = reader.tables.conversations.get((reader.tenant, conversation))
    if row is None or not reader.scope.may_see(row.owner):
        raise ids.missing("conversation", conversation)
    return row


def see_branch(reader: Reader, branch: bytes) -> Branch:
    """A branch lives as long as its conversation, and is missed like one: the main branch has its id."""
    row = reader.tables.branches.get((reader.tenant, branch))
    if row is None or not reader.scope.may_see(row.owner) or not lives(reader, row):
        raise ids.missing("conversation", branch)
    return row


def see_main(reader: Reader, branch: bytes) -> Branch:
    """The branch that a conversation goes on in; any other branch itself."""
    row = see_branch(reader, branch)
    return row if row.moved_to == NIL else see_branch(reader, row.moved_to)


def conversations(reader: Reader, *, after: bytes, limit: int, newest_first: bool) -> list[Conversation]:
    seen = [row for row in reader.visible(reader.tables.conversations) if row.kind == "managed"]
    seen.sort(key=lambda row: (row.created_at, row.id), reverse=newest_first)
    if after != NIL:
        start = see_conversation(reader, after)
        place = (start.created_at, start.id)
        seen = [row for row in seen if ((row.created_at, row.id) < place if newest_first else (row.created_at, row.id) > place)]
    return seen[:limit]


def items(reader: Reader, query: ItemQuery) -> list[Item]:
    branch = (see_main if query.current else see_branch)(reader, query.branch)
    found = shown(reader, branch, after=query.after, before=query.before, newest_first=query.newest_first)
    return list(islice((item for item in found if query.run in (NIL, item.run)), query.limit))


def item(reader: Reader, branch: bytes, item: bytes) -> Item:
    start = see_main(reader, branch)
    if (place := reader.tables.item_places.get((reader.tenant, item))) is not None:
        seq = place[1]
        for found in shown(reader, start, after=seq - 1, before=seq + 1):
            if found.id == item:
                return found
    raise ids.missing("item", item)


def shown(reader: Reader, branch: Branch, *, after: int = 0, before: int = 0, newest_first: bool = False) -> Iterator[Item]:
    """What the branch shows: its path's segments without what their tombstones hide."""
    segments = rules.path(lineage(reader, branch))
    hidden = rules.hidden(
        ((part.branch, seq, number) for part in segments for seq, number in _tombstones(reader, part.branch)), segments
    )
    for part in segments if newest_first else reversed(segments):
        highest = min(part.hi, before - 1) if before else part.hi
        seqs = range(max(part.lo, after) + 1, highest + 1)
        for seq in reversed(seqs) if newest_first else seqs:
            if seq not in hidden:
                found = reader.tables.items.get((reader.tenant, part.branch, seq))
                assert found is not None, "seqs are dense"
                yield found


def lineage(reader: Reader, branch: Branch) -> list[Branch]:
    """The branch, its parent, and so on to the root. Ancestors are shown whoever owns them, and after their end."""
    path = [branch]
    while path[-1].parent != NIL:
        parent = reader.tables.branches.get((reader.tenant, path[-1].parent))
        assert parent is not None, "a parent is never dropped"
        path.append(parent)
    return path


def lives(reader: Reader, branch: Branch) -> bool:
    return reader.tables.conversations.get((reader.tenant, branch.conversation)) is not None


def _tombstones(reader: Reader, branch: bytes) -> tuple[tuple[int, int], ...]:
    return reader.tables.tombstones.get((reader.tenant, branch)) or ()


def _all_branches(reader: Reader) -> Iterator[Branch]:
    return (row for (tenant, _), row in reader.tables.branches.pairs() if tenant == reader.tenant)


def children(reader: Reader, branch: Branch) -> Iterator[Branch]:
    return (row for row in _all_branches(reader) if row.parent == branch.id)


# ── writes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def create_conversation(tx: Transaction, write: CreateConversation) -> Created:
    _add_conversation(
        tx,
        Conversation(
            id=write.id,
            owner=write.owner,
            subject=write.subject,
            kind=write.kind,
            metadata=write.metadata,
            created_at=tx.at,
            agent=write.agent,
        ),
    )
    _add_branch(tx, Branch(id=write.id, conversation=write.id, owner=write.owner))
    return Created(id=write.id)


def set_metadata(tx: Transaction, write: SetMetadata) -> Changed:
    row = see_conversation(tx, write.conversation)
    tx.tables.conversations.put((tx.tenant, row.id), replace(row, metadata=write.metadata))
    return Changed()


def append(tx: Transaction, write: Append) -> Appended:
    branch = see_main(tx, write.branch)
    if write.expected_tail not in (None, branch.tail):
        raise Conflict(f"The branch ends at {branch.tail}, not at {write.expected_tail}.", code="tail_conflict", tail=branch.tail)
    after = extend(tx, branch, write.items)
    if write.items:  # the past of whoever continues the last response is another one now
        after = tx.put_branch(replace(after, last_run=NIL))
    return Appended(branch=branch.id, first=branch.tail + 1, tail=after.tail)


def extend(tx: Transaction, branch: Branch, drafts: Iterable[Draft], *, run: bytes = NIL, mark: Mark = "") -> Branch:
    """Items after the branch's tail, dense. Returns the branch with its new tail."""
    tail = branch.tail
    for tail, new in enumerate(drafts, start=branch.tail + 1):
        item = Item(
            seq=tail,
            id=new.id,
            branch=branch.id,
            run=run,
            kind=new.kind,
            role=new.role,
            origin=new.origin,
            trust=new.trust,
            mark=mark,
            at=tx.at,
            body=new.body,
        )
        if tx.tables.item_places.taken((tx.tenant, item.id)):
            raise AlreadyExists("An item with this id is there already.")
        tx.tables.items.put((tx.tenant, branch.id, tail), item)
        tx.tables.item_places.put((tx.tenant, item.id), (branch.id, tail))
    return tx.put_branch(replace(branch, tail=tail))


def mark_input(tx: Transaction, branch: Branch, run: bytes, *, lo: int, hi: int, mark: Mark) -> Branch:
    """Mark a run's input at lo < seq <= hi; whoever has read it has to read again."""
    for seq in range(lo + 1, hi + 1):
        item = tx.tables.items.get((tx.tenant, branch.id, seq))
        if item is not None and item.run == run:
            tx.tables.items.put((tx.tenant, branch.id, seq), replace(item, mark=mark))
    return tx.put_branch(replace(branch, revision=branch.revision + 1))


def fork(tx: Transaction, write: Fork) -> Forked:
    parent = see_branch(tx, write.parent)
    owner = write.owner or parent.owner
    if write.conversation == NIL:
        branch = fork_branch(tx, parent, write.up_to, id=write.id, owner=owner)
    else:
        of_parent = tx.tables.conversations.get((tx.tenant, parent.conversation))
        assert of_parent is not None, "a visible branch has a living conversation"
        _add_conversation(tx, replace(of_parent, id=write.conversation, owner=owner, metadata=write.metadata, created_at=tx.at))
        branch = fork_branch(tx, parent, write.up_to, id=write.id, owner=owner, conversation=write.conversation)
    return Forked(id=branch.id, parent=branch.parent, up_to=branch.up_to)


def fork_branch(tx: Transaction, parent: Branch, up_to: int, *, id: bytes, owner: str, conversation: bytes = NIL) -> Branch:
    """One row, whatever the length (P25)."""
    path = lineage(tx, parent)
    owns = [any(seq <= up_to for seq, _ in _tombstones(tx, branch.id)) for branch in path]
    ancestor, count = rules.fork_parent(path, up_to, owns, tail=parent.tail)
    return _add_branch(
        tx,
        Branch(
            id=id,
            conversation=parent.conversation if conversation == NIL else conversation,
            owner=owner,
            parent=ancestor.id,
            up_to=up_to,
            parent_count=count,
            tail=up_to,
        ),
    )


def move_branch(tx: Transaction, write: MoveBranch) -> Forked:
    """The record goes on from where it was; what it leaves stays as it is."""
    now = see_main(tx, write.conversation)
    rules.check_move(write, now)
    parent = see_branch(tx, write.parent)
    made = fork_branch(tx, parent, write.up_to, id=write.id, owner=now.owner, conversation=now.conversation)
    move_to(tx, now.conversation, made)
    return Forked(id=made.id, parent=made.parent, up_to=made.up_to)


def move_to(tx: Transaction, conversation: bytes, made: Branch) -> None:
    """The conversation goes on in this branch."""
    tx.put_branch(replace(see_branch(tx, conversation), moved_to=made.id))


def delete_item(tx: Transaction, write: DeleteItem) -> Changed:
    branch = see_main(tx, write.branch)
    tombstone(tx, branch, [item(tx, branch.id, write.item)])
    return Changed()


def tombstone(tx: Transaction, branch: Branch, items: Iterable[Item]) -> Branch:
    """Hide items from this branch and its later forks; purge the bodies that nobody shows any more."""
    number, buried = branch.deletions, list(items)
    for number, item in enumerate(buried, start=branch.deletions + 1):
        tx.tables.tombstones.put((tx.tenant, branch.id), (*_tombstones(tx, branch.id), (item.seq, number)))
    after = tx.put_branch(replace(branch, deletions=number, revision=branch.revision + 1))
    _purge_unseen(tx, buried)
    return after


def delete_conversation(tx: Transaction, write: DeleteConversation) -> Changed:
    """The head goes, and with it every branch's life, the desks bound to it and its runs. Branch rows stay: a fork
    elsewhere may have its past there."""
    conversation = see_conversation(tx, write.conversation)
    branches = [branch for branch in _all_branches(tx) if branch.conversation == conversation.id]
    if any(branch.active_run != NIL or branch.queued for branch in branches):
        raise Conflict("A turn is active or waiting on this conversation.", code="conversation_busy")
    tx.tables.conversations.drop((tx.tenant, conversation.id))
    tx.changed.update(branch.id for branch in branches)
    segments = {row.id for branch in branches for row in lineage(tx, branch)}
    _purge_unseen(tx, [row for (tenant, of, _), row in tx.tables.items.pairs() if tenant == tx.tenant and of in segments])
    _clear_desks(tx, conversation.id)
    _clear_runs(tx, conversation.id)
    return Changed()


def _purge_unseen(tx: Transaction, items: Iterable[Item]) -> None:
    living = [branch for branch in _all_branches(tx) if lives(tx, branch)]
    seen = {item.id for branch in living for item in shown(tx, branch)}
    for item in items:
        if item.id not in seen:
            _purge(tx, item)


def _clear_desks(tx: Transaction, conversation: bytes) -> None:
    for (tenant, id), session in list(tx.tables.sessions.pairs()):
        if tenant == tx.tenant and session.conversation == conversation:
            tx.tables.sessions.put((tenant, id), replace(session, status="ended"))
            tx.tables.bindings.drop((tenant, conversation, session.agent))
            tx.tables.due.drop((tenant, id, "expire"))
            desk_rows.clear(tx, id)


def _clear_runs(tx: Transaction, conversation: bytes) -> None:
    for (tenant, id), run in list(tx.tables.runs.pairs()):
        if tenant == tx.tenant and run.conversation == conversation:
            for action in tx.tables.actions.get((tenant, id)) or ():
                tx.tables.action_places.drop((tenant, action.id))
            for table in (tx.tables.runs, tx.tables.log, tx.tables.inbox, tx.tables.steps, tx.tables.actions):
                table.drop((tenant, id))
            tx.tables.due.drop((tenant, id, "compact"))


def _purge(tx: Transaction, item: Item) -> None:
    """The body goes, and with it what the log of the run that put it out shows of it."""
    tx.tables.items.put((tx.tenant, item.branch, item.seq), replace(item, body=PURGED))
    if (log := tx.tables.log.get((tx.tenant, item.run))) is not None:
        blanked = (replace(row, body=b"") if row.item == item.id else row for row in log)
        tx.tables.log.put((tx.tenant, item.run), tuple(blanked))


def _add_conversation(tx: Transaction, row: Conversation) -> None:
    if tx.tables.conversations.taken((tx.tenant, row.id)):
        raise AlreadyExists("A conversation with this id is there already.")
    tx.tables.conversations.put((tx.tenant, row.id), row)


def _add_branch(tx: Transaction, row: Branch) -> Branch:
    if tx.tables.branches.taken((tx.tenant, row.id)):
        raise AlreadyExists("A branch with this id is there already.")
    return tx.put_branch(row)
