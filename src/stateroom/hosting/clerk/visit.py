"""One turn in the shop: what was said, now and before, what lies on the desk, and what is done about it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from stateroom.flows.agent import Turn, text_of
from stateroom.hosting.clerk.catalog import CATALOG, Product, hear
from stateroom.hosting.clerk.shop import TOOLS, Desk
from stateroom.wire import json

HEARD_CHARS_MAX: Final = 2_000  # nobody asks a clerk for more in one breath; keeps matching cheap
_ORDINALS: Final = (
    (r"\bfirst\b|\b1st\b|(?:number|#) ?1\b", 0),
    (r"\bsecond\b|\b2nd\b|(?:number|#) ?2\b", 1),
    (r"\bthird\b|\b3rd\b|(?:number|#) ?3\b", 2),
    (r"\blast\b", -1),
)


class Visit:
    """`text` is what the customer says now, `words` its beginning for matching, `earlier` what they said before; `heard` are
    the slots it fills; `items` the tool calls made so far, with their outputs."""

    def __init__(self, turn: Turn) -> None:
        said = [text_of(item) for item in turn.window if _is_from(item, "user")]
        now = len(said) - _fresh(turn.input)
        self.turn = turn
        self.earlier, self.text = said[:now], "\n".join(said[now:])
        self.words = self.text[:HEARD_CHARS_MAX].lower().replace("’", "'")
        self.heard = hear(self.words)
        self.items: list[dict[str, Any]] = []
        self._slots = dict(turn.slots)
        self._steps: list[Callable[[Mapping[str, Any]], Mapping[str, Any]]] = []

    @property
    def desk(self) -> Desk:
        """The desk as this turn has left it so far."""
        return Desk.of(self._slots)

    @property
    def changed(self) -> bool:
        return bool(self._steps)

    def changes(self, slots: Mapping[str, Any]) -> Mapping[str, Any]:
        """Everything this turn does to the desk, for whatever the desk holds by then (a state function)."""
        changes: dict[str, Any] = {}
        for step in self._steps:
            changes |= step({**slots, **changes})
        return changes

    def note(self, heard: Mapping[str, Any]) -> None:
        """Fill slots with what was heard."""
        if heard:
            self._do(lambda slots: heard)

    def use(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Run a tool: its call and output become items, its changes go to the desk. Arguments that are None are left out."""
        given = {name: value for name, value in arguments.items() if value is not None}
        call_id = self.call_id()
        result = TOOLS[tool](self._slots, given).result
        self.items += (
            {"type": "function_call", "call_id": call_id, "name": tool, "arguments": json.encode(given).decode()},
            {"type": "function_call_output", "call_id": call_id, "output": json.encode(result).decode()},
        )
        self._do(lambda slots: TOOLS[tool](slots, given).changes)
        return result

    def call_id(self) -> str:
        """The id of the next call: of this run, and the same whenever the run is tried again."""
        return "call_" + hashlib.sha256(f"{self.turn.run}/{len(self.items)}".encode()).hexdigest()[:24]

    def chosen(self, among: Sequence[Product]) -> Product | None:
        """Which of these products the customer means, by name, price, place or kind; None when that is not clear."""
        if named := self.named():
            return next((product for product in among if product in named), None)
        if among and "cheapest" in self.words:
            return min(among, key=lambda product: product.price)
        for pattern, position in _ORDINALS:
            if re.search(pattern, self.words):
                return among[position] if -len(among) <= position < len(among) else None
        kind = self.heard.get("category")
        alike = [product for product in among if kind in (None, product.category)]
        return alike[0] if len(alike) == 1 else None

    def named(self) -> list[Product]:
        """Every product of the shop that the customer names; those in the colour they like first."""
        names = set(re.findall(r"\w+", self.words))
        colour = self.heard.get("colour", self.desk.colour)
        found = [product for product in CATALOG.values() if product.name.lower() in names]
        return sorted(found, key=lambda product: product.colour != colour)

    def _do(self, step: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> None:
        self._steps.append(step)
        self._slots |= step(self._slots)


def _is_from(item: Mapping[str, Any], role: str) -> bool:
    return item.get("type", "message") == "message" and item.get("role") == role


def _fresh(given: Sequence[Mapping[str, Any]]) -> int:
    """How many user messages of the input were not answered yet: some callers send the whole past along."""
    fresh = 0
    for item in given:
        fresh = 0 if _is_from(item, "assistant") else fresh + _is_from(item, "user")
    return fresh
