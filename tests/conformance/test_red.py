"""Each promise's test goes red on a backend that breaks it: a ram store with one thing done wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from stateroom.backends.ram import accept, action_rows, conversation, run, run_rows, session, steps
from stateroom.backends.ram.backend import WRITES, RamBackend
from stateroom.backends.ram.store import RamStore, Transaction
from stateroom.batch import Batch, Receipt
from stateroom.conformance import BackendConformance
from stateroom.conformance.kit import Actor
from stateroom.conversation.model import Append, Branch, DeleteItem, Fork, Item, ItemQuery
from stateroom.errors import NotFound, StateroomError, Unauthorized
from stateroom.principal import Scope, operator
from stateroom.run.model import AcceptTurn, Cancel, Finish, Log, Requeue
from stateroom.run.steps import Action, ActionQuery, Compact, Drain, Pause, RecordSteps, Resolve
from stateroom.session.model import PatchSlots, Slot
from tests.conformance.onplaces import run_test

pytestmark = pytest.mark.anyio


class Broken(BackendConformance):
    """The suite over a handle class and a table of writes that may be wrong."""

    def __init__(self, backend: type[RamBackend], writes: dict[Any, Callable[[Transaction, Any], Receipt]]) -> None:
        self.setup_method()
        self.shared = RamStore(self.clock)
        self.backend, self.writes = backend, {**WRITES, **writes}

    async def open_handle(self, place: Path) -> RamBackend:
        return self.backend(self.shared, self.writes)

    def rows(self, place: Path) -> dict[str, int]:
        return {name: len(table) for name, table in self.shared.tables.by_name().items()}

    def holds(self, place: Path, words: bytes) -> bool:
        tables = self.shared.tables.by_name().values()
        return any(words.decode() in repr(pair) for table in tables for pair in table.pairs())

    async def lose(self, place: Path) -> None:
        self.shared.lose()

    async def runs_test(self, name: str, place: Path) -> None:
        await run_test(self, name, place, parameter="failed")


# ── wrong writes ────────────────────────────────────────────────────────────────────────────────────────────────────


def append_expects_nothing(tx: Transaction, write: Append) -> Receipt:
    return conversation.append(tx, replace(write, expected_tail=None))


def append_respells(tx: Transaction, write: Append) -> Receipt:
    items = tuple(replace(draft, body=draft.body.replace(b" ", b"")) for draft in write.items)
    return conversation.append(tx, replace(write, items=items))


def append_turns_around(tx: Transaction, write: Append) -> Receipt:
    return conversation.append(tx, replace(write, items=write.items[::-1]))


def append_starts_over(tx: Transaction, write: Append) -> Receipt:
    receipt = conversation.append(tx, write)
    return replace(receipt, first=1)


def fork_copies(tx: Transaction, write: Fork) -> Receipt:
    copied = [replace(item, branch=write.id) for item in conversation.shown(tx, conversation.see_branch(tx, write.parent))]
    for item in copied:
        tx.tables.items.put((tx.tenant, write.id, item.seq), item)
    return conversation.fork(tx, write)


def fork_follows_its_parent(tx: Transaction, write: Fork) -> Receipt:
    receipt = conversation.fork(tx, write)
    tx.put_branch(replace(conversation.see_branch(tx, write.id), up_to=99, tail=99))
    return receipt


def deletion_is_not_counted(tx: Transaction, write: DeleteItem) -> Receipt:
    before = conversation.see_branch(tx, write.branch)
    receipt = conversation.delete_item(tx, write)
    tx.put_branch(before)
    return receipt


def deletion_purges_at_once(tx: Transaction, write: DeleteItem) -> Receipt:
    item = conversation.item(tx, write.branch, write.item)
    receipt = conversation.delete_item(tx, write)
    tx.tables.items.put((tx.tenant, item.branch, item.seq), replace(item, body=b"{}"))
    return receipt


def patch_expects_nothing(tx: Transaction, write: PatchSlots) -> Receipt:
    patches = tuple(replace(patch, expected=None) for patch in write.patches)
    return session.patch_slots(tx, replace(write, patches=patches))


def patch_forgets_the_fence(tx: Transaction, write: PatchSlots) -> Receipt:
    return session.patch_slots(tx, replace(write, fence=0))


def patch_keeps_no_past(tx: Transaction, write: PatchSlots) -> Receipt:
    for patch in write.patches:
        tx.tables.slots.drop((tx.tenant, write.session, patch.name))
    return session.patch_slots(tx, replace(write, patches=tuple(replace(patch, expected=None) for patch in write.patches)))


def accept_forgets_the_key(tx: Transaction, write: AcceptTurn) -> Receipt:
    return accept.accept(tx, replace(write, key=None))


def accept_opens_a_desk_each_time(tx: Transaction, write: AcceptTurn) -> Receipt:
    branch = tx.tables.branches.get((tx.tenant, write.conversation))
    if branch is not None:
        tx.tables.bindings.drop((tx.tenant, branch.conversation, write.agent))
    return accept.accept(tx, write)


def accept_jumps_the_queue(tx: Transaction, write: AcceptTurn) -> Receipt:
    receipt = accept.accept(tx, write)
    if (queue := tx.tables.queues.get((tx.tenant, receipt.run.branch))) is not None:
        tx.tables.queues.put((tx.tenant, receipt.run.branch), replace(queue, waiting=queue.waiting[::-1]))
    return receipt


def finish_forgets_the_fence(tx: Transaction, write: Finish) -> Receipt:
    return run.finish(tx, replace(write, fence=None))


def finish_twice(tx: Transaction, write: Finish) -> Receipt:
    row = run_rows.see_run(tx, write.run)
    tx.put_run(replace(row, status="in_progress", fence=write.fence or row.fence) if row.ended else row)
    return run.finish(tx, write)


def finish_shows_outputs_later(tx: Transaction, write: Finish) -> Receipt:
    return run.finish(tx, replace(write, outputs=()))


def finish_drops_the_input(tx: Transaction, write: Finish) -> Receipt:
    tx.tables.inbox.drop((tx.tenant, write.run))
    return run.finish(tx, write)


def log_repeats_a_number(tx: Transaction, write: Log) -> Receipt:
    row = run_rows.see_run(tx, write.run)
    tx.put_run(replace(row, head=max(0, row.head - 1)))
    return run.write_log(tx, write)


def cancel_drops_the_input(tx: Transaction, write: Cancel) -> Receipt:
    tx.tables.inbox.drop((tx.tenant, write.run))
    return run.cancel(tx, write)


def requeue_takes_living_leases(tx: Transaction, write: Requeue) -> Receipt:
    return run.requeue(tx, replace(write, owner_gone=True))


def record_forgets_what_is_done(tx: Transaction, write: RecordSteps) -> Receipt:
    tx.tables.steps.drop((tx.tenant, write.run))
    return steps.record_steps(tx, write)


def record_forgets_the_fence(tx: Transaction, write: RecordSteps) -> Receipt:
    return steps.record_steps(tx, replace(write, fence=run_rows.see_run(tx, write.run).fence))


def record_spends_nothing(tx: Transaction, write: RecordSteps) -> Receipt:
    return steps.record_steps(tx, replace(write, uses=()))


def record_sorts_by_key(tx: Transaction, write: RecordSteps) -> Receipt:
    receipt = steps.record_steps(tx, write)
    known = tx.tables.steps.get((tx.tenant, write.run)) or ()
    tx.tables.steps.put((tx.tenant, write.run), tuple(sorted(known, key=lambda step: step.key)))
    return receipt


def pause_keeps_the_lease(tx: Transaction, write: Pause) -> Receipt:
    before = run_rows.see_run(tx, write.run)
    receipt = steps.pause(tx, write)
    tx.put_run(replace(receipt.run, lease_owner=before.lease_owner, lease_until=before.lease_until))
    return receipt


def pause_lets_go_of_the_branch(tx: Transaction, write: Pause) -> Receipt:
    receipt = steps.pause(tx, write)
    tx.put_branch(replace(conversation.see_branch(tx, receipt.run.branch), active_run=b"\0" * 16))
    return receipt


def resolve_takes_any_arguments(tx: Transaction, write: Resolve) -> Receipt:
    return steps.resolve(tx, replace(write, digest=action_rows.action_of(tx, write.run, write.action).digest))


def resolve_goes_on_too_early(tx: Transaction, write: Resolve) -> Receipt:
    for action in action_rows.actions_of(tx, write.run):
        if action.status == "pending" and action.id != write.action:
            action_rows.put_action(tx, replace(action, status="closed"))
    return steps.resolve(tx, write)


def resolve_queues_last(tx: Transaction, write: Resolve) -> Receipt:
    receipt = steps.resolve(tx, write)
    place = (tx.tenant, receipt.run.branch)
    queue = tx.tables.queues.get(place)
    tx.tables.queues.put(place, replace(queue, waiting=queue.waiting[::-1]))
    return receipt


def drain_loses_the_input(tx: Transaction, write: Drain) -> Receipt:
    for waiting in run_rows.waiting_on(tx, run_rows.see_run(tx, write.run).branch):
        tx.tables.inbox.drop((tx.tenant, waiting.id))
    return steps.drain(tx, write)


def drain_takes_all(tx: Transaction, write: Drain) -> Receipt:
    active = run_rows.see_run(tx, write.run)
    for waiting in run_rows.waiting_on(tx, active.branch):
        tx.put_run(replace(waiting, merge=True, agent=active.agent, owner=active.owner))
    return steps.drain(tx, write)


def compact_keeps_the_epoch(tx: Transaction, write: Compact) -> Receipt:
    receipt = steps.compact(tx, write)
    tx.put_run(replace(run_rows.see_run(tx, write.run), epoch=0))
    return receipt


def finish_leaves_questions_open(tx: Transaction, write: Finish) -> Receipt:
    asked = tx.tables.actions.get((tx.tenant, write.run))
    receipt = run.finish(tx, write)
    tx.tables.actions.put((tx.tenant, write.run), asked)
    return receipt


def finish_leaves_lines_due(tx: Transaction, write: Finish) -> Receipt:
    receipt = run.finish(tx, write)
    tx.tables.due.put((tx.tenant, write.run, "deadline"), tx.now)
    return receipt


def finish_never_compacts(tx: Transaction, write: Finish) -> Receipt:
    return run.finish(tx, replace(write, compact_ms=0))


def accept_always_enqueues(tx: Transaction, write: AcceptTurn) -> Receipt:
    return accept.accept(tx, replace(write, policy="enqueue"))


def accept_interrupts_behind_the_others(tx: Transaction, write: AcceptTurn) -> Receipt:
    receipt = accept.accept(tx, write)
    place = (tx.tenant, receipt.run.branch)
    if write.policy == "interrupt" and (queue := tx.tables.queues.get(place)) is not None:
        tx.tables.queues.put(place, replace(queue, waiting=(*queue.waiting[1:], *queue.waiting[:1])))
    return receipt


def accept_forks_at_the_tail(tx: Transaction, write: AcceptTurn) -> Receipt:
    if write.policy == "parallel":
        branch = conversation.see_branch(tx, write.conversation)
        conversation.fork_branch(tx, branch, branch.tail, id=write.fork, owner=branch.owner)
        write = replace(write, policy="enqueue", branch=write.fork)
    return accept.accept(tx, write)


def patch_forgets_removed_names(tx: Transaction, write: PatchSlots) -> Receipt:
    for key, slot in list(tx.tables.slots.pairs()):
        if slot.body is None:
            tx.tables.slots.drop(key)
    return session.patch_slots(tx, write)


# ── wrong handles ───────────────────────────────────────────────────────────────────────────────────────────────────


class LandsWriteByWrite(RamBackend):
    async def commit(self, batch: Batch) -> tuple[Receipt, ...]:
        tx = Transaction(self._store.tables, batch.scope, at=batch.at, now=self.now())
        return tuple(self._writes[type(write)](tx, write) for write in batch.writes)


class NeverSawIt(RamBackend):
    async def landed(self, batch: Batch) -> bool:
        return False


class LandsTwice(RamBackend):
    def _leave_leaf(self, batch: Batch) -> None:
        pass


class ShowsBranchesToAll(RamBackend):
    async def items(self, scope: Scope, query: ItemQuery) -> list[Item]:
        return await super().items(operator(scope.tenant), query)


class TellsThatItIsThere(RamBackend):
    async def branch(self, scope: Scope, branch: bytes) -> Branch:
        try:
            return await super().branch(scope, branch)
        except NotFound as error:
            if any(id_ == branch for (_, id_), _ in self._store.tables.branches.pairs()):
                raise Unauthorized("This is not yours.") from error
            raise


class LeavesRemovalsOut(RamBackend):
    async def slots(self, scope: Scope, session: bytes, since: int = 0) -> list[Slot]:
        return [slot for slot in await super().slots(scope, session, since) if slot.body is not None]


class LeasesOnTheWall(RamBackend):
    def now(self) -> int:
        return self.clock.wall_ms()


class TakesAnyBatch(RamBackend):
    async def commit(self, batch: Batch) -> tuple[Receipt, ...]:
        parts = [replace(batch, id=bytes([n]) + batch.id[1:], writes=batch.writes[n * 60 : n * 60 + 60]) for n in range(2)]
        return tuple([receipt for part in parts for receipt in await super(TakesAnyBatch, self).commit(part)])


class ShowsQuestionsToAll(RamBackend):
    async def actions(self, scope: Scope, query: ActionQuery) -> list[Action]:
        return await super().actions(operator(scope.tenant), query)


class ForgetsTables(RamBackend):
    copies = {name: claimed for name, claimed in RamBackend.copies.items() if name != "inbox"}  # noqa: RUF012


BROKEN_WRITES = [
    ("test_C1_an_append_shows_all_its_items_in_order", Append, append_turns_around),
    ("test_C2_P2_seqs_are_dense_whichever_handle_writes", Append, append_starts_over),
    ("test_C3_a_stale_expected_tail_is_told_the_tail_and_writes_nothing", Append, append_expects_nothing),
    ("test_C3_of_two_appends_that_expect_the_same_tail_one_wins", Append, append_expects_nothing),
    ("test_C4_P25_a_fork_writes_the_same_rows_at_any_length", Fork, fork_copies),
    ("test_C4_a_fork_shows_its_parent_as_it_was_then", Fork, fork_follows_its_parent),
    ("test_C5_earlier_forks_keep_a_deleted_item_and_later_ones_never_show_it", DeleteItem, deletion_is_not_counted),
    ("test_C5_a_payload_is_purged_when_no_branch_shows_it", DeleteItem, deletion_purges_at_once),
    ("test_C6_P30_bodies_come_back_byte_for_byte", Append, append_respells),
    ("test_S2_a_stale_slot_is_told_its_version_and_nothing_is_written", PatchSlots, patch_expects_nothing),
    ("test_S1_P21_compare_and_set_loses_no_update", PatchSlots, patch_expects_nothing),
    ("test_S5_P8_a_stale_fence_patches_nothing", PatchSlots, patch_forgets_the_fence),
    ("test_S6_earlier_versions_are_kept_apart", PatchSlots, patch_keeps_no_past),
    ("test_S7_turns_of_one_conversation_and_agent_share_one_session", AcceptTurn, accept_opens_a_desk_each_time),
    ("test_R1_P14_twenty_accepts_with_one_key_make_one_run", AcceptTurn, accept_forgets_the_key),
    ("test_R2_P8_a_stale_fence_writes_nothing", Finish, finish_forgets_the_fence),
    ("test_R3_turns_start_in_the_order_they_were_accepted", AcceptTurn, accept_jumps_the_queue),
    ("test_R4_P3_wire_numbers_are_dense_from_one", Log, log_repeats_a_number),
    ("test_R5_outputs_status_usage_and_log_end_appear_together", Finish, finish_shows_outputs_later),
    ("test_R6_input_that_never_ran_is_kept_and_marked", Finish, finish_drops_the_input),
    ("test_P10_terminal_is_final", Finish, finish_twice),
    ("test_P12_a_queued_run_ends_at_once", Cancel, cancel_drops_the_input),
    ("test_R7_P13_wall_jumps_do_not_reach_leases", Requeue, requeue_takes_living_leases),
    ("test_R9_P15_a_step_that_is_done_stays_done", RecordSteps, record_forgets_what_is_done),
    ("test_R2_P8_P15_a_stale_fence_records_nothing", RecordSteps, record_forgets_the_fence),
    ("test_R9_P16_an_approval_is_spent_once", RecordSteps, record_spends_nothing),
    ("test_R9_P16_of_racing_spenders_one_wins", RecordSteps, record_spends_nothing),
    ("test_R9_steps_stand_in_the_order_they_were_first_recorded", RecordSteps, record_sorts_by_key),
    ("test_R10_a_paused_run_holds_no_lease_and_keeps_its_branch", Pause, pause_keeps_the_lease),
    ("test_R10_a_paused_run_holds_no_lease_and_keeps_its_branch", Pause, pause_lets_go_of_the_branch),
    ("test_R10_new_turns_queue_behind_a_waiting_run", Resolve, resolve_queues_last),
    ("test_R10_a_run_goes_on_when_everything_is_answered", Resolve, resolve_goes_on_too_early),
    ("test_P16_an_approval_counts_for_the_arguments_it_was_asked_with", Resolve, resolve_takes_any_arguments),
    ("test_P10_no_end_leaves_anything_to_answer", Finish, finish_leaves_questions_open),
    ("test_P10_whatever_ends_a_run_ends_its_deadline", Finish, finish_leaves_lines_due),
    ("test_P10_an_ended_runs_log_is_due_to_be_compacted_when_it_was_asked", Finish, finish_never_compacts),
    ("test_P6_compaction_starts_another_epoch_with_a_dense_log", Compact, compact_keeps_the_epoch),
    ("test_P17_merge_joins_the_active_run_at_its_next_step", Drain, drain_loses_the_input),
    ("test_R3_merging_keeps_the_order_of_turns", Drain, drain_takes_all),
    ("test_R3_a_turn_for_another_agent_is_not_taken_in", Drain, drain_takes_all),
    ("test_R8_P28_a_turn_that_its_worker_does_not_see_is_not_taken_in", Drain, drain_takes_all),
    ("test_R3_reject_names_the_active_run_and_writes_nothing", AcceptTurn, accept_always_enqueues),
    ("test_R3_latest_drops_what_waits_and_leaves_the_active_one", AcceptTurn, accept_always_enqueues),
    ("test_R3_interrupt_asks_the_active_run_to_end_and_goes_first", AcceptTurn, accept_interrupts_behind_the_others),
    ("test_R10_interrupt_ends_a_waiting_run_at_once_and_starts", AcceptTurn, accept_always_enqueues),
    ("test_P17_parallel_forks_before_the_active_input", AcceptTurn, accept_forks_at_the_tail),
    ("test_P14_the_same_interrupt_again_interrupts_nobody", AcceptTurn, accept_forgets_the_key),
    ("test_P31_a_session_has_a_bound_of_names", PatchSlots, patch_forgets_removed_names),
]
BROKEN_HANDLES = [
    ("test_B1_a_batch_lands_whole_or_not_at_all", LandsWriteByWrite),
    ("test_B3_P29_a_landed_batch_has_its_leaf_and_a_refused_one_has_none", NeverSawIt),
    ("test_B3_a_batch_lands_once", LandsTwice),
    ("test_B5_every_table_is_claimed_by_a_copy_class", ForgetsTables),
    ("test_S4_the_delta_is_what_changed_since_removals_included", LeavesRemovalsOut),
    ("test_R7_P13_store_time_never_goes_back", LeasesOnTheWall),
    ("test_R10_P13_an_action_expires_on_the_stores_clock_only", LeasesOnTheWall),
    ("test_P13_wall_jumps_do_not_reach_deadlines", LeasesOnTheWall),
    ("test_R10_P28_strangers_neither_see_nor_answer", ShowsQuestionsToAll),
    ("test_P31_a_batch_has_a_bound", TakesAnyBatch),
]


@pytest.mark.parametrize(("name", "write", "wrong"), BROKEN_WRITES, ids=lambda value: getattr(value, "__name__", value))
async def test_a_wrong_write_is_found(name: str, write: type, wrong: Any, tmp_path: Path) -> None:
    await Broken(RamBackend, {}).runs_test(name, tmp_path)
    with pytest.raises((AssertionError, StateroomError)):
        await Broken(RamBackend, {write: wrong}).runs_test(name, tmp_path)


@pytest.mark.parametrize(("name", "backend"), BROKEN_HANDLES, ids=lambda value: getattr(value, "__name__", value))
async def test_a_wrong_handle_is_found(name: str, backend: type[RamBackend], tmp_path: Path) -> None:
    await Broken(RamBackend, {}).runs_test(name, tmp_path)
    with pytest.raises((AssertionError, StateroomError)):
        await Broken(backend, {}).runs_test(name, tmp_path)


@pytest.mark.parametrize("backend", [ShowsBranchesToAll, TellsThatItIsThere])
async def test_C7_P28_a_store_that_gives_strangers_a_sign_is_found(backend: type[RamBackend]) -> None:
    suite = Broken(backend, {})
    with pytest.raises((AssertionError, StateroomError)):
        alice = Actor(RamBackend(suite.shared))
        shown = Actor(backend(suite.shared), alice.scope)
        stranger = Scope("acme", "bob", sees=frozenset({"bob"}))
        await suite.test_C7_R8_P28_a_foreign_id_answers_like_one_that_does_not_exist(shown, stranger)
