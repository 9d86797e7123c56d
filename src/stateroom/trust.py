"""How far what is stored may be believed, 0..100: by where it came from, never by what it claims (D14, P32)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

TRUST: Mapping[str, int] = {"operator": 100, "user": 60, "agent": 50, "tool": 20, "import": 10, "unknown": 0}


def ceiling(origin: str) -> int:
    """The most that this origin is trusted. `agent:clerk` is an agent; an origin that nobody knows is trusted with nothing."""
    return TRUST.get(origin.partition(":")[0], 0)


def derived(origin: str, claimed: int, sources: Iterable[int]) -> int:
    """What content of this origin is trusted that was made from `sources`: never more than any of them."""
    return max(0, min(claimed, ceiling(origin), *sources))
