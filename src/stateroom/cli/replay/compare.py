"""What was played against what is kept: item for item, order included, our ids and status aside. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

_OURS = frozenset({"id", "status"})
_DIFFERENCES_MAX = 5
_CONTEXT = 40  # bytes shown around a difference
_spell = msgspec.json.Encoder(order="deterministic").encode


class Verdict(msgspec.Struct, frozen=True):
    """Counts of items. `equal` are right and in their place, `different` the places where something else stands.

    Of those: `lost` were acknowledged and are nowhere; `doubled` are there more often than they were said; `foreign`
    nobody said; `moved` are all there, in another order. `differences` describes the first few.
    """

    conversations: int = 0
    items: int = 0
    equal: int = 0
    different: int = 0
    lost: int = 0
    doubled: int = 0
    foreign: int = 0
    moved: int = 0
    differences: tuple[str, ...] = ()

    @property
    def good(self) -> bool:
        return not self.different


def compare(name: str, said: Sequence[Mapping[str, Any]], kept: Sequence[Mapping[str, Any]]) -> Verdict:
    """One conversation."""
    left, right = [_bare(item) for item in said], [_bare(item) for item in kept]
    equal = sum(one == other for one, other in zip(left, right, strict=False))
    differences = [
        f"{name}, item {place + 1}: said {_apart(left, right, place)}, kept {_apart(right, left, place)}"
        for place in range(max(len(left), len(right)))
        if left[place : place + 1] != right[place : place + 1]
    ]
    lost, surplus = Counter(left) - Counter(right), Counter(right) - Counter(left)
    doubled = sum(count for item, count in surplus.items() if item in set(left))
    return Verdict(
        conversations=1,
        items=len(said),
        equal=equal,
        different=len(differences),
        lost=lost.total(),
        doubled=doubled,
        foreign=surplus.total() - doubled,
        moved=len(differences) if not lost and not surplus else 0,
        differences=tuple(differences[:_DIFFERENCES_MAX]),
    )


def total(verdicts: Iterable[Verdict]) -> Verdict:
    """All of them together."""
    sums: Counter[str] = Counter()
    differences: list[str] = []
    for verdict in verdicts:
        sums.update({name: value for name, value in msgspec.structs.asdict(verdict).items() if isinstance(value, int)})
        differences += verdict.differences
    return Verdict(**sums, differences=tuple(differences[:_DIFFERENCES_MAX]))


def _bare(item: Mapping[str, Any]) -> bytes:
    return _spell({name: value for name, value in item.items() if name not in _OURS})


def _apart(items: Sequence[bytes], others: Sequence[bytes], place: int) -> str:
    """The part of an item where it begins to differ from the other one in its place."""
    if place >= len(items):
        return "nothing"
    item, other = items[place], others[place] if place < len(others) else b""
    same = next((n for n, (a, b) in enumerate(zip(item, other, strict=False)) if a != b), min(len(item), len(other)))
    start = max(same - _CONTEXT, 0)
    shown = item[start : same + 2 * _CONTEXT].decode(errors="replace")
    return f"{'…' * (start > 0)}{shown}{'…' * (same + 2 * _CONTEXT < len(item))}"
