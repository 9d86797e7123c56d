"""Conversations, branches, items and tombstones in SQLite."""

from __future__ import annotations

from collections.abc import Sequence

from stateroom import ids
from stateroom.backends.sql import desk_life, desk_rows
from stateroom.backends.sql.tx import Row, Tx, columns, nil
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
    MoveBranch,
    Segment,
    SetMetadata,
)
from stateroom.errors import AlreadyExists, Conflict, Unavailable
from stateroom.ids import NIL
from stateroom.limits import FORK_DEPTH_MAX

_CONVERSATION = columns(Conversation.__struct_fields__)
_BRANCH = columns(Branch.__struct_fields__)
_ITEM = columns(Item.__struct_fields__)
HEAD = "select 1 from conversation where tenant = ? and home = ? and id = ?"
CONVERSATION = f"select {_CONVERSATION} from conversation where tenant = ? and home = ? and id = ? and gone = 0"
BRANCH = f"select {_BRANCH} from branch where tenant = ? and home = ? and id = ? and gone = 0"
_OWNER = Conversation.__struct_fields__.index("owner")
_BRANCH_OWNER = Branch.__struct_fields__.index("owner")


# ── writes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def create(tx: Tx, write: CreateConversation) -> Created:
    insert_head(tx, write)
    insert_branch(tx, Branch(id=write.id, conversation=write.id, owner=write.owner))
    return Created(id=write.id)


def insert_head(tx: Tx, write: CreateConversation) -> None:
    if tx.one(HEAD, (tx.tenant, ids.home(write.id), write.id)):
        raise AlreadyExists("A conversation with this id exists.")
    tx.run(
        "insert into conversation(tenant, home, id, owner, subject, kind, metadata, created_at, agent)"
        " values (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (tx.tenant, ids.home(write.id), write.id, write.owner, write.subject, write.kind, write.metadata, tx.at, write.agent),
    )


def insert_branch(tx: Tx, branch: Branch) -> None:
    tx.made[branch.id] = branch
    tx.run(
        "insert into branch(tenant, home, id, conversation, owner, parent, up_to, parent_count, tail)"
        " values (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            tx.tenant, ids.home(branch.id), branch.id, branch.conversation, branch.owner,
            nil(branch.parent), branch.up_to, branch.parent_count, branch.tail,
        ),
    )  # fmt: skip


def set_metadata(tx: Tx, write: SetMetadata) -> Changed:
    conversation(tx, write.conversation)
    tx.run(
        "update conversation set metadata = ? where tenant = ? and home = ? and id = ?",
        (write.metadata, tx.tenant, ids.home(write.conversation), write.conversation),
    )
    return Changed()


def append(tx: Tx, write: Append) -> Appended:
    row = main(tx, write.branch)
    if write.expected_tail is not None and write.expected_tail != row.tail:
        raise Conflict(f"The tail is {row.tail}, not {write.expected_tail}.", code="tail_conflict", tail=row.tail)
    tail = insert_items(tx, row.id, row.tail, write.items)
    if write.items:  # the past of whoever continues the last response is another one now
        tx.run(
            "update branch set tail = ?, last_run = null where tenant = ? and home = ? and id = ?",
            (tail, tx.tenant, ids.home(row.id), row.id),
        )
        tx.touched.add(row.id)
    return Appended(branch=row.id, first=row.tail + 1, tail=tail)


def insert_items(tx: Tx, branch_id: bytes, tail: int, drafts: Sequence[Draft], *, run: bytes = NIL, mark: str = "") -> int:
    """Drafts after `tail`; returns the new tail, which the caller writes to the branch."""
    if not drafts:
        return tail
    home, run_id = ids.home(branch_id), nil(run)
    tx.many(
        "insert into item(tenant, home, branch, seq, id, run, kind, role, origin, trust, mark, at, body)"
        " values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (tx.tenant, home, branch_id, seq, d.id, run_id, d.kind, d.role, d.origin, d.trust, mark, tx.at, d.body)
            for seq, d in enumerate(drafts, tail + 1)
        ],
    )
    return tail + len(drafts)


def fork(tx: Tx, write: Fork) -> Forked:
    parent = branch(tx, write.parent)
    owner = write.owner or parent.owner
    if write.conversation != NIL:
        source = conversation(tx, parent.conversation)
        insert_head(
            tx,
            CreateConversation(
                id=write.id, owner=owner, subject=source.subject, kind=source.kind, metadata=write.metadata, agent=source.agent
            ),
        )
    made = insert_fork(tx, write.id, parent, write.up_to, conversation_id=write.conversation, owner=owner)
    return Forked(id=made.id, parent=made.parent, up_to=made.up_to)


def insert_fork(tx: Tx, id_: bytes, parent: Branch, up_to: int, *, conversation_id: bytes = NIL, owner: str = "") -> Branch:
    """A branch that shows `parent` up to `up_to`, hung on the nearest ancestor that owns something it shows."""
    branches = path(tx, parent)
    owns = [has_tombstone(tx, ancestor.id, up_to) for ancestor in branches]
    nearest, count = rules.fork_parent(branches, up_to, owns, tail=parent.tail)
    made = Branch(
        id=id_,
        conversation=conversation_id if conversation_id != NIL else parent.conversation,
        owner=owner or parent.owner,
        parent=nearest.id,
        up_to=up_to,
        parent_count=count,
        tail=up_to,
    )
    insert_branch(tx, made)
    return made


def move_branch(tx: Tx, write: MoveBranch) -> Forked:
    now = main(tx, write.conversation)
    rules.check_move(write, now)
    made = insert_fork(tx, write.id, branch(tx, write.parent), write.up_to, conversation_id=now.conversation, owner=now.owner)
    move_to(tx, now.conversation, made)
    return Forked(id=made.id, parent=made.parent, up_to=made.up_to)


def move_to(tx: Tx, conversation_id: bytes, made: Branch) -> None:
    """The conversation goes on in this branch."""
    place = (tx.tenant, ids.home(conversation_id), conversation_id)
    tx.run("update branch set moved_to = ? where tenant = ? and home = ? and id = ?", (made.id, *place))
    tx.touched |= {conversation_id, made.id}


def has_tombstone(tx: Tx, branch_id: bytes, up_to: int) -> bool:
    found = tx.one(
        "select 1 from tombstone where tenant = ? and home = ? and branch = ? and seq <= ? limit 1",
        (tx.tenant, ids.home(branch_id), branch_id, up_to),
    )
    return found is not None


def delete_item(tx: Tx, write: DeleteItem) -> Changed:
    row = main(tx, write.branch)
    bury(tx, row, [item(tx, row.id, write.item)])
    return Changed()


def bury(tx: Tx, row: Branch, items: Sequence[Item]) -> None:
    """Tombstones on a branch for items it shows, and the payloads gone of those that nobody shows any more."""
    for number, dead in enumerate(items, row.deletions + 1):
        tx.run(
            "insert into tombstone(tenant, home, branch, seq, number) values (?, ?, ?, ?, ?)",
            (tx.tenant, ids.home(row.id), row.id, dead.seq, number),
        )
    tx.run(
        "update branch set deletions = deletions + ?, revision = revision + 1 where tenant = ? and home = ? and id = ?",
        (len(items), tx.tenant, ids.home(row.id), row.id),
    )
    for dead in items:
        if not any(shows(tx, living, dead) for living in descendants(tx, dead.branch)):
            purge(tx, dead)
    tx.touched.add(row.id)


def purge(tx: Tx, dead: Item) -> None:
    """The body goes, and with it what the log of the run that put it out shows of it."""
    tx.run(
        "update item set body = x'7b7d' where tenant = ? and home = ? and branch = ? and seq = ?",
        (tx.tenant, ids.home(dead.branch), dead.branch, dead.seq),
    )
    tx.run(
        "update run_log set body = x'' where tenant = ? and home = ? and run = ? and item = ?",
        (tx.tenant, ids.home(dead.run), dead.run, dead.id),
    )


def delete_conversation(tx: Tx, write: DeleteConversation) -> Changed:
    """The record goes with everything that hangs on it: its branches, the desks bound to it, its runs."""
    conversation(tx, write.conversation)
    place = (tx.tenant, ids.home(write.conversation), write.conversation)
    main, forks = "id = ?", "conversation = ? and id <> conversation"
    rows = [
        row
        for of in (main, forks)
        for row in tx.rows(f"select {_BRANCH} from branch where tenant = ? and home = ? and {of}{tx.lock}", place)
    ]
    branches = [Branch(*row) for row in rows]
    if any(row.active_run != NIL or row.queued for row in branches):
        raise Conflict("A turn is active or waiting in this conversation; cancel it first.", code="conversation_busy")
    tx.run("update conversation set gone = 1, metadata = x'7b7d' where tenant = ? and home = ? and id = ?", place)
    for row in branches:
        tx.run("update branch set gone = 1 where tenant = ? and home = ? and id = ?", (tx.tenant, ids.home(row.id), row.id))
        tx.touched.add(row.id)
    for segment in {ancestor.id for row in branches for ancestor in path(tx, row)}:
        purge_unseen(tx, segment)
    clear_desks_and_runs(tx, place)
    return Changed()


def clear_desks_and_runs(tx: Tx, place: Row) -> None:
    tx.run("update session set status = 'ended' where tenant = ? and home = ? and conversation = ?", place)
    for (desk,) in tx.rows("select id from session where tenant = ? and home = ? and conversation = ?", place):
        desk_life.watch(tx, desk, 0)
        desk_rows.clear(tx, desk)
    for table in ("run_log", "inbox", "step", "action"):
        tx.run(
            f"delete from {table} where (tenant, home, run) in"
            " (select tenant, home, id from run where tenant = ? and home = ? and conversation = ?)",
            place,
        )
    tx.run(
        "delete from due where kind = 'compact' and tenant = ?1 and id in"
        " (select id from run where tenant = ?1 and home = ?2 and conversation = ?3)",
        place,
    )
    tx.run("delete from run where tenant = ? and home = ? and conversation = ?", place)


def purge_unseen(tx: Tx, segment: bytes) -> None:
    """Payloads of a branch's own items that no living branch shows: everything, or what lies beyond the last fork and
    what each of them has deleted."""
    living = descendants(tx, segment)
    hi = max((part.hi for one in living for part in rules.path(path(tx, one)) if part.branch == segment), default=0)
    place = (tx.tenant, ids.home(segment), segment, hi)
    tx.run(
        "update run_log set body = x'' where item is not null and (tenant, home, run) in"
        " (select tenant, home, run from item where tenant = ? and home = ? and branch = ? and seq > ?)",
        place,
    )
    tx.run("update item set body = x'7b7d' where tenant = ? and home = ? and branch = ? and seq > ?", place)
    buried = tx.rows(
        f"select {_ITEM} from item where tenant = ?1 and home = ?2 and branch = ?3 and seq <= ?4 and seq in"
        " (select seq from tombstone where tenant = ?1 and home = ?2)",
        place,
    )
    for row in buried:
        if not any(shows(tx, one, Item(*row)) for one in living):
            purge(tx, Item(*row))


def shows(tx: Tx, start: Branch, wanted: Item) -> bool:
    segments = rules.path(path(tx, start))
    if not any(part.branch == wanted.branch and part.lo < wanted.seq <= part.hi for part in segments):
        return False
    return wanted.seq not in rules.hidden(tombstones(tx, segments), segments)


def descendants(tx: Tx, branch_id: bytes) -> list[Branch]:
    """The living branches among this one and all that descend from it, of whatever conversation."""
    rows = tx.rows(
        "with recursive below(id) as (select ?3"
        " union select branch.id from branch join below on branch.parent = below.id"
        " where branch.tenant = ?1 and branch.home = ?2)"
        f" select {_BRANCH} from branch where tenant = ?1 and home = ?2 and gone = 0 and id in (select id from below)",
        (tx.tenant, ids.home(branch_id), branch_id),
    )
    return [Branch(*row) for row in rows]


# ── reads ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def conversation(tx: Tx, id_: bytes) -> Conversation:
    row = tx.one(f"{CONVERSATION}{tx.lock}", (tx.tenant, ids.home(id_), id_))
    return Conversation(*tx.seen("conversation", id_, row, owner=_OWNER))


def conversations(tx: Tx, after: bytes, limit: int, newest_first: bool) -> list[Conversation]:
    """Walks the index by creation time; rows of other owners are passed over."""
    order, sign = ("desc", "<") if newest_first else ("asc", ">")
    where, values = "", list[object]((tx.tenant,))
    if after != NIL:
        start = conversation(tx, after)
        where, values = f"and (created_at, id) {sign} (?, ?)", [tx.tenant, start.created_at, after]
    if not tx.scope.sees_all:
        where += f" and {tx.of_seen}"
        values += sorted(tx.scope.sees)
    rows = tx.rows(
        f"select {_CONVERSATION} from conversation where tenant = ? and kind = 'managed' and gone = 0 {where}"
        f" order by created_at {order}, id {order} limit ?",
        (*values, limit),
    )
    return [Conversation(*row) for row in rows]


def branch(tx: Tx, id_: bytes) -> Branch:
    if (made := tx.made.pop(id_, None)) is not None and tx.scope.may_see(made.owner):
        return made
    row = tx.one(f"{BRANCH}{tx.lock}", (tx.tenant, ids.home(id_), id_))
    return Branch(*tx.seen("conversation", id_, row, owner=_BRANCH_OWNER))


def main(tx: Tx, id_: bytes) -> Branch:
    """The branch that a conversation goes on in; any other branch itself."""
    row = branch(tx, id_)
    return row if row.moved_to == NIL else branch(tx, row.moved_to)


def path(tx: Tx, start: Branch) -> list[Branch]:
    """The branch and its ancestors, whoever owns those: a fork shows its past even when the parent is gone."""
    found = [start]
    while found[-1].parent != NIL:
        parent = found[-1].parent
        row = tx.one(
            f"select {_BRANCH} from branch where tenant = ? and home = ? and id = ?{tx.lock}",
            (tx.tenant, ids.home(parent), parent),
        )
        if row is None or len(found) > FORK_DEPTH_MAX:
            raise Unavailable("A branch lost its past.", code="store_damaged")
        found.append(Branch(*row))
    return found


def items(tx: Tx, query: ItemQuery) -> list[Item]:
    """Walks the primary key of each stretch of the path; no sort."""
    return items_of(tx, (main if query.current else branch)(tx, query.branch), query)


def items_of(tx: Tx, start: Branch, query: ItemQuery) -> list[Item]:
    segments = rules.path(path(tx, start)) if start.parent != NIL else rules.path([start])
    dead = rules.hidden(tombstones(tx, segments), segments)
    found: list[Item] = []
    for segment in segments if query.newest_first else segments[::-1]:
        lo, hi = max(segment.lo, query.after), min(segment.hi, query.before - 1 if query.before else segment.hi)
        while lo < hi and len(found) < query.limit:
            part = Segment(branch=segment.branch, lo=lo, hi=hi, count=0)
            rows = stretch(tx, part, query, limit=query.limit - len(found))
            found += [Item(*row) for row in rows if row[0] not in dead]
            if not rows:
                break
            lo, hi = (lo, rows[-1][0] - 1) if query.newest_first else (rows[-1][0], hi)
    return found


def stretch(tx: Tx, part: Segment, query: ItemQuery, *, limit: int) -> list[Row]:
    of_run = "" if query.run == NIL else " and run = ?"
    values = (tx.tenant, ids.home(part.branch), part.branch, part.lo, part.hi, *(() if query.run == NIL else (query.run,)), limit)
    order = "desc" if query.newest_first else "asc"
    return tx.rows(
        f"select {_ITEM} from item where tenant = ? and home = ? and branch = ? and seq > ? and seq <= ?{of_run}"
        f" order by seq {order} limit ?",
        values,
    )


def tombstones(tx: Tx, segments: Sequence[Segment]) -> list[tuple[bytes, int, int]]:
    found: list[tuple[bytes, int, int]] = []
    for segment in segments:
        if segment.count:
            rows = tx.rows(
                "select branch, seq, number from tombstone where tenant = ? and home = ? and branch = ?",
                (tx.tenant, ids.home(segment.branch), segment.branch),
            )
            found += [(row[0], row[1], row[2]) for row in rows]
    return found


def item(tx: Tx, branch_id: bytes, item_id: bytes) -> Item:
    start = main(tx, branch_id)
    home = ids.home(branch_id)  # what is made in an object's context inherits its home
    row = tx.one(f"select {_ITEM} from item where id = ? and tenant = ? and home = ? and seq > 0", (item_id, tx.tenant, home))
    if row is None:
        raise ids.missing("item", item_id)
    found = Item(*row)
    if not shows(tx, start, found):
        raise ids.missing("item", item_id)
    return found
