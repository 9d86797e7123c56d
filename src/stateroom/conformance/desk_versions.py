"""S11 to S13: versions of desks, checkpoints, rollback, forks, compaction (P18, P25)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stateroom.conformance.kit import OTHER_WORKER, Actor, put, refusal
from stateroom.conformance.slots import does, seen, sets, shows
from stateroom.conformance.suite import Suite
from stateroom.errors import AlreadyExists, Conflict, Gone, InvalidInput, NotFound, StaleFence
from stateroom.limits import FOLLOW_BYTES_MAX
from stateroom.session.model import (
    CompactPast,
    DropCheckpoint,
    EndSession,
    ForkSession,
    MakeCheckpoint,
    PurgeSession,
    RollBack,
    SlotPatch,
)
from stateroom.session.receipts import Compacted, Marked, Opened, RolledBack
from stateroom.session.versions import diff
from stateroom.wire import json


async def at(actor: Actor, session: bytes, version: int) -> dict[str, Any]:
    """The desk as it was."""
    slots = await actor.store.slots_at(actor.scope, session, version)
    return {slot.name: json.decode_trusted(slot.body or b"") for slot in slots}


async def marks(actor: Actor, session: bytes, name: str, **fields: Any) -> Marked:
    return await actor.gets(Marked, MakeCheckpoint(session=session, name=name, by=actor.scope.principal, **fields))


async def goes_back(actor: Actor, session: bytes, **fields: Any) -> RolledBack:
    return await actor.gets(RolledBack, RollBack(session=session, by=actor.scope.principal, **fields))


async def forks_desk(actor: Actor, parent: bytes, **fields: Any) -> bytes:
    write = ForkSession(id=actor.new_id(), parent=parent, owner=actor.scope.principal, **fields)
    return (await actor.gets(Opened, write)).id


async def names(actor: Actor, session: bytes) -> list[tuple[str, int]]:
    return [(known.name, known.version) for known in await actor.store.checkpoints(actor.scope, session, 100)]


class DeskVersionPromises(Suite):
    async def lived(self, alice: Actor) -> bytes:
        """A desk with five versions."""
        session = await alice.opens_session()
        await alice.sets(session, a=1, b=1)
        await alice.sets(session, b=2, c=2)
        await alice.sets(session, a=None)
        await alice.patches(session, put("a", 4), does("n", "counter.add", 4))
        await alice.sets(session, c=None, b=5)
        return session

    STATES: tuple[dict[str, int], ...] = (
        {},
        {"a": 1, "b": 1},
        {"a": 1, "b": 2, "c": 2},
        {"b": 2, "c": 2},
        {"a": 4, "b": 2, "c": 2, "n": 4},
        {"a": 4, "b": 5, "n": 4},
    )

    async def test_S11_every_version_is_read_as_it_was(self, alice: Actor, beside: Actor) -> None:
        session = await self.lived(alice)
        for version, state in enumerate(self.STATES):
            assert await at(beside, session, version) == state
        for unknown in (-1, 6):
            error = await refusal(at(alice, session, unknown))
            assert (type(error), error.reason) == (InvalidInput, "version_unknown")

    async def test_S11_what_differs_between_versions(self, alice: Actor) -> None:
        session = await self.lived(alice)
        old, new = [await alice.store.slots_at(alice.scope, session, version) for version in (2, 4)]
        changes = [(change.name, change.before is None, change.after is None) for change in diff(old, new)]
        assert changes == [("a", False, False), ("n", True, False)]
        assert diff(new, new) == []

    # ── checkpoints ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_S11_a_checkpoint_names_a_version(self, alice: Actor) -> None:
        session = await self.lived(alice)
        made = await marks(alice, session, "spec agreed", version=2, agent="planner", run=b"r" * 16, branch=b"b" * 16, seq=7)
        assert (made.checkpoint.version, made.checkpoint.by, made.checkpoint.at) == (2, "alice", self.clock.wall_ms())
        await marks(alice, session, "now")
        assert await names(alice, session) == [("now", 5), ("spec agreed", 2)]
        assert (await alice.store.checkpoints(alice.scope, session, 100))[1] == made.checkpoint
        assert (await marks(alice, session, "now")).checkpoint.version == 5
        await alice.sets(session, z=1)
        error = await refusal(marks(alice, session, "now"))
        assert (type(error), error.reason) == (AlreadyExists, "checkpoint_exists")
        for bad in ("", ".turn/1", "x" * 65):
            assert isinstance(await refusal(marks(alice, session, bad)), InvalidInput)

    async def test_S11_a_dropped_checkpoint_is_none(self, alice: Actor) -> None:
        session = await self.lived(alice)
        await marks(alice, session, "now")
        await alice.does(DropCheckpoint(session=session, name="now"))
        assert await names(alice, session) == []
        for act in (alice.does(DropCheckpoint(session=session, name="now")), goes_back(alice, session, checkpoint="now")):
            error = await refusal(act)
            assert (type(error), error.reason) == (NotFound, "checkpoint_missing")

    # ── rollback ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_S12_P18_a_rollback_is_a_new_version_equal_to_an_old_one(self, alice: Actor, beside: Actor) -> None:
        session = await self.lived(alice)
        for version, state in enumerate(self.STATES):
            before = await alice.desk(session)
            done = await goes_back(beside, session, version=version)
            assert (done.version, done.to) == (6 + version, version)
            assert await alice.desk(session) == await at(alice, session, version) == state
            assert (done.undone.name, done.undone.version) == (f".undone/{5 + version}", 5 + version)
            assert await at(alice, session, done.undone.version) == before
        for version, state in enumerate(self.STATES):
            assert await at(alice, session, version) == state, "nothing is rewritten"

    async def test_S12_P18_what_a_rollback_undid_can_be_gone_back_to(self, alice: Actor) -> None:
        session = await self.lived(alice)
        await marks(alice, session, "good", version=2)
        done = await goes_back(alice, session, checkpoint="good")
        assert await alice.desk(session) == self.STATES[2]
        await goes_back(alice, session, checkpoint=done.undone.name)
        assert await alice.desk(session) == self.STATES[5]
        assert ("good", 2) in await names(alice, session)

    async def test_S12_P18_only_what_changed_is_touched_and_told(self, alice: Actor) -> None:
        session = await self.lived(alice)
        done = await goes_back(alice, session, version=4)
        assert {slot.name for slot in done.slots} == {"b", "c"}
        assert await alice.desk(session, since=5) == {"b": 2, "c": 2}
        slots = {slot.name: slot for slot in await alice.store.slots(alice.scope, session)}
        assert [slots[name].version for name in "abcn"] == [4, 6, 6, 4]

    async def test_S12_P32_what_comes_back_is_trusted_as_it_was(self, alice: Actor) -> None:
        session = await alice.opens_session()
        await alice.patches(session, sets("page", "value", 1, origin="tool"))
        await alice.sets(session, page=2)
        await goes_back(alice, session, version=1)
        (slot,) = await alice.store.slots(alice.scope, session)
        assert (slot.origin, slot.trust, slot.by) == ("tool", 20, "alice")

    async def test_S12_a_rollback_has_preconditions(self, alice: Actor) -> None:
        session = await self.lived(alice)
        error = await refusal(goes_back(alice, session, version=1, expected_version=4))
        assert (type(error), error.reason, error.facts) == (Conflict, "version_conflict", {"version": 5})
        assert (await refusal(goes_back(alice, session))).reason == "rollback_nowhere"
        assert await names(alice, session) == []

    async def test_S5_P8_a_stale_fence_rolls_nothing_back(self, alice: Actor) -> None:
        conversation = await alice.opens_conversation()
        run = (await alice.asks(conversation, "work", session=alice.new_id())).run
        await alice.patches(run.session, put("size", 43), run=run.id, fence=run.fence)
        await alice.claims(await alice.requeues(run), OTHER_WORKER)
        error = await refusal(goes_back(alice, run.session, version=0, run=run.id, fence=run.fence))
        assert isinstance(error, StaleFence)
        assert await alice.desk(run.session) == {"size": 43}

    async def test_S9_S12_a_rollback_leaves_windows_alone(self, alice: Actor) -> None:
        session, now = await alice.opens_session(), alice.store.now()
        await alice.sets(session, size=43)
        await alice.patches(session, sets("lidar", "window", {"seconds": 30}))
        await alice.patches(session, seen("lidar", (now, b"a")), put("size", 44))
        await goes_back(alice, session, version=1)
        assert (await alice.desk(session))["size"] == 43
        assert await shows(alice, session, "lidar") == [b"a"]

    # ── forks ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_S13_a_fork_begins_as_the_desk_was_and_goes_its_own_way(self, alice: Actor, beside: Actor) -> None:
        session = await self.lived(alice)
        for version, state in enumerate(self.STATES):
            fork = await forks_desk(beside, session, version=version)
            assert await alice.desk(fork) == await at(alice, fork, version) == state
            assert await alice.sets(fork, b="mine", z=1) == version + 1
            assert await alice.desk(fork) == {**state, "b": "mine", "z": 1}
            assert await alice.desk(fork, since=version) == {"b": "mine", "z": 1}
        assert await alice.desk(session) == self.STATES[5]
        await alice.sets(session, a="theirs")
        assert (await alice.desk(fork))["a"] == 4
        assert (await alice.store.session(alice.scope, fork)).lineage == session

    async def test_S13_a_forks_slots_have_the_versions_of_its_parents(self, alice: Actor) -> None:
        session = await self.lived(alice)
        fork = await forks_desk(alice, session)
        assert await alice.store.slots(alice.scope, fork, 2) == await alice.store.slots(alice.scope, session, 2)
        await alice.patches(fork, put("b", 6, expected=5), put("c", 6, expected=0), put("new", 6, expected=0))
        assert isinstance(await refusal(alice.patches(fork, put("a", 7, expected=1))), Conflict)
        past = await alice.store.past(alice.scope, fork, "b", 10)
        assert [(slot.version, slot.body) for slot in past] == [(5, b"5"), (2, b"2"), (1, b"1")]
        await alice.sets(fork, a=None)
        assert "a" not in await alice.desk(fork)
        assert (await alice.desk(session))["a"] == 4

    async def test_S13_forks_of_forks_show_what_they_stand_on(self, alice: Actor) -> None:
        session = await self.lived(alice)
        first = await forks_desk(alice, session, version=2)
        await alice.sets(first, b="first")
        second = await forks_desk(alice, first)
        await alice.sets(first, b="later")
        await alice.sets(second, c="second")
        third = await forks_desk(alice, second, version=1)
        assert await alice.desk(second) == {"a": 1, "b": "first", "c": "second"}
        assert [await at(alice, second, version) for version in (1, 2, 3)] == [*self.STATES[1:3], {"a": 1, "b": "first", "c": 2}]
        assert await alice.desk(third) == self.STATES[1]
        assert (await alice.store.session(alice.scope, third)).parent == session, "the nearest that owns the version"
        await goes_back(alice, second, version=1)
        assert await alice.desk(second) == self.STATES[1]

    async def test_S13_a_fork_shows_its_parents_checkpoints(self, alice: Actor) -> None:
        session = await self.lived(alice)
        await marks(alice, session, "early", version=1)
        await marks(alice, session, "late", version=5)
        fork = await forks_desk(alice, session, version=4)
        assert await names(alice, fork) == [("early", 1)]
        await goes_back(alice, fork, checkpoint="early")
        assert await alice.desk(fork) == self.STATES[1]
        assert (await refusal(marks(alice, fork, "older", version=2))).reason == "version_of_parent"

    async def test_S13_P25_a_fork_writes_the_same_rows_whatever_lies_there(self, alice: Actor, place: Path) -> None:
        written = []
        for slots in (2, 200):
            session = await alice.opens_session()
            await alice.sets(session, **{f"s{n}": n for n in range(slots)})
            before = self.rows(place)
            await forks_desk(alice, session)
            after = self.rows(place)
            written.append({name: after[name] - before[name] for name in after if after[name] != before[name]})
        assert written[0] == written[1]
        assert sum(written[0].values()) <= 3

    async def test_S13_a_fork_bounds_its_names_with_its_parents(self, alice: Actor) -> None:
        session = await alice.opens_session()
        for start in range(0, 4096, 256):
            await alice.sets(session, **{f"s{n}": n for n in range(start, start + 256)})
        fork = await forks_desk(alice, session)
        assert (await refusal(alice.sets(fork, one_more=1))).reason == "too_many_slots"
        await alice.sets(fork, s1="mine")

    async def test_S9_S13_a_fork_keeps_a_window_that_its_parent_removes(self, alice: Actor, beside: Actor) -> None:
        session, now = await alice.opens_session(), alice.store.now()
        before = await alice.patches(session, sets("lidar", "window", {"seconds": 30}))
        fork = await forks_desk(alice, session)
        await alice.patches(session, SlotPatch(name="lidar", kind="window", body=None))
        assert [*await beside.desk(fork)] == [*await alice.desk(fork)] == [*await at(alice, session, before)] == ["lidar"]
        await alice.patches(fork, seen("lidar", (now, b"mine")))
        assert await shows(alice, fork, "lidar") == [b"mine"]

    async def test_S9_S13_a_fork_sees_of_a_window_what_was_there(self, alice: Actor) -> None:
        session, now = await alice.opens_session(), alice.store.now()
        await alice.patches(session, sets("lidar", "window", {"seconds": 30}))
        await alice.patches(session, seen("lidar", (now, b"a")))
        fork = await forks_desk(alice, session)
        self.clock.advance(1000)
        await alice.patches(session, seen("lidar", (now + 100, b"theirs")))
        assert await shows(alice, fork, "lidar") == [b"a"]
        await alice.patches(fork, seen("lidar", (now + 200, b"mine")))
        assert await shows(alice, fork, "lidar") == [b"a", b"mine"]
        assert await shows(alice, session, "lidar") == [b"a", b"theirs"]

    # ── what goes ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def compacts_past(self, alice: Actor, session: bytes, before: int) -> int:
        return (await alice.gets(Compacted, CompactPast(session=session, before=before))).dropped

    async def test_S11_compaction_keeps_what_has_a_name(self, alice: Actor) -> None:
        session = await self.lived(alice)
        await marks(alice, session, "good", version=1)
        await forks_desk(alice, session, version=2)
        await marks(alice, session, ".turn/1", version=3, kind="turn")
        assert await self.compacts_past(alice, session, 5) > 0
        for version in (1, 2, 5):
            assert await at(alice, session, version) == self.STATES[version]
        for version in (0, 3, 4):
            error = await refusal(at(alice, session, version))
            assert (type(error), error.reason, error.facts) == (Gone, "version_not_kept", {"kept_from": 5})
        assert [name for name, _ in await names(alice, session) if not name.startswith(".fork")] == ["good"]
        assert (await refusal(goes_back(alice, session, version=3))).reason == "version_not_kept"
        await goes_back(alice, session, checkpoint="good")
        assert await alice.desk(session) == self.STATES[1]
        assert await self.compacts_past(alice, session, 5) == 0

    async def test_S11_compaction_drops_what_nobody_can_ask_for(self, alice: Actor, place: Path) -> None:
        session = await alice.opens_session()
        for n in range(20):
            await alice.sets(session, word=f"unspeakable-{n}")
        dropped = await self.compacts_past(alice, session, 20)
        assert dropped == 19
        assert [slot.version for slot in await alice.store.past(alice.scope, session, "word", 30)] == []
        assert await alice.desk(session) == {"word": "unspeakable-19"}

    async def test_S11_what_only_a_name_kept_goes_with_the_last_name(self, alice: Actor) -> None:
        session = await alice.opens_session()
        for n in range(1, 10):
            await alice.patches(session, put("word", n), put("still", 1) if n == 1 else put("other", n))
        for name, version in (("three", 3), ("also three", 3), ("six", 6)):
            await marks(alice, session, name, version=version)

        async def left() -> list[int]:
            await self.compacts_past(alice, session, 9)
            return [slot.version for slot in await alice.store.past(alice.scope, session, "word", 30)]

        found = [await left()]
        for name in ("three", "also three", "six"):
            await alice.does(DropCheckpoint(session=session, name=name))
            found.append(await left())
        assert found == [[6, 3], [6, 3], [6], []]
        assert await alice.desk(session) == await at(alice, session, 9) == {"word": 9, "still": 1, "other": 9}

    async def test_S11_what_goes_bit_by_bit_leaves_whole_versions(self, alice: Actor) -> None:
        session, states = await alice.opens_session(), list[dict[str, int]]([{}])
        for n in range(1, 13):
            changed = {name: n for name in ("a", "b", "c")[: n % 3 + 1]}
            await alice.sets(session, **changed)
            states.append({**states[-1], **changed})
        await marks(alice, session, "five", version=5)
        more, dropped, kept_from = True, 0, 0
        while more:
            done = await alice.gets(Compacted, CompactPast(session=session, before=11, limit=4))
            more, dropped = done.more, dropped + done.dropped
            before, kept_from = kept_from, (await alice.store.session(alice.scope, session)).kept_from
            assert before < kept_from
            assert 0 < done.dropped <= 6
            for version in (5, *range(kept_from, 13)):
                assert await at(alice, session, version) == states[version]
        assert kept_from == 11
        past = [slot.version for name in "abc" for slot in await alice.store.past(alice.scope, session, name, 30)]
        assert (sorted(past), dropped) == ([5, 5, 5, 11], 17), "what five, eleven and twelve show, and nothing else"

    async def test_S13_compaction_of_a_parent_leaves_its_forks_whole(self, alice: Actor) -> None:
        session = await self.lived(alice)
        fork = await forks_desk(alice, session, version=2)
        assert (
            await refusal(alice.does(DropCheckpoint(session=session, name=f".fork/{fork.hex()}")))
        ).reason == "checkpoint_held"
        await self.compacts_past(alice, session, 5)
        assert await alice.desk(fork) == self.STATES[2]
        assert (await refusal(at(alice, fork, 1))).reason == "version_not_kept"

    async def test_S13_a_name_goes_and_the_fork_that_was_made_by_it_stays_whole(self, alice: Actor) -> None:
        session = await self.lived(alice)
        await alice.does(MakeCheckpoint(session=session, name="here", by="alice", version=2))
        fork = await forks_desk(alice, session, version=2)
        await alice.does(DropCheckpoint(session=session, name="here"))
        await self.compacts_past(alice, session, 5)
        assert await alice.desk(fork) == self.STATES[2]
        assert "here" not in [name for name, _ in await names(alice, fork)]

    @pytest.mark.parametrize("end", ["ended", "expired"])
    async def test_S13_a_fork_outlives_its_parent(self, alice: Actor, end: str) -> None:
        session = await self.lived(alice)
        fork = await forks_desk(alice, session, version=2)
        if end == "ended":
            await alice.does(EndSession(session=session))
        else:
            assert isinstance(await refusal(alice.does(PurgeSession(session=session))), Conflict)
        assert await alice.desk(fork) == self.STATES[2]

    # ── told one by one ─────────────────────────────────────────────────────────────────────────────────────────────

    async def test_S16_every_version_is_told_once_from_any_version_on(self, alice: Actor) -> None:
        session, told = await self.lived(alice), dict[int, dict[str, bytes | None]]()
        head = (await alice.store.session(alice.scope, session)).version
        for start in range(head + 1):
            after = start
            while after < head:
                page = await alice.store.told(alice.scope, session, after=after, limit=2)
                assert (page.after, page.head) == (after, head)
                assert after < page.until <= min(head, after + 2)
                for version in range(after + 1, page.until + 1):
                    seen = {slot.name: slot.body for slot in page.slots if slot.version == version}
                    assert told.setdefault(version, seen) == seen
                after = page.until
            assert (await alice.store.told(alice.scope, session, after=head, limit=2)).slots == ()
        assert told[1] == {"a": b"1", "b": b"1"}
        assert told[2] == {"b": b"2", "c": b"2"}
        assert told[3] == {"a": None}
        error = await refusal(alice.store.told(alice.scope, session, after=head + 1, limit=2))
        assert error.reason == "version_unknown"

    async def test_S16_a_fork_tells_its_own_and_a_page_is_bounded(self, alice: Actor) -> None:
        session = await self.lived(alice)
        fork = await forks_desk(alice, session)
        base = (await alice.store.session(alice.scope, fork)).version
        for n in range(3):
            await alice.sets(fork, large="x" * FOLLOW_BYTES_MAX, m=n)
        page = await alice.store.told(alice.scope, fork, after=base, limit=100)
        assert (page.until, [slot.name for slot in page.slots]) == (base + 1, ["large", "m"])
        rest = await alice.store.told(alice.scope, fork, after=page.until, limit=100)
        assert rest.until == base + 2
        assert isinstance(await refusal(alice.store.told(alice.scope, fork, after=base - 1, limit=1)), Gone)
