"""Steps, actions and what depends on them in ram: a run that waits, is answered, takes others in, is compacted."""

from __future__ import annotations

from itertools import takewhile

from msgspec.structs import replace

from stateroom.backends.ram.action_rows import action_of, actions_of, add_action, put_action
from stateroom.backends.ram.ending import end, queue_again
from stateroom.backends.ram.run_rows import enter, inbox_of, leave_queue, place_of, see_run, unwatch, waiting_on, write_rows
from stateroom.backends.ram.store import Reader, Transaction
from stateroom.batch import Draft
from stateroom.conversation.model import Branch, Changed
from stateroom.errors import Conflict, IllegalMove
from stateroom.ids import NIL
from stateroom.run import machine
from stateroom.run.model import Drained, Finish, Paused, Resolved, Run
from stateroom.run.steps import Action, ActionQuery, Compact, Drain, Pause, RecordSteps, Resolve, Step, Stepped

# ── reads ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def steps(reader: Reader, run: bytes) -> list[Step]:
    see_run(reader, run)
    return list(reader.tables.steps.get((reader.tenant, run)) or ())


def actions(reader: Reader, query: ActionQuery) -> list[Action]:
    if query.run != NIL:
        see_run(reader, query.run)
        found = [action for action in actions_of(reader, query.run) if not query.pending or action.status == "pending"]
    else:
        asked = (action for run in reader.visible(reader.tables.runs) for action in actions_of(reader, run.id))
        waiting = (action for action in asked if action.status == "pending" and action.queue == query.queue != "")
        found = sorted(waiting, key=lambda action: (action.at, action.id))
    return found[: query.limit]


# ── writes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def record_steps(tx: Transaction, write: RecordSteps) -> Stepped:
    run = see_run(tx, write.run)
    machine.check_fence(run, write.fence)
    for id_ in write.uses:
        action = action_of(tx, run.id, id_)
        machine.check_use(action)
        put_action(tx, replace(action, status="used"))
    known = {step.key: step for step in tx.tables.steps.get((tx.tenant, run.id)) or ()}
    for step in write.steps:
        machine.check_step(known.get(step.key), step)
        known[step.key] = replace(step, at=tx.at)
    tx.tables.steps.put((tx.tenant, run.id), tuple(known.values()))
    run = write_rows(tx, run, write.rows)
    return Stepped(cancel=run.status == "cancelling", waiting=len(_joining(tx, run)))


def pause(tx: Transaction, write: Pause) -> Paused:
    """The lease ends; the branch stays taken, so that nobody comes between the question and its answer."""
    run = see_run(tx, write.run)
    machine.check_fence(run, write.fence)
    status = machine.advance(run.status, "pause")
    if place_of(tx, run) is None:
        raise IllegalMove("A run that is not stored cannot wait: its content would be lost.", status=run.status, move="pause")
    for new in write.actions:
        add_action(tx, run.id, new)
    machine.check_pause(actions_of(tx, run.id))
    tx.tables.due.drop((tx.tenant, run.id, "lease"))
    return Paused(run=write_rows(tx, replace(run, status=status, lease_owner="", lease_until=0), write.rows))


def resolve(tx: Transaction, write: Resolve) -> Resolved:
    """One answer. The last one queues the run again, first in its branch (R10)."""
    run = see_run(tx, write.run)
    asked = action_of(tx, run.id, write.action)
    answered = machine.resolve(asked, write, now=tx.now, by=tx.scope.principal)
    if answered is None:
        return Resolved(run=run)
    put_action(tx, answered)
    tx.changed.add(run.id)
    if answered.status == "expired" and (how := machine.end_of(asked.policy)) is not None:
        status = machine.ending(run, how)
        ended = Finish(run=run.id, fence=None, status=status, error=machine.UNANSWERED, rows=write.rows)
        return Resolved(run=end(tx, run, ended))
    branch = place_of(tx, run)
    if branch is None or any(left.status == "pending" for left in actions_of(tx, run.id)):
        return Resolved(run=run)
    return Resolved(run=queue_again(tx, replace(run, status=machine.advance(run.status, "resume")), branch, ()))


def drain(tx: Transaction, write: Drain) -> Drained:
    """Inboxes to items, each under the run it came with; those runs end and point here."""
    run = see_run(tx, write.run)
    machine.check_fence(run, write.fence)
    if (branch := place_of(tx, run)) is None:
        raise IllegalMove("A run that is not stored takes nobody in.", status=run.status, move="merge")
    taken, sources = list[Draft](), list[bytes]()
    for waiting in _joining(tx, run):
        drafts = inbox_of(tx, waiting.id)
        merged, branch = _take_in(tx, run, waiting, branch=branch, drafts=drafts)
        write_rows(tx, merged, write.rows)
        taken += drafts
        sources.append(waiting.id)
    return Drained(items=tuple(taken), runs=tuple(sources), tail=branch.tail, revision=branch.revision)


def _take_in(tx: Transaction, run: Run, waiting: Run, *, branch: Branch, drafts: tuple[Draft, ...]) -> tuple[Run, Branch]:
    status = machine.advance(waiting.status, "merge")
    merged, branch = enter(tx, waiting, leave_queue(tx, waiting, branch), drafts=drafts)
    unwatch(tx, merged)
    return replace(merged, status=status, merged_into=run.id, out_hi=merged.in_hi, finished_at=tx.at), branch


def _joining(tx: Transaction, run: Run) -> list[Run]:
    """The turns at the head of the queue that asked to join this run."""
    if (branch := place_of(tx, run)) is None:
        return []
    joining = takewhile(lambda waiting: machine.joins(waiting, run), waiting_on(tx, branch.id))
    return list(takewhile(lambda waiting: tx.scope.may_see(waiting.owner), joining))


def compact(tx: Transaction, write: Compact) -> Changed:
    """Another epoch, another log, dense from one."""
    run = see_run(tx, write.run)
    if not run.ended:
        raise Conflict("The run has not ended.", code="run_active", status=run.status)
    tx.tables.due.drop((tx.tenant, run.id, "compact"))
    tx.tables.log.drop((tx.tenant, run.id))
    write_rows(tx, replace(run, head=0, epoch=run.epoch + 1), write.rows)
    return Changed()
