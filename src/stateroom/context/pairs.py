"""Which output answers which call. Providers refuse a call without an output and an output without a call (P17)."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from stateroom.conversation.rules import ANSWERS

_OUTPUTS = frozenset(ANSWERS.values())
_PARTIES = _OUTPUTS.union(ANSWERS)


class Pairs(msgspec.Struct, frozen=True):
    """Positions in the sequence that was paired.

    `outputs`: call -> the output that answers it. `unanswered`: call -> the last call of its group, behind which an
    output may be placed. `strays`: outputs nobody asked for.
    """

    outputs: dict[int, int]
    unanswered: dict[int, int]
    strays: set[int]


def takes_part(kind: str) -> bool:
    """Whether items of this kind are calls or answer calls."""
    return kind in _PARTIES


def pair(items: Sequence[Mapping[str, Any]]) -> Pairs:
    """Pair parsed items in order; see `pair_line`."""
    calls = ((str(item.get("type")), item.get("call_id")) for item in items)
    return pair_line([(kind, call if isinstance(call, str) else None) for kind, call in calls])


def pair_line(line: Sequence[tuple[str, str | None]]) -> Pairs:
    """Pair (kind, call id) in order; those without a call id are nobody's business.

    A group is what a model asks for at once: calls with nothing but reasoning between them. Some models use the same
    ids in every group, so an output answers the oldest open call of its id in the newest group that has one.
    """
    waiting: dict[tuple[str, str], list[tuple[int, deque[int]]]] = {}  # a stack of groups, each a queue of calls
    group, group_of, group_end = 0, dict[int, int](), dict[int, int]()
    outputs: dict[int, int] = {}
    strays: set[int] = set()
    for position, (kind, call) in enumerate(line):
        if call is None:
            if kind not in ANSWERS and kind != "reasoning":
                group = position
            continue
        if kind in ANSWERS:
            group_of[position], group_end[group] = group, position
            stack = waiting.setdefault((ANSWERS[kind], call), [])
            if not stack or stack[-1][0] != group:
                stack.append((group, deque()))
            stack[-1][1].append(position)
            continue
        if kind != "reasoning":
            group = position
        if kind in _OUTPUTS:
            stack = waiting.get((kind, call), [])
            if not stack:
                strays.add(position)
                continue
            outputs[stack[-1][1].popleft()] = position
            if not stack[-1][1]:
                stack.pop()
    unanswered = {call: group_end[number] for call, number in group_of.items() if call not in outputs}
    return Pairs(outputs=outputs, unanswered=unanswered, strays=strays)
