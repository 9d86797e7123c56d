"""The clerk's desk and tools. A tool is a pure function of the slots and its arguments, so that the same calls can be
played again over slots that somebody changed meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from stateroom.hosting.clerk.catalog import CATALOG, CATEGORIES, COLOURS, Product, Size, search, sizes_of

SHOWN_MAX: Final = 3
SIZE_CHARS_MAX: Final = 8


class Desk(msgspec.Struct, frozen=True):
    """The slots as the clerk understands them. Anybody may write slots: what makes no sense counts as not there."""

    category: str | None
    colour: str | None
    size: Size | None
    budget: float | None
    cart: list[dict[str, Any]]
    shown: list[Product]

    @classmethod
    def of(cls, slots: Mapping[str, Any]) -> Desk:
        return cls(
            category=_one_of(CATEGORIES, slots.get("category")),
            colour=_one_of(COLOURS, slots.get("colour")),
            size=size if _is_size(size := slots.get("size")) else None,
            budget=budget if _is_number(budget := slots.get("budget")) else None,
            cart=[line for line in _list(slots.get("cart")) if isinstance(line, dict) and _product(line.get("id"))],
            shown=[product for id_ in _list(slots.get("last_shown")) if (product := _product(id_))],
        )

    @property
    def size_in_category(self) -> Size | None:
        """The size, if it is of the kind that the category knows: shoes are numbered, clothes are lettered."""
        kinds = {isinstance(size, str) for size in sizes_of(self.category)}
        return self.size if kinds == {isinstance(self.size, str)} else None

    @property
    def total(self) -> int:
        """What the cart costs, in whole dollars, by the catalog's prices."""
        return sum(CATALOG[line["id"]].price for line in self.cart)


class Outcome(msgspec.Struct, frozen=True):
    """What a tool found, and which slots it changes."""

    result: dict[str, Any]
    changes: dict[str, Any]


def _search_products(slots: Mapping[str, Any], wish: Mapping[str, Any]) -> Outcome:
    lines = [product.line() for product in search(**wish)[:SHOWN_MAX]]
    return Outcome({"products": lines}, {"last_shown": [line["id"] for line in lines]} if lines else {})


def _add_to_cart(slots: Mapping[str, Any], what: Mapping[str, Any]) -> Outcome:
    line = CATALOG[what["product"]].line() | {name: what[name] for name in ("size",) if name in what}
    return _with_cart([*Desk.of(slots).cart, line])


def _remove_from_cart(slots: Mapping[str, Any], what: Mapping[str, Any]) -> Outcome:
    cart = list(Desk.of(slots).cart)
    for line in cart:
        if line["id"] == what["product"]:
            cart.remove(line)
            break
    return _with_cart(cart)


def _view_cart(slots: Mapping[str, Any], what: Mapping[str, Any]) -> Outcome:
    return Outcome(_with_cart(Desk.of(slots).cart).result, {})


def _empty_cart(slots: Mapping[str, Any], what: Mapping[str, Any]) -> Outcome:
    return _with_cart([])


def _place_order(slots: Mapping[str, Any], what: Mapping[str, Any]) -> Outcome:
    return Outcome({"order": what["order"], "total": Desk.of(slots).total}, {"cart": []})


def _with_cart(cart: list[dict[str, Any]]) -> Outcome:
    total = sum(CATALOG[line["id"]].price for line in cart)
    return Outcome({"cart": cart, "total": total}, {"cart": cart})


Tool = Callable[[Mapping[str, Any], Mapping[str, Any]], Outcome]
TOOLS: Final[Mapping[str, Tool]] = {
    "search_products": _search_products,
    "add_to_cart": _add_to_cart,
    "remove_from_cart": _remove_from_cart,
    "empty_cart": _empty_cart,
    "view_cart": _view_cart,
    "place_order": _place_order,
}


def _product(id_: Any) -> Product | None:
    return CATALOG.get(id_) if isinstance(id_, str) else None


def _one_of(known: tuple[str, ...], value: Any) -> str | None:
    return value if value in known else None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_size(value: Any) -> bool:
    return _is_number(value) or (isinstance(value, str) and len(value) <= SIZE_CHARS_MAX)
