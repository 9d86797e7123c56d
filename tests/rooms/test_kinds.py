"""What may be done to slots of each kind, for any order of any changes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateroom import limits
from stateroom.errors import Conflict, InvalidInput, LimitExceeded
from stateroom.ids import NIL
from stateroom.session import change, kinds, schema, window
from stateroom.session.model import NewEntry, Slot, SlotPatch
from stateroom.wire import json

members = st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-2, 2, width=16) | st.text("ab", max_size=2)
MARK = change.Stamp(version=5, by="alice", agent="", run=NIL, at=0, now=1_000_000)
STORED = change.Stored(document=lambda _: b"", schema=lambda _: "")


def after(kind: Any, operations: list[tuple[str, Any]]) -> Any:
    body = None
    for op, operand in operations:
        body = kinds.applied(kind, op, old=body, operand=json.encode(operand))
    return body


def changed(patch: SlotPatch, **current: Slot) -> Slot:
    return change.change(patch, current, MARK, stored=STORED).slot


@given(st.permutations([1, -5, 2**40, 7, -(2**52)]))
def test_a_counter_adds_in_any_order(amounts: list[int]) -> None:
    assert after("counter", [("add", amount) for amount in amounts]) == json.encode(sum(amounts))


@given(
    st.lists(st.lists(members, max_size=3), min_size=1, max_size=5).flatmap(
        lambda ls: st.tuples(st.just(ls), st.permutations(ls))
    )
)
def test_a_set_is_the_same_in_any_order(orders: tuple[list[list[Any]], list[list[Any]]]) -> None:
    one, other = (after("set", [("add", added) for added in order]) for order in orders)
    held = {kinds.member(value) for value in json.decode_trusted(one)}
    assert held == {kinds.member(value) for value in json.decode_trusted(other)}
    assert len(held) == len(json.decode_trusted(one)) == len(json.decode_trusted(other))
    assert held == {kinds.member(value) for added in orders[0] for value in added}


@given(
    st.dictionaries(st.text("abc", max_size=2), members, max_size=6).flatmap(
        lambda m: st.tuples(st.just(m), st.permutations(list(m)))
    )
)
def test_a_maps_keys_do_not_know_each_other(drawn: tuple[dict[str, Any], list[str]]) -> None:
    entries, order = drawn
    assert json.decode_trusted(after("map", [("put", {key: entries[key]}) for key in order]) or b"{}") == entries


@given(st.lists(st.tuples(st.sampled_from(["add", "discard"]), members), min_size=1, max_size=8))
def test_a_set_holds_what_was_added_last(operations: list[tuple[str, Any]]) -> None:
    model = set[bytes]()
    for op, value in operations:
        (model.add if op == "add" else model.discard)(kinds.member(value))
    body = after("set", [(op, [value]) for op, value in operations])
    assert {kinds.member(value) for value in json.decode_trusted(body)} == model


def test_every_kind_is_complete() -> None:
    assert kinds.OPERATIONS.keys() == {"value", "counter", "set", "list", "map", "window", "doc"}
    assert kinds.EMPTY.keys() | {"window", "doc"} == kinds.OPERATIONS.keys()
    assert kinds.SHAPES.keys() | {"value", "window", "doc"} == kinds.OPERATIONS.keys()


def test_a_value_that_is_set_stays_as_it_was_spelled() -> None:
    body = b'{ "n" : 1.0, "z":[ ] }'
    assert changed(SlotPatch(name="a", body=body)).body == body
    assert changed(SlotPatch(name="a", body=b'[ "b", "a" ]', kind="list")).body == b'[ "b", "a" ]'
    assert changed(SlotPatch(name="a", body=b'[ "b", "a", "b" ]', kind="set")).body == b'["a","b"]'


@pytest.mark.parametrize("old", ["value", "counter"])
def test_a_living_slot_stays_of_its_kind(old: Any) -> None:
    slot = changed(SlotPatch(name="a", body=b"1", kind=old))
    with pytest.raises(Conflict) as refused:
        changed(SlotPatch(name="a", body=b"[]", kind="list"), a=slot)
    assert (refused.value.reason, refused.value.facts) == ("slot_kind_conflict", {"slot": "a", "kind": old})
    removed = changed(SlotPatch(name="a", body=None), a=slot)
    assert changed(SlotPatch(name="a", body=b"[]", kind="list"), a=removed).kind == "list"


@given(
    st.lists(
        st.tuples(st.sampled_from(["user", "agent:x", "tool", "operator", "?"]), st.integers(-5, 120)), min_size=1, max_size=6
    )
)
def test_P32_what_grew_is_trusted_as_its_least_trusted_part(parts: list[tuple[str, int]]) -> None:
    slot, least = None, 100
    for origin, claimed in parts:
        patch = SlotPatch(name="a", body=b"[1]", kind="list", op="append", origin=origin, trust=claimed)
        slot = changed(patch, **({"a": slot} if slot is not None else {}))
        least = min(least, max(0, min(claimed, {"user": 60, "agent:x": 50, "tool": 20, "operator": 100, "?": 0}[origin])))
    assert slot is not None
    assert slot.trust == least


def test_a_slot_has_a_bound_whatever_made_it_grow() -> None:
    big = changed(SlotPatch(name="a", body=json.encode(["x" * (limits.SLOT_BYTES_MAX - 10)]), kind="list"))
    with pytest.raises(LimitExceeded) as refused:
        changed(SlotPatch(name="a", body=b'["xxxxxxxxxxxx"]', kind="list", op="append"), a=big)
    assert refused.value.reason == "slot_too_large"
    deep = changed(SlotPatch(name="a", body=b"[" * 60 + b"]" * 60))
    nest = json.encode([{"op": "move", "from": "", "path": ""}, {"op": "copy", "from": "", "path": "/0" * 59 + "/-"}])
    with pytest.raises(InvalidInput):
        changed(SlotPatch(name="a", body=nest, op="patch"), a=deep)


# ── schemas ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_schemas_of_types() -> None:
    msgspec, pydantic = pytest.importorskip("msgspec"), pytest.importorskip("pydantic")
    one = msgspec.defstruct("Wish", [("size", int)])
    other = pydantic.create_model("Wish", size=(int, ...))
    for kind in (one, other):
        text = schema.of(kind)
        schema.check_schema(text)
        schema.check("wish", text, {"size": 43})
        with pytest.raises(InvalidInput) as refused:
            schema.check("wish", text, {"size": "large"})
        assert (refused.value.reason, refused.value.facts["path"]) == ("schema_broken", "/size")
    with pytest.raises(InvalidInput):
        schema.of(lambda: 1)


def test_a_schema_follows_no_remote_reference_and_no_evil_pattern() -> None:
    for bad in ('{"$ref": "https://example.invalid/x"}', '{"$ref": "file:///etc/passwd"}', '{"pattern": "(a"}'):
        with pytest.raises(InvalidInput):
            schema.check_schema(bad)
    evil = '{"type": "string", "pattern": "^(a+)+$"}'
    schema.check_schema(evil)
    with pytest.raises(InvalidInput):
        schema.check("a", evil, "a" * 5_000 + "!")


# ── windows ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@given(
    st.lists(st.tuples(st.integers(1, 60_000), st.integers(0, 50)), min_size=1, max_size=30),
    st.none() | st.integers(1, 30),
    st.none() | st.integers(1, 200),
)
def test_a_window_lets_go_of_what_it_does_not_keep_and_of_nothing_else(
    arriving: list[tuple[int, int]], seconds: int | None, size: int | None
) -> None:
    if seconds is None and size is None:
        seconds = 5
    kept = window.defined({"seconds": seconds, "bytes": size}, window.Window())
    rows: list[tuple[int, int]] = []
    for at, length in arriving:
        kept, _ = window.appended(kept, [NewEntry(b"x" * length, at=at)], now=70_000)
        rows = sorted([*rows, (at, length)])
        gone = window.leaving(kept, rows, 70_000)
        kept, rows = window.without(kept, rows[:gone]), rows[gone:]
        assert (kept.entries, kept.held) == (len(rows), sum(length for _, length in rows))
        newest = max(at for at, _ in arriving[: arriving.index((at, length)) + 1])
        if seconds is not None:
            assert all(at > newest - seconds * 1000 for at, _ in rows)
        if size is not None:
            assert kept.held <= size
            assert size >= kept.held
