"""Versions of desks, pure: what may go, how two states differ, how long a desk lives, what a state function is held to."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateroom.errors import Gone
from stateroom.ids import NIL
from stateroom.session import lifetime, versions
from stateroom.session.model import Session, Slot
from stateroom.session.working import Working
from stateroom.wire import json


def slot(name: str, version: int, body: bytes | None = b"1") -> Slot:
    return Slot(name=name, version=version, kind="value", schema="", origin="user", trust=60, body=body, by="x", run=NIL, at=0)


@given(st.sets(st.integers(1, 30), min_size=1), st.integers(0, 31), st.sets(st.integers(0, 31)))
def test_what_may_go_is_what_no_kept_version_shows(made: set[int], before: int, kept: set[int]) -> None:
    *past, current = sorted(made)
    gone = {row.version for row in versions.droppable("a", past, current, before=before, kept=kept)}

    def shown(version: int, rows: set[int]) -> int:
        return max((row for row in rows if row <= version), default=0)

    for version in range(32):
        if version >= before or version in kept:
            assert shown(version, made - gone) == shown(version, made), "what is kept is whole"
    for row in gone:
        seen = [version for version in range(32) if shown(version, made) == row]
        assert all(version < before and version not in kept for version in seen)
    for row in set(past) - gone:
        assert any(version >= before or version in kept for version in range(32) if shown(version, made) == row)


@given(
    st.dictionaries(st.sampled_from("abcd"), st.sampled_from([b"1", b"2"])),
    st.dictionaries(st.sampled_from("abcd"), st.sampled_from([b"1", b"2"])),
)
def test_a_diff_leads_from_one_state_to_the_other(old: dict[str, bytes], new: dict[str, bytes]) -> None:
    changes = versions.diff(
        [slot(name, 1, body) for name, body in old.items()], [slot(name, 2, body) for name, body in new.items()]
    )
    state = dict(old)
    for change in changes:
        assert (change.before.body if change.before else None) == state.get(change.name)
        state.pop(change.name, None)
        if change.after is not None and change.after.body is not None:
            state[change.name] = change.after.body
    assert state == new
    assert [change.name for change in changes] == sorted(name for name in "abcd" if old.get(name) != new.get(name))


# ── lifetimes ───────────────────────────────────────────────────────────────────────────────────────────────────────


@given(st.integers(0, 50), st.integers(0, 100), st.lists(st.integers(0, 40), max_size=8))
def test_P13_P23_a_desk_lives_from_use_to_use_and_never_past_its_maximum(ttl: int, most: int, pauses: list[int]) -> None:
    now = 1_000
    dies = now + most if most else 0
    desk = Session(
        id=b"s", owner="x", subject="x", conversation=NIL, agent="", lineage=b"s", version=0, status="active", metadata=b"{}",
        created_at=0, touched_at=0, ttl_ms=ttl, expires_at=lifetime.next_end(ttl, dies, now), dies_at=dies,
    )  # fmt: skip
    used = now
    for pause in pauses:
        now += pause
        alive = (not ttl or now < used + ttl) and (not dies or now < dies)
        assert lifetime.alive(desk, now) == alive
        if not alive:
            with pytest.raises(Gone):
                lifetime.check(desk, now)
            return
        desk = Session(
            **{**{name: getattr(desk, name) for name in Session.__struct_fields__}, "expires_at": lifetime.renewed(desk, now)}
        )
        used = now


# ── state functions ─────────────────────────────────────────────────────────────────────────────────────────────────


def desk(**bodies: bytes) -> Working:
    return Working(slot(name, version, body) for version, (name, body) in enumerate(bodies.items(), 1))


def told(working: Working) -> tuple[list[tuple[str, bytes | None, int | None]], tuple[tuple[str, int], ...]]:
    return [(patch.name, patch.body, patch.expected) for patch in working.patches()], working.seen()


def test_what_was_only_looked_at_is_expected_as_well() -> None:
    state = desk(budget=b"80", cart=b'{"items":[]}', other=b"1")
    if state["budget"] > 50 and "coupon" not in state:
        state["cart"]["items"].append("shoes")
    assert told(state) == ([("cart", b'{"items":["shoes"]}', 2)], (("budget", 1), ("cart", 2), ("coupon", 0)))


def test_what_was_set_blindly_or_removed_is_guarded() -> None:
    state = desk(a=b"1", b=b"2")
    state["new"] = [1]
    state["a"] = 1
    del state["b"]
    assert told(state) == ([("b", None, 2), ("new", b"[1]", 0)], (("b", 2),))
    assert desk(a=b"1").pop("a") == 1
    assert desk().get("a", 5) == 5


@pytest.mark.parametrize(
    "walk",
    [
        list, dict.keys, lambda state: list(state.values()), lambda state: list(state.items()), len, bool,
        lambda state: state == {}, lambda state: state != {},
    ],
)  # fmt: skip
def test_whoever_looks_at_all_of_it_has_seen_all_of_it(walk: object) -> None:
    state = desk(a=b"1", b=b"2")
    assert callable(walk)
    walk(state) if walk is not dict.keys else state.keys()
    assert told(state) == ([], (("a", 1), ("b", 2)))


@pytest.mark.parametrize(
    "walk", [copy.copy, dict, lambda s: s.copy(), lambda s: s | {"c": 1}, lambda s: {"c": 1} | s, lambda s: {**s}]
)
def test_what_was_handed_out_in_any_way_is_looked_through_for_changes(walk: Callable[[Working], dict[str, Any]]) -> None:
    state = desk(a=b"[1]", b=b"[2]")
    walk(state)["b"].append(3)
    assert told(state) == ([("b", b"[2,3]", 2)], (("a", 1), ("b", 2)))


@pytest.mark.parametrize("walk", [lambda s: s.popitem()[0], lambda s: s.pop(next(reversed(s))) and "b"])
def test_whoever_takes_the_last_one_has_seen_all_of_it(walk: Callable[[Working], str]) -> None:
    state = desk(a=b"[1]", b=b"[2]")
    assert walk(state) == "b"
    assert told(state) == ([("b", None, 2)], (("a", 1), ("b", 2)))


def test_what_nobody_looked_at_is_not_looked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    state, encoded = desk(**{f"slot{n}": b"[1]" for n in range(100)}), list[object]()
    state["slot7"].append(2)
    del state["slot8"]
    state.update({"slot9": [9], "new": 1})
    encode = json.encode
    monkeypatch.setattr(json, "encode", lambda value: (encoded.append(value), encode(value))[1])
    assert [name for name, *_ in told(state)[0]] == ["new", "slot7", "slot8", "slot9"]
    assert len(encoded) < 10


def test_a_value_that_was_respelled_and_not_changed_is_no_change() -> None:
    state = desk(a=b'{ "n" : 1.0 }')
    state["a"] = dict(state["a"])
    assert told(state)[0] == []
