"""What a slot may be called and hold, and whether a patch's preconditions hold."""

from __future__ import annotations

from typing import Any

import pytest

from stateroom import limits
from stateroom.errors import Conflict, InvalidInput, LimitExceeded
from stateroom.ids import NIL
from stateroom.session import kinds, rules
from stateroom.session.model import PatchSlots, Slot, SlotPatch


def slot(name: str, version: int, body: bytes | None = b"1") -> Slot:
    return Slot(name=name, version=version, kind="value", schema="", origin="user", trust=60, body=body, by="x", run=NIL, at=0)


def patch(*changes: tuple[str, int | None], version: int | None = None) -> PatchSlots:
    patches = tuple(SlotPatch(name=name, body=b"2", expected=expected) for name, expected in changes)
    return PatchSlots(session=b"s", patches=patches, by="x", expected_version=version)


@pytest.mark.parametrize("name", ["a", "size", "größe", "a.b", "with space", "x" * limits.NAME_CHARS_MAX, "🚪"])
def test_good_names(name: str) -> None:
    assert rules.check_name(name) == name


@pytest.mark.parametrize("name", ["", ".hidden", "a\nb", "\x00", "tab\t", "x" * (limits.NAME_CHARS_MAX + 1), "\ud800"])
def test_P31_bad_names(name: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        rules.check_name(name)
    assert refused.value.reason == "slot_name_invalid"


@pytest.mark.parametrize("value", [2**53, -(2**53), 1e300, "9" * 40, None, True, {"a": [1, {"b": 2.5}]}, []])
def test_values_that_every_language_can_hold(value: Any) -> None:
    kinds.check_integers(value)


@pytest.mark.parametrize("value", [2**53 + 1, -(2**53) - 1, [1, [2**60]], {"a": {"b": [{"c": 10**30}]}}])
def test_P31_integers_that_another_language_would_round(value: Any) -> None:
    with pytest.raises(InvalidInput) as refused:
        kinds.check_integers(value)
    assert refused.value.reason == "integer_too_large"


def test_P31_deep_values_do_not_break_the_check() -> None:
    value: Any = 2**60
    for _ in range(100_000):
        value = [value]
    with pytest.raises(InvalidInput):
        kinds.check_integers(value)


@pytest.mark.parametrize(
    ("patches", "kind", "code"),
    [
        ([SlotPatch("a", b"1"), SlotPatch("a", None)], InvalidInput, "slot_named_twice"),
        ([SlotPatch("a", b"1"), SlotPatch("", b"1")], InvalidInput, "slot_name_invalid"),
        ([SlotPatch("a", b"x" * (limits.SLOT_BYTES_MAX + 1))], LimitExceeded, "slot_too_large"),
        ([SlotPatch(f"s{n}", b"1") for n in range(limits.PATCH_SLOTS_MAX + 1)], LimitExceeded, "patch_too_large"),
    ],
)
def test_P31_bad_patches(patches: list[SlotPatch], kind: type[InvalidInput], code: str) -> None:
    with pytest.raises(kind) as refused:
        rules.check_patches(patches)
    assert refused.value.reason == code


def test_patches_at_their_bounds() -> None:
    rules.check_patches([SlotPatch("a", b"x" * limits.SLOT_BYTES_MAX), SlotPatch("b", None)])
    rules.check_patches([SlotPatch(f"s{n}", b"1") for n in range(limits.PATCH_SLOTS_MAX)])
    rules.check_patches([])


CURRENT = {"size": slot("size", 3), "colour": slot("colour", 5), "gone": slot("gone", 6, None)}


@pytest.mark.parametrize(
    "write",
    [
        patch(("size", None), ("new", None), ("gone", None)),
        patch(("size", 3), ("colour", 5)),
        patch(("new", 0), ("gone", 0)),
        patch(("size", 3), version=6),
        patch(version=6),
    ],
)
def test_preconditions_that_hold(write: PatchSlots) -> None:
    rules.check_preconditions(write, CURRENT, 6)


@pytest.mark.parametrize(
    ("write", "code", "facts"),
    [
        (patch(("size", 2)), "slot_conflict", {"version": 6, "slots": {"size": 3}, "values": {"size": 1}}),
        (patch(("size", 0)), "slot_conflict", {"version": 6, "slots": {"size": 3}, "values": {"size": 1}}),
        (patch(("new", 1)), "slot_conflict", {"version": 6, "slots": {"new": 0}, "values": {"new": None}}),
        (patch(("gone", 6)), "slot_conflict", {"version": 6, "slots": {"gone": 0}, "values": {"gone": None}}),
        (
            patch(("size", 3), ("colour", 3), ("new", 2)),
            "slot_conflict",
            {"version": 6, "slots": {"colour": 5, "new": 0}, "values": {"colour": 1, "new": None}},
        ),
        (patch(("size", 3), version=5), "version_conflict", {"version": 6}),
    ],
)
def test_preconditions_that_do_not_hold_tell_the_actual_versions(write: PatchSlots, code: str, facts: dict[str, Any]) -> None:
    with pytest.raises(Conflict) as refused:
        rules.check_preconditions(write, CURRENT, 6)
    assert (refused.value.reason, refused.value.facts) == (code, facts)


@pytest.mark.parametrize(
    ("added", "known", "fits"),
    [
        (0, limits.SLOTS_MAX, True),
        (1, limits.SLOTS_MAX - 1, True),
        (1, limits.SLOTS_MAX, False),
        (2, limits.SLOTS_MAX - 1, False),
    ],
)
def test_P31_a_session_has_room_for_so_many_names(added: int, known: int, fits: bool) -> None:
    if fits:
        rules.check_room(added, known)
    else:
        with pytest.raises(LimitExceeded) as refused:
            rules.check_room(added, known)
        assert refused.value.reason == "too_many_slots"
