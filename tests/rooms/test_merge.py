"""JSON Merge Patch and JSON Patch: the examples of their RFCs, and what holds for any values."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateroom.errors import Conflict, InvalidInput, LimitExceeded
from stateroom.session.merge import merge, patched, same

scalars = st.none() | st.booleans() | st.integers(-9, 9) | st.text("ab~/", max_size=3)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab~/0-", max_size=2), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [  # RFC 7396, appendix A
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, None, None),
        ({"a": "foo"}, "bar", "bar"),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge_patch_as_its_rfc_has_it(target: Any, patch: Any, result: Any) -> None:
    assert merge(target, patch) == result


@pytest.mark.parametrize(
    ("target", "operations", "result"),
    [  # RFC 6902, appendix A
        ({"foo": "bar"}, [{"op": "add", "path": "/baz", "value": "qux"}], {"baz": "qux", "foo": "bar"}),
        ({"foo": ["bar", "baz"]}, [{"op": "add", "path": "/foo/1", "value": "qux"}], {"foo": ["bar", "qux", "baz"]}),
        ({"baz": "qux", "foo": "bar"}, [{"op": "remove", "path": "/baz"}], {"foo": "bar"}),
        ({"foo": ["bar", "qux", "baz"]}, [{"op": "remove", "path": "/foo/1"}], {"foo": ["bar", "baz"]}),
        ({"baz": "qux", "foo": "bar"}, [{"op": "replace", "path": "/baz", "value": "boo"}], {"baz": "boo", "foo": "bar"}),
        (
            {"foo": {"bar": "baz", "waldo": "fred"}, "qux": {"corge": "grault"}},
            [{"op": "move", "from": "/foo/waldo", "path": "/qux/thud"}],
            {"foo": {"bar": "baz"}, "qux": {"corge": "grault", "thud": "fred"}},
        ),
        (
            {"foo": ["all", "grass", "cows", "eat"]},
            [{"op": "move", "from": "/foo/1", "path": "/foo/3"}],
            {"foo": ["all", "cows", "eat", "grass"]},
        ),
        (
            {"baz": "qux", "foo": ["a", 2, "c"]},
            [{"op": "test", "path": "/baz", "value": "qux"}, {"op": "test", "path": "/foo/1", "value": 2}],
            {"baz": "qux", "foo": ["a", 2, "c"]},
        ),
        (
            {"foo": "bar"},
            [{"op": "add", "path": "/child", "value": {"grandchild": {}}}],
            {"foo": "bar", "child": {"grandchild": {}}},
        ),
        ({"foo": "bar"}, [{"op": "add", "path": "/baz", "value": "qux", "xyz": 123}], {"foo": "bar", "baz": "qux"}),
        ({"/": 9, "~1": 10}, [{"op": "test", "path": "/~01", "value": 10}], {"/": 9, "~1": 10}),
        ({"foo": ["bar"]}, [{"op": "add", "path": "/foo/-", "value": ["abc", "def"]}], {"foo": ["bar", ["abc", "def"]]}),
        ({"a": 1}, [{"op": "replace", "path": "", "value": 5}], 5),
        (
            {"a": [1]},
            [{"op": "copy", "from": "/a", "path": "/b"}, {"op": "add", "path": "/b/-", "value": 2}],
            {"a": [1], "b": [1, 2]},
        ),
    ],
)  # fmt: skip
def test_json_patch_as_its_rfc_has_it(target: Any, operations: Any, result: Any) -> None:
    before = copy.deepcopy(target)
    assert patched(target, operations) == result
    assert target == before


@pytest.mark.parametrize(
    ("target", "operation"),
    [
        ({"foo": "bar"}, {"op": "add", "path": "/baz/bat", "value": "qux"}),
        ({"baz": "qux"}, {"op": "test", "path": "/baz", "value": "bar"}),
        ({"/": 9, "~1": 10}, {"op": "test", "path": "/~01", "value": "10"}),
        ({"a": 1}, {"op": "test", "path": "/a", "value": True}),
        ({"a": [1]}, {"op": "add", "path": "/a/2", "value": 1}),
        ({"a": [1]}, {"op": "add", "path": "/a/01", "value": 1}),
        ({"a": [1]}, {"op": "remove", "path": "/a/-"}),
        ({"a": [1]}, {"op": "replace", "path": "/a/1", "value": 1}),
        ({"a": 1}, {"op": "copy", "from": "/b", "path": "/c"}),
    ],
)
def test_what_does_not_fit_says_which_operation(target: Any, operation: Any) -> None:
    with pytest.raises(Conflict) as refused:
        patched(target, [{"op": "add", "path": "/first", "value": 1}, operation])
    assert (refused.value.reason, refused.value.facts["operation"]) == ("patch_does_not_apply", 1)


@pytest.mark.parametrize(
    "operations",
    [
        {"op": "add"}, ["add"], [{}], [{"op": "fly", "path": ""}], [{"op": "add", "path": "/a"}], [{"op": "move", "path": "/a"}],
        [{"op": "add", "path": "a", "value": 1}], [{"op": "add", "path": "/~2", "value": 1}], [{"op": "remove", "path": 1}],
        [{"op": "move", "from": "/a", "path": "/a/b"}], [{"op": ["add"], "path": "/a"}], [{"op": {}, "path": "/a"}],
    ],
)  # fmt: skip
def test_what_is_no_patch(operations: Any) -> None:
    with pytest.raises(InvalidInput) as refused:
        patched({"a": {}}, operations)
    assert refused.value.reason == "patch_invalid"


def test_a_patch_that_copies_itself_meets_a_bound() -> None:
    bomb = [{"op": "copy", "from": "", "path": f"/{n}"} for n in range(200)]
    with pytest.raises(LimitExceeded):
        patched({"a": "x" * 100}, bomb)
    with pytest.raises(LimitExceeded):
        patched([], [{"op": "add", "path": "/-", "value": 1}] * 257)


@given(values, values)
def test_merging_twice_is_merging_once_and_leaves_its_input_alone(target: Any, patch: Any) -> None:
    before = copy.deepcopy((target, patch))
    once = merge(target, patch)
    assert merge(once, patch) == once
    assert (target, patch) == before


@given(values, values)
def test_a_replaced_root_is_the_value_and_a_test_of_it_holds(target: Any, value: Any) -> None:
    replaced = patched(target, [{"op": "replace", "path": "", "value": value}, {"op": "test", "path": "", "value": value}])
    assert same(replaced, value)


@given(st.dictionaries(st.text("ab~/", max_size=2), values, max_size=4), st.text("ab~/", max_size=2), values)
def test_what_was_added_and_removed_leaves_what_was_there(target: dict[str, Any], name: str, value: Any) -> None:
    path = "/" + name.replace("~", "~0").replace("/", "~1")
    added = patched(target, [{"op": "add", "path": path, "value": value}])
    assert same(added, {**target, name: value})
    removed = patched(added, [{"op": "remove", "path": path}])
    assert same(removed, {key: kept for key, kept in target.items() if key != name})


@given(values, values)
def test_sameness_is_sound(one: Any, other: Any) -> None:
    assert same(one, one)
    assert same(one, other) == same(other, one)
    assert not same(1, True)
    assert not same(0, False)
    assert same(1, 1.0)
