"""Steps, actions and what depends on them in SQLite: a run that waits, is answered, takes others in, is compacted."""

from __future__ import annotations

from itertools import takewhile

from msgspec.structs import replace

from stateroom import ids
from stateroom.backends.sql import conversation as conversations
from stateroom.backends.sql.action_rows import ACTION, action, actions_of, insert_action, save_action
from stateroom.backends.sql.ending import end, requeue_row
from stateroom.backends.sql.run_read import inbox, run, waiting_on
from stateroom.backends.sql.run_rows import clear_compaction, clear_deadline, clear_due, log, save, save_branch
from stateroom.backends.sql.tx import Tx, columns
from stateroom.batch import Draft
from stateroom.conversation.model import Branch, Changed
from stateroom.errors import Conflict, IllegalMove
from stateroom.ids import NIL
from stateroom.run import machine
from stateroom.run.model import Drained, Finish, Paused, Resolved, Run
from stateroom.run.steps import Action, ActionQuery, Compact, Drain, Pause, RecordSteps, Resolve, Step, Stepped

_STEP = columns(Step.__struct_fields__)


# ── writes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def record(tx: Tx, write: RecordSteps) -> Stepped:
    row = run(tx, write.run)
    machine.check_fence(row, write.fence)
    for id_ in write.uses:
        found = action(tx, row.id, id_)
        machine.check_use(found)
        save_action(tx, replace(found, status="used"))
    place = (tx.tenant, ids.home(row.id), row.id)
    for step in write.steps:
        known = tx.one(f"select {_STEP} from step where tenant = ? and home = ? and run = ? and key = ?", (*place, step.key))
        machine.check_step(Step(*known) if known else None, step)
        tx.run(
            "insert into step(tenant, home, run, n, key, name, effect, status, digest, attempt, body, at) values (?1, ?2, ?3,"
            " (select count(*) from step where tenant = ?1 and home = ?2 and run = ?3), ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)"
            " on conflict(tenant, home, run, key) do update set name = excluded.name, effect = excluded.effect,"
            " status = excluded.status, digest = excluded.digest, attempt = excluded.attempt, body = excluded.body,"
            " at = excluded.at",
            (*place, step.key, step.name, step.effect, step.status, step.digest, step.attempt, step.body, tx.at),
        )
    if write.rows:
        row = log(tx, row, write.rows)
        save_head(tx, row)
    return Stepped(cancel=row.status == "cancelling", waiting=len(to_merge(tx, row)))


def save_head(tx: Tx, row: Run) -> None:
    tx.runs[row.id] = row
    tx.run("update run set head = ? where tenant = ? and home = ? and id = ?", (row.head, tx.tenant, ids.home(row.id), row.id))
    tx.touched.add(row.id)


def pause(tx: Tx, write: Pause) -> Paused:
    """The lease ends; the branch stays taken, so that nobody comes between the question and its answer."""
    row = run(tx, write.run)
    machine.check_fence(row, write.fence)
    status = machine.advance(row.status, "pause")
    if not row.stored or row.branch == NIL:
        raise IllegalMove("A run that is not stored cannot wait: its content would be lost.", status=row.status, move="pause")
    clear_due(tx, row)
    for new in write.actions:
        insert_action(tx, row.id, new)
    machine.check_pause(actions_of(tx, row.id))
    row = log(tx, replace(row, status=status, lease_owner="", lease_until=0), write.rows)
    save(tx, row, due_at=0)
    tx.touched.add(row.id)
    return Paused(run=row)


def resolve(tx: Tx, write: Resolve) -> Resolved:
    row = run(tx, write.run)
    found = action(tx, row.id, write.action)
    answered = machine.resolve(found, write, now=tx.now, by=tx.scope.principal)
    if answered is None:
        return Resolved(run=row)
    save_action(tx, answered)
    tx.touched.add(row.id)
    if row.status != "requires_action":
        return Resolved(run=row)
    if answered.status == "expired" and (how := machine.end_of(found.policy)) is not None:
        status = machine.ending(row, how)
        ended, _ = end(tx, row, Finish(run=row.id, fence=None, status=status, error=machine.UNANSWERED, rows=write.rows))
        return Resolved(run=ended)
    if any(left.status == "pending" for left in actions_of(tx, row.id)):
        return Resolved(run=row)
    return Resolved(run=requeue_row(tx, replace(row, status=machine.advance(row.status, "resume")), rows=()))


def drain(tx: Tx, write: Drain) -> Drained:
    """Inboxes to items, each under the run it came with; those runs end and point here."""
    row = run(tx, write.run)
    machine.check_fence(row, write.fence)
    if not row.stored or row.branch == NIL:
        raise IllegalMove("A run that is not stored takes nobody in.", status=row.status, move="merge")
    branch = conversations.branch(tx, row.branch)
    taken, sources = list[Draft](), list[bytes]()
    for waiting in to_merge(tx, row):
        drafts = inbox(tx, waiting.id)
        branch = take_in(tx, row, waiting, branch=branch, drafts=drafts)
        ended = log(tx, tx.runs[waiting.id], write.rows)
        save(tx, ended, due_at=0)
        taken += drafts
        sources.append(waiting.id)
    save_branch(tx, branch)
    return Drained(items=tuple(taken), runs=tuple(sources), tail=branch.tail, revision=branch.revision)


def take_in(tx: Tx, row: Run, waiting: Run, *, branch: Branch, drafts: list[Draft]) -> Branch:
    clear_due(tx, waiting)
    clear_deadline(tx, waiting)
    tail = conversations.insert_items(tx, branch.id, branch.tail, drafts, run=waiting.id)
    tx.run("delete from inbox where tenant = ? and home = ? and run = ?", (tx.tenant, ids.home(waiting.id), waiting.id))
    tx.runs[waiting.id] = replace(
        waiting, status=machine.advance(waiting.status, "merge"), merged_into=row.id, in_lo=branch.tail, in_hi=tail,
        out_hi=tail, finished_at=tx.at,
    )  # fmt: skip
    tx.run(
        "update run set merged_into = ? where tenant = ? and home = ? and id = ?",
        (row.id, tx.tenant, ids.home(waiting.id), waiting.id),
    )
    tx.touched |= {waiting.id, branch.id}
    return replace(branch, tail=tail, queued=branch.queued - 1)


def to_merge(tx: Tx, row: Run) -> list[Run]:
    """The turns at the head of the queue that asked to join this run."""
    if row.branch == NIL or not row.stored:
        return []
    joining = takewhile(lambda waiting: machine.joins(waiting, row), waiting_on(tx, row.branch))
    return list(takewhile(lambda waiting: tx.scope.may_see(waiting.owner), joining))


def compact(tx: Tx, write: Compact) -> Changed:
    row = run(tx, write.run)
    if not row.ended:
        raise Conflict("The run has not ended.", code="run_active", status=row.status)
    clear_compaction(tx, row)
    tx.run("delete from run_log where tenant = ? and home = ? and run = ?", (tx.tenant, ids.home(row.id), row.id))
    row = log(tx, replace(row, head=0, epoch=row.epoch + 1), write.rows)
    tx.runs[row.id] = row
    tx.run(
        "update run set head = ?, epoch = ?, due_at = 0 where tenant = ? and home = ? and id = ?",
        (row.head, row.epoch, tx.tenant, ids.home(row.id), row.id),
    )
    tx.touched.add(row.id)
    return Changed()


# ── reads ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def steps(tx: Tx, run_id: bytes) -> list[Step]:
    run(tx, run_id)
    place = (tx.tenant, ids.home(run_id), run_id)
    return [
        Step(*row) for row in tx.rows(f"select {_STEP} from step where tenant = ? and home = ? and run = ? order by n", place)
    ]


def actions(tx: Tx, query: ActionQuery) -> list[Action]:
    if query.run != NIL:
        run(tx, query.run)
        found = [one for one in actions_of(tx, query.run) if not query.pending or one.status == "pending"]
        return found[: query.limit]
    rows = tx.rows(
        f"select {ACTION} from action where tenant = ? and queue = ? and status = 'pending' and queue <> '' order by at, id",
        (tx.tenant, query.queue),
    )
    seen = (Action(*row) for row in rows)
    return [one for one in seen if visible(tx, one.run)][: query.limit]


def visible(tx: Tx, run_id: bytes) -> bool:
    row = tx.one("select owner from run where tenant = ? and home = ? and id = ?", (tx.tenant, ids.home(run_id), run_id))
    return row is not None and tx.scope.may_see(row[0])
