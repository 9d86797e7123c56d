"""The one codec: what it refuses, what it keeps, and that hostile input costs no more than its length."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateroom.errors import InvalidInput
from stateroom.wire import json

HOSTILE = {
    "not JSON": (b"{", "json_invalid"),
    "trailing comma": (b'{"a":1,}', "json_invalid"),
    "two values": (b"{} {}", "json_invalid"),
    "NaN": (b'{"a":NaN}', "json_invalid"),
    "Infinity": (b'{"a":-Infinity}', "json_invalid"),
    "a number out of range": (b'{"a":1e999}', "json_invalid"),
    "lone surrogate": (b'{"a":"\\ud800"}', "json_invalid"),
    "surrogate bytes": (b'{"a":"\xed\xa0\x80"}', "json_invalid"),
    "broken UTF-8": (b'{"a":"\xff"}', "json_invalid"),
    "raw control character": (b'{"a":"\x01"}', "json_invalid"),
    "raw NUL": (b'{"a":"\x00"}', "json_invalid"),
    "escaped NUL": (b'{"a":"\\u0000"}', "json_nul"),
    "NUL in a key": (b'{"\\u0000":1}', "json_nul"),
    "NUL after an escaped backslash": (b'{"a":"\\\\\\u0000"}', "json_nul"),
    "duplicate key": (b'{"a":1,"a":2}', "json_duplicate_key"),
    "duplicate key below": (b'{"x":[{"a":1,"\\u0061":2}]}', "json_duplicate_key"),
    "deep arrays": (b"[" * 100_000 + b"]" * 100_000, "json_too_deep"),
    "deep objects": (b'{"a":' * 100_000, "json_too_deep"),
    "byte order mark": (b"\xef\xbb\xbf{}", "json_invalid"),
    "UTF-16": ('{"a":1}'.encode("utf-16"), "json_invalid"),
}
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=5), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_P31_what_is_no_sound_json_is_refused_with_a_stable_code(case: str) -> None:
    data, code = HOSTILE[case]
    with pytest.raises(InvalidInput) as refused:
        json.decode(data)
    assert refused.value.reason == code


@pytest.mark.parametrize("text", [b'"\\\\u0000"', b'"u0000"', b'["\\\\","u0000"]'])
def test_a_backslash_before_u0000_is_no_nul(text: bytes) -> None:
    assert "u0000" in str(json.decode(text))


@pytest.mark.parametrize(("given", "kept"), [
    (b'"\\u0000\\u0000"', b'"\\ufffd\\ufffd"'), (b'"\\\\u0000"', b'"\\\\u0000"'), (b'"\\\\\\u0000"', b'"\\\\\\ufffd"'),
])  # fmt: skip
def test_a_nul_is_taken_out_and_nothing_else(given: bytes, kept: bytes) -> None:
    assert json.without_nul(given) == kept


@given(values)
def test_what_was_encoded_is_decoded(value: object) -> None:
    assert json.decode(json.encode(value)) == value


@given(
    st.dictionaries(st.sampled_from("abcdef"), values, max_size=5), st.dictionaries(st.sampled_from("abxy"), values, max_size=3)
)
def test_splice_puts_the_head_first_and_keeps_the_rest_byte_for_byte(body: dict[str, object], head: dict[str, object]) -> None:
    spliced = json.fields(json.splice(head, json.encode(body)))
    assert list(spliced) == [*head, *(name for name in body if name not in head)]
    assert all(spliced[name] == json.encode({**body, **head}[name]) for name in spliced)


def test_number_spellings_and_key_order_survive() -> None:
    data = b'{"b":1.50, "a":1e2 ,"c":12345678901234567890123,"d":-0}'
    assert json.fields(data) == {"b": b"1.50", "a": b"1e2", "c": b"12345678901234567890123", "d": b"-0"}
    assert json.elements(b'[1.0, {"x" :1}]') == [b"1.0", b'{"x" :1}']


def test_brackets_in_strings_are_no_nesting() -> None:
    assert json.decode(b'["' + b"[" * 1000 + b'"]') == ["[" * 1000]


def test_nesting_of_64_is_taken_and_65_is_not() -> None:
    json.decode(b"[" * 64 + b"]" * 64)
    with pytest.raises(InvalidInput):
        json.decode(b"[" * 65 + b"]" * 65)


MANY_BRACKETS = b"[" + b"[]," * 70  # enough of them to be measured, none too deep


@pytest.mark.parametrize(
    "data",
    [
        MANY_BRACKETS + b'"' + b'\\"' * 500_000,
        MANY_BRACKETS + b'"' * 1_000_001,
        MANY_BRACKETS + b'"' + b"\\" * 1_000_001,
        b'"' + b"\\" * 1_000_000 + b"u0000",
        b"1" * 1_000_000,
    ],
    ids=["quotes in an open string", "many strings", "backslashes in an open string", "backslashes", "digits"],
)
def test_hostile_input_is_refused_in_linear_time(data: bytes) -> None:
    started = time.monotonic()
    with pytest.raises(InvalidInput):
        json.decode(data)
    assert time.monotonic() - started < 2.0  # quadratic would be minutes
