"""Output items that a model makes side by side, told one after the other as the agent contract wants them."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

from stateroom.flows.agent import AgentEvent, Delta, Done, Output, Start


class Lanes:
    """One lane per item, in the order they began. The first unfinished one speaks; what the others say waits."""

    def __init__(self) -> None:
        self._waiting: dict[Hashable, list[AgentEvent]] = {}
        self._heads: dict[Hashable, dict[str, Any]] = {}
        self._begun: set[Hashable] = set()  # lanes that have deltas
        self._done: set[Hashable] = set()

    def start(self, key: Hashable, head: dict[str, Any]) -> None:
        """An item begins. Nothing is told before its first delta: without one it comes whole."""
        if key not in self._heads:
            self._heads[key], self._waiting[key] = head, []

    def delta(self, key: Hashable, text: str) -> None:
        """More of an item that began; dropped when it did not, or has ended."""
        if key not in self._heads or key in self._done or not text:
            return
        if key not in self._begun:
            self._begun.add(key)
            self._waiting[key].append(Start(self._heads[key]))
        self._waiting[key].append(Delta(text))

    def done(self, key: Hashable, item: dict[str, Any] | None = None) -> None:
        """An item is complete: `item`, or else its head and deltas. Asking twice is asking once."""
        if item:
            self.start(key, item)
        if key in self._heads and key not in self._done:
            self._done.add(key)
            self._waiting[key].append(Done(item) if key in self._begun else Output(item or self._heads[key]))

    def done_all(self) -> None:
        """Nothing more will come of any item."""
        for key in list(self._heads):
            self.done(key)

    def tell(self) -> Iterator[AgentEvent]:
        """What can be told now."""
        while self._waiting:
            key = next(iter(self._waiting))
            yield from self._waiting[key]
            self._waiting[key] = []
            if key not in self._done:
                return
            del self._waiting[key]
