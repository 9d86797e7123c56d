"""Each promise of desks goes red on a ram store that breaks it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from stateroom.backends.ram import desk_life, desk_rows, desk_versions, session
from stateroom.backends.ram.backend import RamBackend
from stateroom.backends.ram.store import Transaction
from stateroom.batch import Receipt
from stateroom.errors import StateroomError
from stateroom.principal import Scope
from stateroom.session import window
from stateroom.session.model import (
    CompactPast,
    EndSession,
    Entry,
    Expire,
    ForkSession,
    HoldDesk,
    MakeCheckpoint,
    PatchSlots,
    PurgeSession,
    RollBack,
    Slot,
    Told,
    TouchSession,
)
from tests.conformance.test_red import Broken

pytestmark = pytest.mark.anyio


def each(write: PatchSlots, **fields: Any) -> PatchSlots:
    return replace(write, patches=tuple(replace(patch, **fields) for patch in write.patches))


def patch_sets_instead(tx: Transaction, write: PatchSlots) -> Receipt:
    return session.patch_slots(tx, replace(write, patches=tuple(replace(patch, op="") for patch in write.patches)))


def patch_expects_nothing(tx: Transaction, write: PatchSlots) -> Receipt:
    return session.patch_slots(tx, each(write, expected=None))


def patch_looks_at_nothing(tx: Transaction, write: PatchSlots) -> Receipt:
    return session.patch_slots(tx, replace(write, seen=()))


def patch_knows_no_schema(tx: Transaction, write: PatchSlots) -> Receipt:
    return session.patch_slots(tx, each(write, schema=""))


def patch_believes_the_claim(tx: Transaction, write: PatchSlots) -> Receipt:
    receipt = session.patch_slots(tx, write)
    for patch in write.patches:
        key = (tx.tenant, write.session, patch.name)
        slot = tx.tables.slots.get(key)
        assert slot is not None
        tx.tables.slots.put(key, replace(slot, trust=patch.trust))
    return receipt


def patch_forgets_sources(tx: Transaction, write: PatchSlots) -> Receipt:
    return session.patch_slots(tx, each(write, sources=()))


def patch_lets_go_too_early(tx: Transaction, write: PatchSlots) -> Receipt:
    receipt = session.patch_slots(tx, write)
    for key, rows in list(tx.tables.entries.pairs()):
        tx.tables.entries.put(key, rows[-2:])
    return receipt


def patch_takes_any_epoch(tx: Transaction, write: PatchSlots) -> Receipt:
    return session.patch_slots(tx, each(write, epoch=None))


def patch_does_not_renew(tx: Transaction, write: PatchSlots) -> Receipt:
    before = tx.tables.sessions.get((tx.tenant, write.session))
    receipt = session.patch_slots(tx, write)
    now = tx.tables.sessions.get((tx.tenant, write.session))
    assert before is not None
    assert now is not None
    tx.put_session(replace(now, expires_at=before.expires_at))
    return receipt


def rollback_keeps_what_came_later(tx: Transaction, write: RollBack) -> Receipt:
    kept = {key: slot for key, slot in tx.tables.slots.pairs() if key[1] == write.session}
    receipt = desk_versions.roll_back(tx, write)
    for key, slot in kept.items():
        now = tx.tables.slots.get(key)
        if now is not None and now.body is None:
            tx.tables.slots.put(key, slot)
    return receipt


def rollback_rewrites(tx: Transaction, write: RollBack) -> Receipt:
    receipt = desk_versions.roll_back(tx, write)
    for slot in receipt.slots:
        tx.tables.past_slots.put((tx.tenant, write.session, slot.name), ())
    return receipt


def rollback_leaves_no_name(tx: Transaction, write: RollBack) -> Receipt:
    receipt = desk_versions.roll_back(tx, write)
    tx.tables.checkpoints.drop((tx.tenant, write.session))
    return receipt


def rollback_trusts_who_goes_back(tx: Transaction, write: RollBack) -> Receipt:
    receipt = desk_versions.roll_back(tx, write)
    for slot in receipt.slots:
        tx.tables.slots.put((tx.tenant, write.session, slot.name), replace(slot, trust=60))
    return receipt


def rollback_expects_nothing(tx: Transaction, write: RollBack) -> Receipt:
    return desk_versions.roll_back(tx, replace(write, expected_version=None))


def rollback_forgets_the_fence(tx: Transaction, write: RollBack) -> Receipt:
    return desk_versions.roll_back(tx, replace(write, fence=0))


def rollback_keeps_the_epoch(tx: Transaction, write: RollBack) -> Receipt:
    receipt = desk_versions.roll_back(tx, write)
    for slot in receipt.slots:
        tx.tables.slots.put((tx.tenant, write.session, slot.name), replace(slot, epoch=1))
    return receipt


def fork_copies(tx: Transaction, write: ForkSession) -> Receipt:
    receipt = desk_versions.fork_session(tx, write)
    fork = desk_rows.see_session(tx, write.id)
    for name, slot in desk_rows.slots_of(tx, fork).items():
        tx.tables.slots.put((tx.tenant, fork.id, name), slot)
    return receipt


def fork_follows_its_parent(tx: Transaction, write: ForkSession) -> Receipt:
    receipt = desk_versions.fork_session(tx, write)
    fork = desk_rows.see_session(tx, write.id)
    tx.put_session(replace(fork, base=fork.base + 1, version=fork.version + 1))
    return receipt


def fork_holds_nothing(tx: Transaction, write: ForkSession) -> Receipt:
    receipt = desk_versions.fork_session(tx, write)
    for key, known in list(tx.tables.checkpoints.pairs()):
        tx.tables.checkpoints.put(key, tuple(one for one in known if one.kind != "fork"))
    return receipt


def fork_begins_anew(tx: Transaction, write: ForkSession) -> Receipt:
    receipt = desk_versions.fork_session(tx, write)
    tx.put_session(replace(desk_rows.see_session(tx, write.id), dies_at=0, expires_at=0))
    return receipt


def compaction_forgets_names(tx: Transaction, write: CompactPast) -> Receipt:
    head = desk_rows.see_session(tx, write.session)
    tx.tables.checkpoints.drop((tx.tenant, head.id))
    return desk_versions.compact_past(tx, write)


def compaction_only_says_so(tx: Transaction, write: CompactPast) -> Receipt:
    head = desk_rows.see_session(tx, write.session)
    receipt = desk_versions.compact_past(tx, replace(write, before=0))
    tx.put_session(replace(head, kept_from=write.before))
    return receipt


def checkpoint_moves(tx: Transaction, write: MakeCheckpoint) -> Receipt:
    known = desk_rows.checkpoints_of(tx, write.session)
    tx.tables.checkpoints.put((tx.tenant, write.session), tuple(one for one in known if one.name != write.name))
    return desk_versions.make_checkpoint(tx, write)


def touch_goes_past_the_maximum(tx: Transaction, write: PatchSlots) -> Receipt:
    receipt = session.patch_slots(tx, write)
    now = desk_rows.see_session(tx, write.session)
    tx.put_session(replace(now, expires_at=tx.now + now.ttl_ms))
    return receipt


def touch_does_nothing(tx: Transaction, write: TouchSession) -> Receipt:
    before = desk_rows.see_session(tx, write.session)
    receipt = desk_life.touch_session(tx, write)
    tx.put_session(before)
    return receipt


def expiry_believes_its_line(tx: Transaction, write: Expire) -> Receipt:
    head = tx.tables.sessions.get((tx.tenant, write.session))
    assert head is not None
    tx.put_session(replace(head, expires_at=min(head.expires_at, tx.now)))
    return desk_life.expire(tx, write)


def expiry_is_left_alone(tx: Transaction, write: Expire) -> Receipt:
    receipt = desk_life.expire(tx, write)
    tx.tables.due.drop((tx.tenant, write.session, "expire"))
    return receipt


def purge_only_says_so(tx: Transaction, write: PurgeSession) -> Receipt:
    rows = [(table, list(table.pairs())) for table in (tx.tables.slots, tx.tables.past_slots, tx.tables.entries)]
    receipt = desk_life.purge_session(tx, write)
    for table, pairs in rows:
        for key, row in pairs:
            table.put(key, row)
    return receipt


def purge_takes_forks_along(tx: Transaction, write: PurgeSession) -> Receipt:
    tx.tables.checkpoints.drop((tx.tenant, write.session))
    return desk_life.purge_session(tx, write)


class ShowsTheFuture(RamBackend):
    async def entries(self, scope: Scope, session: bytes, name: str, *, as_of: int | None, limit: int) -> list[Entry]:
        with self._read(scope) as reader:
            head = desk_rows.see_session(reader, session)
            slot = desk_rows.slot_of(reader, head, name)
            assert slot is not None
            found = desk_rows.entries_of(reader, head, slot)
            return window.seen(window.of(slot.body), found, at=2**60 if as_of is None else as_of + 1000, limit=limit)


class ShowsTheExpired(RamBackend):
    async def slots(self, scope: Scope, session: bytes, since: int = 0) -> list[Slot]:
        with self._read(scope) as reader:
            head = reader.tables.sessions.get((scope.tenant, session))
            return [] if head is None else list(desk_rows.slots_of(reader, head).values())


class ExpiresOnTheWall(RamBackend):
    async def slots(self, scope: Scope, session: bytes, since: int = 0) -> list[Slot]:
        with self._read(scope) as reader:
            reader.now = self.clock.wall_ms()
            return session_slots(reader, session, since)


session_slots = session.slots


class ShowsTheNewest(RamBackend):
    async def slots_at(self, scope: Scope, session: bytes, version: int) -> list[Slot]:
        await super().slots_at(scope, session, version)
        return await self.slots(scope, session)


def patch_asks_no_rules(tx: Transaction, write: PatchSlots) -> Receipt:
    return session.patch_slots(tx, replace(write, agent=""))


def patch_looks_at_no_hands(tx: Transaction, write: PatchSlots) -> Receipt:
    return session.patch_slots(tx, replace(write, hold=0))


def rollback_asks_no_rules(tx: Transaction, write: RollBack) -> Receipt:
    return desk_versions.roll_back(tx, replace(write, agent="", hold=0))


def hands_take_what_others_hold(tx: Transaction, write: HoldDesk) -> Receipt:
    head = desk_rows.see_session(tx, write.session)
    tx.put_session(replace(head, holder=""))
    return desk_life.hold_desk(tx, write)


def hands_keep_their_fence(tx: Transaction, write: HoldDesk) -> Receipt:
    before = desk_rows.see_session(tx, write.session)
    receipt = desk_life.hold_desk(tx, write)
    tx.put_session(replace(desk_rows.see_session(tx, write.session), hold=before.hold or 1))
    return receipt


class TellsTheNewestOnly(RamBackend):
    """Of what changed twice since, the first time is not told."""

    async def told(self, scope: Scope, session: bytes, *, after: int, limit: int) -> Told:
        page = await super().told(scope, session, after=after, limit=limit)
        newest = {slot.name: slot for slot in page.slots}
        return replace(page, slots=tuple(slot for slot in page.slots if newest[slot.name] is slot))


class TellsWithoutEnd(RamBackend):
    """A page as long as there is something."""

    async def told(self, scope: Scope, session: bytes, *, after: int, limit: int) -> Told:
        page = await super().told(scope, session, after=after, limit=limit)
        while page.until < page.head:
            more = await super().told(scope, session, after=page.until, limit=limit)
            page = replace(more, after=after, slots=(*page.slots, *more.slots))
        return page


def expiry_forgets_the_lost(tx: Transaction, write: Expire) -> Receipt:
    head = tx.tables.sessions.get((tx.tenant, write.session))
    assert head is not None
    tx.put_session(replace(head, status="active" if head.status == "lost" else head.status))
    return desk_life.expire(tx, write)


def end_takes_only_the_living(tx: Transaction, write: EndSession) -> Receipt:
    desk_rows.see_session(tx, write.session)
    return desk_life.end_session(tx, write)


class LosesQuietly(Broken):
    """What was lost looks as if it had never been there."""

    async def lose(self, place: Path) -> None:
        await super().lose(place)
        for key, row in list(self.shared.tables.sessions.pairs()):
            self.shared.tables.sessions.put(key, replace(row, status="active" if row.status == "lost" else row.status))


class LosesHalf(LosesQuietly):
    """The heads are there, and what lies on some desks."""

    async def lose(self, place: Path) -> None:
        kept = list(self.shared.tables.slots.pairs())
        await super().lose(place)
        for key, row in kept:
            self.shared.tables.slots.put(key, row)


class LosesWhatIsDurable(Broken):
    async def lose(self, place: Path) -> None:
        for key, row in list(self.shared.tables.sessions.pairs()):
            self.shared.tables.sessions.put(key, replace(row, durability="ephemeral"))
        await super().lose(place)


LOSSES = [
    ("test_S19_what_is_lost_is_said_by_every_read", LosesQuietly),
    ("test_S19_what_is_lost_is_said_by_every_read", LosesHalf),
    ("test_S19_what_is_lost_is_said_by_every_read", LosesWhatIsDurable),
    ("test_S19_what_is_lost_is_said_by_every_write_until_it_is_ended", LosesQuietly),
    ("test_S19_a_turn_is_not_begun_on_a_desk_that_is_lost", LosesQuietly),
    ("test_S19_a_turn_under_way_is_told_at_its_claim_and_at_its_end", LosesQuietly),
    ("test_S19_forks_are_lost_with_what_they_stand_on", LosesQuietly),
    ("test_S19_P23_a_lost_desk_says_so_for_another_time_to_live_and_then_it_goes", LosesQuietly),
]


@pytest.mark.parametrize(("name", "suite"), LOSSES, ids=lambda value: getattr(value, "__name__", value))
async def test_a_wrong_loss_is_found(name: str, suite: type[Broken], tmp_path: Path) -> None:
    await Broken(RamBackend, {}).runs_test(name, tmp_path)
    with pytest.raises((AssertionError, StateroomError)):
        await suite(RamBackend, {}).runs_test(name, tmp_path)


BROKEN_WRITES = [
    ("test_S19_P23_a_lost_desk_says_so_for_another_time_to_live_and_then_it_goes", Expire, expiry_forgets_the_lost),
    ("test_S19_what_is_lost_is_said_by_every_write_until_it_is_ended", EndSession, end_takes_only_the_living),
    ("test_S17_an_agent_changes_what_it_may_and_nothing_is_half_written", PatchSlots, patch_asks_no_rules),
    ("test_S17_an_agent_changes_what_it_may_and_nothing_is_half_written", RollBack, rollback_asks_no_rules),
    ("test_S18_P8_a_desk_is_in_one_pair_of_hands_and_a_stale_one_writes_nothing", PatchSlots, patch_looks_at_no_hands),
    ("test_S18_P8_a_desk_is_in_one_pair_of_hands_and_a_stale_one_writes_nothing", RollBack, rollback_asks_no_rules),
    ("test_S18_P8_a_desk_is_in_one_pair_of_hands_and_a_stale_one_writes_nothing", HoldDesk, hands_take_what_others_hold),
    ("test_S18_P8_a_desk_is_in_one_pair_of_hands_and_a_stale_one_writes_nothing", HoldDesk, hands_keep_their_fence),
    ("test_S1_P21_sixteen_writers_see_one_register", PatchSlots, patch_expects_nothing),
    ("test_S2_what_was_only_read_can_be_guarded", PatchSlots, patch_looks_at_nothing),
    ("test_S8_additions_of_many_writers_all_count", PatchSlots, patch_sets_instead),
    ("test_S9_a_window_keeps_its_bytes", PatchSlots, patch_lets_go_too_early),
    ("test_S10_what_breaks_a_schema_is_refused_with_path_and_reason", PatchSlots, patch_knows_no_schema),
    ("test_S15_P32_trust_follows_from_the_origin_and_not_from_the_claim", PatchSlots, patch_believes_the_claim),
    ("test_S15_P32_what_is_made_from_something_is_trusted_no_more_than_that", PatchSlots, patch_forgets_sources),
    ("test_P22_a_new_epoch_has_no_past_and_takes_no_update_of_an_old_one", PatchSlots, patch_takes_any_epoch),
    ("test_P18_P22_a_document_that_was_rolled_back_begins_a_new_epoch", RollBack, rollback_keeps_the_epoch),
    ("test_S11_a_checkpoint_names_a_version", MakeCheckpoint, checkpoint_moves),
    ("test_S11_compaction_keeps_what_has_a_name", CompactPast, compaction_forgets_names),
    ("test_S11_compaction_drops_what_nobody_can_ask_for", CompactPast, compaction_only_says_so),
    ("test_S12_P18_a_rollback_is_a_new_version_equal_to_an_old_one", RollBack, rollback_keeps_what_came_later),
    ("test_S12_P18_a_rollback_is_a_new_version_equal_to_an_old_one", RollBack, rollback_rewrites),
    ("test_S12_P18_what_a_rollback_undid_can_be_gone_back_to", RollBack, rollback_leaves_no_name),
    ("test_S12_P32_what_comes_back_is_trusted_as_it_was", RollBack, rollback_trusts_who_goes_back),
    ("test_S12_a_rollback_has_preconditions", RollBack, rollback_expects_nothing),
    ("test_S5_P8_a_stale_fence_rolls_nothing_back", RollBack, rollback_forgets_the_fence),
    ("test_S13_P25_a_fork_writes_the_same_rows_whatever_lies_there", ForkSession, fork_copies),
    ("test_S13_a_fork_begins_as_the_desk_was_and_goes_its_own_way", ForkSession, fork_follows_its_parent),
    ("test_S13_compaction_of_a_parent_leaves_its_forks_whole", ForkSession, fork_holds_nothing),
    ("test_S13_P23_a_purge_spares_what_a_fork_shows", PurgeSession, purge_takes_forks_along),
    ("test_S14_nothing_renews_beyond_the_maximum", ForkSession, fork_begins_anew),
    ("test_S14_nothing_renews_beyond_the_maximum", PatchSlots, touch_goes_past_the_maximum),
    ("test_S14_an_interaction_renews_and_a_read_does_not", PatchSlots, patch_does_not_renew),
    ("test_S14_an_interaction_renews_and_a_read_does_not", TouchSession, touch_does_nothing),
    ("test_S14_a_desk_is_due_when_its_time_comes", Expire, expiry_believes_its_line),
    ("test_S14_a_desk_is_due_when_its_time_comes", Expire, expiry_is_left_alone),
    ("test_P23_a_purge_leaves_nothing_but_the_head", PurgeSession, purge_only_says_so),
]
BROKEN_HANDLES = [
    ("test_S16_every_version_is_told_once_from_any_version_on", TellsTheNewestOnly),
    ("test_S16_a_fork_tells_its_own_and_a_page_is_bounded", TellsWithoutEnd),
    ("test_S9_a_window_is_read_as_of_a_time_and_never_past_it", ShowsTheFuture),
    ("test_S11_every_version_is_read_as_it_was", ShowsTheNewest),
    ("test_S14_P23_expired_is_gone_at_once_whether_it_was_swept_or_not", ShowsTheExpired),
    ("test_S14_P13_jumps_of_the_wall_neither_expire_nor_revive", ExpiresOnTheWall),
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
