"""Paths of branches, what tombstones hide, where forks hang, and what a draft must be."""

from __future__ import annotations

from typing import Any

import pytest

from stateroom import limits
from stateroom.conversation import rules
from stateroom.conversation.model import Branch, Segment
from stateroom.errors import InvalidInput, LimitExceeded
from stateroom.ids import NIL
from stateroom.wire import json


def branch(name: str, parent: str = "", *, up_to: int = 0, count: int = 0, tail: int = 0, deletions: int = 0) -> Branch:
    return Branch(
        id=name.encode(),
        conversation=b"c",
        owner="o",
        parent=parent.encode() or NIL,
        up_to=up_to,
        parent_count=count,
        tail=tail or up_to,
        deletions=deletions,
    )


ROOT = branch("root", tail=9, deletions=2)
FORK = branch("fork", "root", up_to=5, count=1, tail=7, deletions=3)
NESTED = branch("nested", "fork", up_to=6, count=2, tail=8)
LOW = branch("low", "fork", up_to=3, count=3, tail=4)  # hangs on a tombstone of `fork`, below where that one left root


@pytest.mark.parametrize(
    ("path", "segments"),
    [
        ([ROOT], [("root", 0, 9, 2)]),
        ([FORK, ROOT], [("fork", 5, 7, 3), ("root", 0, 5, 1)]),
        ([NESTED, FORK, ROOT], [("nested", 6, 8, 0), ("fork", 5, 6, 2), ("root", 0, 5, 1)]),
        ([LOW, FORK, ROOT], [("low", 3, 4, 0), ("fork", 5, 3, 3), ("root", 0, 3, 1)]),
    ],
)
def test_a_path_is_the_segments_a_branch_shows(path: list[Branch], segments: list[tuple[str, int, int, int]]) -> None:
    assert rules.path(path) == [Segment(branch=name.encode(), lo=lo, hi=hi, count=count) for name, lo, hi, count in segments]


@pytest.mark.parametrize("path", [[ROOT], [FORK, ROOT], [NESTED, FORK, ROOT], [LOW, FORK, ROOT]])
def test_P2_segments_cover_every_seq_once(path: list[Branch]) -> None:
    seqs = [seq for part in rules.path(path) for seq in range(part.lo + 1, part.hi + 1)]
    assert sorted(seqs) == list(range(1, path[0].tail + 1))


@pytest.mark.parametrize(
    ("tombstones", "path", "hidden"),
    [
        ([], [ROOT], set()),
        ([("root", 3, 1), ("root", 4, 2)], [ROOT], {3, 4}),
        ([("root", 3, 1), ("root", 4, 2)], [FORK, ROOT], {3}),  # the fork left when there was one
        ([("fork", 2, 3)], [FORK, ROOT], {2}),  # an ancestor's item, deleted in the fork
        ([("fork", 2, 3)], [NESTED, FORK, ROOT], set()),  # which the nested one, made before, still shows
        ([("fork", 6, 2), ("root", 1, 1)], [NESTED, FORK, ROOT], {1, 6}),
        ([("other", 1, 1)], [ROOT], set()),
    ],
)
def test_a_tombstone_counts_up_to_the_number_the_path_knows(
    tombstones: list[tuple[str, int, int]], path: list[Branch], hidden: set[int]
) -> None:
    given = [(name.encode(), seq, number) for name, seq, number in tombstones]
    assert rules.hidden(given, rules.path(path)) == hidden


PATH = [NESTED, FORK, ROOT]


@pytest.mark.parametrize(
    ("up_to", "owns", "parent", "count"),
    [
        (8, [False, False, False], "nested", 0),
        (7, [False, False, False], "nested", 0),
        (6, [False, False, False], "fork", 2),
        (5, [False, False, False], "root", 1),
        (0, [False, False, False], "root", 1),
        (5, [False, True, False], "fork", 2),  # a tombstone of `fork` at or below 5 must go on hiding
        (5, [True, False, False], "nested", 0),
        (3, [False, False, True], "root", 1),
    ],
)
def test_a_fork_hangs_on_the_nearest_branch_that_owns_what_it_shows(
    up_to: int, owns: list[bool], parent: str, count: int
) -> None:
    found, known = rules.fork_parent(PATH, up_to, owns, tail=NESTED.tail)
    assert (found.id, known) == (parent.encode(), count)


@pytest.mark.parametrize("up_to", [-1, 9, 10**9])
def test_a_fork_point_lies_within_the_branch(up_to: int) -> None:
    with pytest.raises(InvalidInput) as refused:
        rules.fork_parent(PATH, up_to, [False] * 3, tail=8)
    assert refused.value.reason == "fork_point_invalid"


# ── drafts ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("item", "kind", "origin", "trust"),
    [
        ({"type": "message", "role": "user"}, "message", "user", 60),
        ({"role": "assistant", "content": "hi"}, "message", "agent", 50),
        ({"role": "developer"}, "message", "operator", 100),
        ({"role": "invented"}, "message", "unknown", 0),
        ({"type": "function_call"}, "function_call", "agent", 50),
        ({"type": "function_call_output"}, "function_call_output", "tool", 20),
        ({"type": "mcp_call"}, "mcp_call", "agent", 50),
        ({"type": "new_call_output"}, "new_call_output", "tool", 20),
        ({"type": "from_tomorrow", "trust": 100, "origin": "operator"}, "from_tomorrow", "unknown", 0),
    ],
)
def test_origin_and_trust_come_from_the_rule_not_from_the_item(item: dict[str, Any], kind: str, origin: str, trust: int) -> None:
    body = json.encode(item)
    draft = rules.draft(b"i", item, body)
    assert (draft.kind, draft.origin, draft.trust, draft.body) == (kind, origin, trust, body)
    imported = rules.draft(b"i", item, body, imported=True)
    assert (imported.origin, imported.trust) == ("import", 10)


@pytest.mark.parametrize(
    ("item", "code"),
    [
        ({}, "item_type_missing"),
        ({"type": ""}, "item_type_missing"),
        ({"type": 7}, "item_type_missing"),
        ({"type": "message"}, "item_role_missing"),
        ({"type": "message", "role": ["user"]}, "wrong_type"),
    ],
)
def test_P31_an_item_without_a_sound_head_is_refused(item: dict[str, Any], code: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        rules.draft(b"i", item, json.encode(item))
    assert refused.value.reason == code


def test_P31_an_item_is_bounded() -> None:
    item = {"type": "x"}
    assert rules.draft(b"i", item, b"x" * limits.ITEM_BYTES_MAX).kind == "x"
    with pytest.raises(LimitExceeded) as refused:
        rules.draft(b"i", item, b"x" * (limits.ITEM_BYTES_MAX + 1))
    assert refused.value.reason == "item_too_large"


@pytest.mark.parametrize(
    ("item", "call"),
    [
        ({"type": "function_call", "call_id": "c1"}, "c1"),
        ({"type": "function_call_output", "call_id": "c1"}, "c1"),
        ({"type": "new_call_output", "call_id": "c2"}, "c2"),
        ({"type": "function_call", "call_id": 7}, None),
        ({"type": "function_call"}, None),
        ({"type": "message", "role": "user", "call_id": "c1"}, None),
    ],
)
def test_calls_and_their_outputs_know_their_call(item: dict[str, Any], call: str | None) -> None:
    assert rules.call_of(rules.draft(b"i", item, b""), item) == call
