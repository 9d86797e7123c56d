"""S8 to S10 and S15: slots of every kind, their schemas, and how far they are trusted."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from stateroom.conformance.kit import Actor, put, refusal
from stateroom.conformance.suite import Suite
from stateroom.errors import Conflict, InvalidInput, LimitExceeded, NotFound
from stateroom.limits import JSON_INT_MAX
from stateroom.session.model import NewEntry, PatchSlots, Slot, SlotKind, SlotPatch
from stateroom.session.receipts import Patched
from stateroom.wire import json

SIZES = '{"type": "object", "properties": {"size": {"type": "integer", "minimum": 30}}}'


def does(name: str, how: str, operand: Any, **fields: Any) -> SlotPatch:
    """An operation on a slot: "counter.add"."""
    kind, op = how.split(".")
    return SlotPatch(name=name, kind=cast(SlotKind, kind), op=op, body=json.encode(operand), **fields)


def sets(name: str, kind: SlotKind, value: Any, **fields: Any) -> SlotPatch:
    return SlotPatch(name=name, kind=kind, body=json.encode(value), **fields)


def seen(name: str, *entries: tuple[int, bytes]) -> SlotPatch:
    """Entries for a window, each with its time."""
    new = tuple(NewEntry(body=body, at=at) for at, body in entries)
    return SlotPatch(name=name, kind="window", op="append", body=b"", entries=new)


async def slot_of(actor: Actor, session: bytes, name: str) -> Slot:
    return next(slot for slot in await actor.store.slots(actor.scope, session) if slot.name == name)


async def shows(actor: Actor, session: bytes, name: str, *, as_of: int | None = None) -> list[bytes]:
    """What lies in a window."""
    entries = await actor.store.entries(actor.scope, session, name, as_of=as_of, limit=1000)
    assert [entry.at for entry in entries] == sorted(entry.at for entry in entries)
    return [entry.body for entry in entries]


async def contributes(actor: Actor, session: bytes, who: str, *, times: int) -> None:
    """Something of one's own into a slot of each commutative kind, whatever the others do."""
    for n in range(times):
        mine = f"{who}-{n}"
        await actor.patches(
            session,
            does("count", "counter.add", 1),
            does("members", "set.add", [mine]),
            does("notes", "list.append", [mine]),
            does("by_name", "map.put", {mine: n}),
        )


class SlotPromises(Suite):
    # ── operations ──────────────────────────────────────────────────────────────────────────────────────────────────

    @pytest.mark.parametrize(
        "case",
        [
            ("value", [("merge", {"a": 1, "b": {"c": 1}}), ("merge", {"b": {"d": 2}, "a": None})], {"b": {"c": 1, "d": 2}}),
            ("value", [("merge", {"a": [1]}), ("patch", [{"op": "add", "path": "/a/-", "value": 2}])], {"a": [1, 2]}),
            ("counter", [("add", 3), ("add", -5)], -2),
            ("set", [("add", ["b", "a"]), ("add", ["a", 1]), ("discard", ["b"])], ["a", 1]),
            ("list", [("append", [1]), ("append", [2, 1])], [1, 2, 1]),
            ("map", [("put", {"a": 1, "b": 1}), ("put", {"b": 2}), ("drop", ["a"])], {"b": 2}),
        ],
    )
    async def test_S8_each_kind_has_its_operations(self, alice: Actor, case: tuple[str, Any, Any]) -> None:
        session, (kind, steps, outcome) = await alice.opens_session(), case
        for version, (op, operand) in enumerate(steps, 1):
            assert await alice.patches(session, does("it", f"{kind}.{op}", operand)) == version
        slot = await slot_of(alice, session, "it")
        assert (slot.kind, slot.version, json.decode_trusted(slot.body or b"")) == (kind, len(steps), outcome)
        assert len(await alice.store.past(alice.scope, session, "it", 10)) == len(steps) - 1

    async def test_S8_the_receipt_has_the_slots_as_they_are(self, alice: Actor) -> None:
        session = await alice.opens_session()
        write = PatchSlots(session=session, patches=(does("n", "counter.add", 2), put("size", 43)), by="alice", agent="clerk")
        receipt = await alice.gets(Patched, write)
        assert sorted(receipt.slots, key=lambda slot: slot.name) == await alice.store.slots(alice.scope, session)
        assert {slot.agent for slot in receipt.slots} == {"clerk"}

    async def test_S8_additions_of_many_writers_all_count(self, alice: Actor, beside: Actor, place: Path) -> None:
        session = await alice.opens_session()
        await asyncio.gather(contributes(alice, session, "alice", times=5), contributes(beside, session, "beside", times=5))
        names = iter(("one", "two", "three"))
        await self.in_threads(place, lambda actor: contributes(actor, session, next(names), times=4))
        desk = await alice.desk(session)
        everybody = {f"{who}-{n}" for who, times in [("alice", 5), ("beside", 5)] for n in range(times)}
        everybody |= {f"{who}-{n}" for who in ("one", "two", "three") for n in range(4)}
        assert desk["count"] == len(everybody)
        assert desk["members"] == sorted(everybody)
        assert sorted(desk["notes"]) == sorted(everybody)
        assert desk["by_name"].keys() == everybody

    async def test_S8_a_set_is_the_same_bytes_whatever_the_order(self, alice: Actor) -> None:
        session = await alice.opens_session()
        for name, order in (("one", [1, "b", {"x": 1, "y": 2}]), ("other", [{"y": 2, "x": 1.0}, "b", 1])):
            for member in order:
                await alice.patches(session, does(name, "set.add", [member]))
        desk = await alice.desk(session)
        assert desk["one"] == desk["other"]
        assert len(desk["one"]) == 3

    async def test_S2_a_commutative_slot_can_be_guarded_all_the_same(self, alice: Actor) -> None:
        session = await alice.opens_session()
        await alice.patches(session, does("n", "counter.add", 1, expected=0))
        error = await refusal(alice.patches(session, does("n", "counter.add", 1, expected=7)))
        assert (error.reason, error.facts["slots"]) == ("slot_conflict", {"n": 1})
        await alice.patches(session, sets("n", "counter", 10, expected=1))
        assert await alice.desk(session) == {"n": 10}

    async def test_S2_what_was_only_read_can_be_guarded(self, alice: Actor) -> None:
        session = await alice.opens_session()
        await alice.sets(session, budget=80)
        await alice.sets(session, budget=90)
        error = await refusal(alice.patches(session, put("order", 1), seen=(("budget", 1), ("coupon", 0))))
        assert (error.reason, error.facts["slots"]) == ("slot_conflict", {"budget": 2})
        await alice.patches(session, put("order", 1), seen=(("budget", 2), ("coupon", 0)))
        assert await alice.desk(session) == {"budget": 90, "order": 1}

    async def test_P31_what_a_kind_does_not_take_is_refused_and_nothing_is_written(self, alice: Actor) -> None:
        session = await alice.opens_session()
        await alice.patches(session, does("n", "counter.add", JSON_INT_MAX))
        for patch, error, code in [
            (does("n", "counter.add", 1), LimitExceeded, "counter_out_of_range"),
            (does("n", "counter.add", 1.5), InvalidInput, "operand_invalid"),
            (does("n", "counter.add", True), InvalidInput, "operand_invalid"),
            (does("n", "counter.append", 1), InvalidInput, "operation_unknown"),
            (does("n", "list.append", [1]), Conflict, "slot_kind_conflict"),
            (put("n", 1), Conflict, "slot_kind_conflict"),
            (sets("m", "counter", "x"), InvalidInput, "operand_invalid"),
            (does("m", "set.add", "abc"), InvalidInput, "operand_invalid"),
            (does("m", "map.drop", [1]), InvalidInput, "operand_invalid"),
            (does("m", "map.put", {"a": 2**60}), InvalidInput, "integer_too_large"),
            (does("m", "value.patch", [{"op": "test", "path": "/a", "value": 1}]), Conflict, "patch_does_not_apply"),
            (does("m", "value.patch", [{"op": "fly"}]), InvalidInput, "patch_invalid"),
            (SlotPatch(name="m", kind="list", op="append", body=b"[1"), InvalidInput, "json_invalid"),
            (SlotPatch(name="m", kind="list", op="append", body=None), InvalidInput, "operand_invalid"),
            (SlotPatch(name="m", kind="heap", body=b"1"), InvalidInput, "slot_kind_unknown"),  # type: ignore[arg-type]
        ]:
            refused = await refusal(alice.patches(session, put("beside", 1), patch))
            assert (type(refused), refused.reason) == (error, code)
        assert await alice.desk(session) == {"n": JSON_INT_MAX}
        assert (await alice.store.session(alice.scope, session)).version == 1

    async def test_S8_a_removed_slot_may_become_another_kind(self, alice: Actor) -> None:
        session = await alice.opens_session()
        await alice.patches(session, does("n", "counter.add", 1))
        await alice.sets(session, n=None)
        await alice.patches(session, does("n", "list.append", ["x"]))
        assert await alice.desk(session) == {"n": ["x"]}

    # ── windows ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_S9_a_window_keeps_its_seconds(self, alice: Actor, beside: Actor) -> None:
        session, now = await alice.opens_session(), alice.store.now()
        await alice.patches(session, sets("lidar", "window", {"seconds": 2}))
        for n in range(6):
            await alice.patches(session, seen("lidar", (now + n * 1000, b"\x00frame %d" % n)))
            self.clock.advance(1000)
        assert await shows(beside, session, "lidar", as_of=now + 5000) == [b"\x00frame 4", b"\x00frame 5"]
        slot = await slot_of(alice, session, "lidar")
        told = {"seconds": 2.0, "bytes": None, "entries": 2, "held": 16, "newest": now + 5000}
        assert (slot.version, json.decode_trusted(slot.body or b"")) == (7, told)
        assert await alice.store.past(alice.scope, session, "lidar", 10) == []

    async def test_S9_a_window_is_read_as_of_a_time_and_never_past_it(self, alice: Actor) -> None:
        session, now = await alice.opens_session(), alice.store.now()
        await alice.patches(session, sets("lidar", "window", {"seconds": 10}))
        await alice.patches(session, seen("lidar", (now - 3000, b"a"), (now - 1000, b"c"), (now - 2000, b"b"), (now + 500, b"d")))
        assert await shows(alice, session, "lidar", as_of=now - 1500) == [b"a", b"b"]
        assert await shows(alice, session, "lidar", as_of=now - 1000) == [b"a", b"b", b"c"]
        assert await shows(alice, session, "lidar", as_of=now - 4000) == []
        assert await shows(alice, session, "lidar") == [b"a", b"b", b"c"], "what lies in the future is not shown"
        assert await shows(alice, session, "lidar", as_of=now + 9000) == [b"a", b"b", b"c"]
        self.clock.advance(500)
        assert await shows(alice, session, "lidar") == [b"a", b"b", b"c", b"d"]

    async def test_S9_an_entry_from_the_future_pushes_nothing_out(self, alice: Actor) -> None:
        session, now = await alice.opens_session(), alice.store.now()
        await alice.patches(session, sets("lidar", "window", {"seconds": 10}))
        await alice.patches(session, seen("lidar", (now, b"present")))
        await alice.patches(session, seen("lidar", (now + 3_600_000, b"future")))
        assert await shows(alice, session, "lidar") == [b"present"]

    async def test_S9_a_window_keeps_its_bytes(self, alice: Actor, place: Path) -> None:
        session, now = await alice.opens_session(), alice.store.now()
        await alice.patches(session, sets("tail", "window", {"bytes": 100}))
        for n in range(20):
            self.clock.advance(1)
            await alice.patches(session, seen("tail", (now + 2 * n, b"%029d" % n), (now + 2 * n + 1, b"+")))
        self.clock.advance(100)
        assert await shows(alice, session, "tail") == [b"+", b"%029d" % 17, b"+", b"%029d" % 18, b"+", b"%029d" % 19, b"+"]
        assert self.rows(place).get("slot_entry", 7) == 7, "what left the window is not stored either"
        await alice.patches(session, seen("tail", (now + 100, b"x" * 100)))
        assert await shows(alice, session, "tail") == [b"x" * 100]

    async def test_S9_many_leave_at_once_and_what_comes_too_late_is_never_kept(self, alice: Actor, place: Path) -> None:
        session, now = await alice.opens_session(), alice.store.now()
        await alice.patches(session, sets("tail", "window", {"bytes": 3000}))
        for start in range(0, 250, 50):
            await alice.patches(session, seen("tail", *((now + n, b"%03d" % n) for n in range(start, start + 50))))
        self.clock.advance(1000)
        assert len(await shows(alice, session, "tail")) == 250
        late = [(now - 5, b"too late"), (now + 248, b"in between"), (now + 900, b"x" * 2988)]
        await alice.patches(session, seen("tail", *late))
        assert await shows(alice, session, "tail") == [b"249", b"x" * 2988]
        await alice.patches(session, seen("tail", (now + 249, b"y"), (now - 5, b"much too late")))
        assert await shows(alice, session, "tail") == [b"249", b"y", b"x" * 2988]
        held = json.decode_trusted((await slot_of(alice, session, "tail")).body or b"")
        assert (held["entries"], held["held"]) == (3, 2992)
        assert self.rows(place).get("slot_entry", 3) == 3, "what left the window is not stored either"
        await alice.patches(session, sets("tail", "window", {"bytes": 1}))
        assert await shows(alice, session, "tail") == []

    async def test_S9_entries_without_a_time_have_the_stores(self, alice: Actor) -> None:
        session = await alice.opens_session()
        await alice.patches(session, sets("tail", "window", {"seconds": 5}))
        self.clock.wall += 86_400_000
        await alice.patches(session, seen("tail", (0, b"a")))
        entries = await alice.store.entries(alice.scope, session, "tail", as_of=None, limit=10)
        assert [(entry.at, entry.version, entry.n) for entry in entries] == [(alice.store.now(), 2, 0)]

    async def test_S9_a_removed_windows_entries_are_gone(self, alice: Actor, place: Path) -> None:
        session = await alice.opens_session()
        await alice.patches(session, sets("tail", "window", {"seconds": 5}))
        await alice.patches(session, seen("tail", (0, b"a")))
        await alice.sets(session, tail=None)
        assert isinstance(await refusal(shows(alice, session, "tail")), NotFound)
        await alice.patches(session, sets("tail", "window", {"seconds": 5}))
        assert await shows(alice, session, "tail") == []

    async def test_P31_a_window_is_bounded_and_there(self, alice: Actor) -> None:
        session = await alice.opens_session()
        await alice.sets(session, size=43)
        for definition in ({}, {"seconds": 0}, {"seconds": True}, {"bytes": -1}, {"seconds": 1, "more": 1}, 5):
            assert (await refusal(alice.patches(session, sets("w", "window", definition)))).reason == "window_invalid"
        assert (await refusal(alice.patches(session, seen("w", (0, b"a"))))).reason == "window_missing"
        assert (await refusal(shows(alice, session, "size"))).reason == "slot_kind_mismatch"
        await alice.patches(session, sets("w", "window", {"bytes": 9}))
        microseconds = alice.store.now() * 1000
        assert (await refusal(alice.patches(session, seen("w", (microseconds, b"a"))))).reason == "entry_invalid"
        await alice.patches(session, seen("w", (alice.store.now(), b"b")))
        assert await shows(alice, session, "w") == [b"b"], "nothing from far ahead pushed it out"

    # ── schemas ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_S10_what_breaks_a_schema_is_refused_with_path_and_reason(self, alice: Actor, beside: Actor) -> None:
        session = await alice.opens_session()
        await alice.patches(session, sets("wish", "value", {"size": 43}, schema=SIZES))
        for patch in (put("wish", {"size": 12}), does("wish", "value.merge", {"size": 12})):
            error = await refusal(beside.patches(session, put("other", 1), patch))
            assert (type(error), error.reason, error.param, error.facts["path"]) == (
                InvalidInput,
                "schema_broken",
                "wish",
                "/size",
            )
            assert "30" in error.facts["reason"]
        assert await alice.desk(session) == {"wish": {"size": 43}}
        await beside.patches(session, does("wish", "value.merge", {"size": 44}))
        assert (await slot_of(alice, session, "wish")).schema.startswith("sha256:")

    async def test_S10_shipped_schemas_go_by_their_names(self, alice: Actor) -> None:
        session = await alice.opens_session()
        plan = {"steps": [{"title": "look", "status": "completed", "by": "me"}, {"title": "buy"}]}
        await alice.patches(session, sets("plan", "value", plan, schema="stateroom/plan/1"))
        worse = does("plan", "value.patch", [{"op": "replace", "path": "/steps/0/status", "value": "never"}])
        error = await refusal(alice.patches(session, worse))
        assert (error.reason, error.facts["path"]) == ("schema_broken", "/steps/0/status")
        assert await alice.desk(session) == {"plan": plan}, "fields that the schema does not know are kept"

    async def test_S10_what_is_no_schema_is_refused(self, alice: Actor) -> None:
        session = await alice.opens_session()
        for schema in ('{"type": "thing"}', '{"type":', '{"$ref": "https://example.invalid/schema"}'):
            error = await refusal(alice.patches(session, sets("a", "value", 1, schema=schema)))
            assert isinstance(error, InvalidInput)
        assert await alice.desk(session) == {}

    # ── trust ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_S15_P32_trust_follows_from_the_origin_and_not_from_the_claim(self, alice: Actor) -> None:
        session = await alice.opens_session()
        for origin, claimed, trusted in [("user", 100, 60), ("tool", 90, 20), ("agent:clerk", 50, 50), ("nobody", 60, 0)]:
            await alice.patches(session, sets("it", "value", 1, origin=origin, trust=claimed))
            slot = await slot_of(alice, session, "it")
            assert (slot.origin, slot.trust) == (origin, trusted)

    async def test_S15_P32_what_is_made_from_something_is_trusted_no_more_than_that(self, alice: Actor) -> None:
        session = await alice.opens_session()
        await alice.patches(session, sets("page", "value", "…", origin="tool"), sets("wish", "value", "…", origin="user"))
        await alice.patches(session, sets("summary", "value", "…", sources=("page", "wish", "absent")))
        assert (await slot_of(alice, session, "summary")).trust == 20
        await alice.patches(session, does("notes", "list.append", ["from a page"], origin="tool"))
        await alice.patches(session, does("notes", "list.append", ["from me"], origin="user"))
        assert (await slot_of(alice, session, "notes")).trust == 20, "what was there is still in it"
        await alice.patches(session, sets("notes", "list", ["from me"], origin="user"))
        assert (await slot_of(alice, session, "notes")).trust == 60
