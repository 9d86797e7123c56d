"""What the clerk's shop sells, and the words for it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

Size = int | float | str  # shoes count, clothes are lettered


class Product(msgspec.Struct, frozen=True):
    """One thing on the shelf. `price` in whole dollars; no sizes means one fits all."""

    id: str
    name: str
    category: str
    colour: str
    price: int
    sizes: tuple[Size, ...] = ()

    def line(self) -> dict[str, Any]:
        """How it looks in a list of search results or in a cart."""
        return {"id": self.id, "name": self.name, "colour": self.colour, "price": self.price}


_SHOES: Final = (7, 8, 8.5, 9, 9.5, 10, 10.5, 11, 12)
_CLOTHES: Final = ("XS", "S", "M", "L", "XL", "XXL")

# Every product comes in every colour of its row.
_SHELVES: Final[tuple[tuple[str, str, tuple[Size, ...], tuple[str, ...], tuple[tuple[str, int], ...]], ...]] = (
    ("running shoes", "run", _SHOES, ("black", "white", "blue"),
     (("Gale", 139), ("Harrier", 118), ("Brook", 99), ("Tern", 89), ("Swift", 75), ("Wren", 59), ("Pebble", 45))),
    ("boots", "boot", _SHOES, ("black", "brown"), (("Fell", 189), ("Moor", 149), ("Quay", 119), ("Clog", 79))),
    ("sandals", "sand", _SHOES, ("brown", "blue"), (("Cove", 69), ("Dune", 49), ("Tide", 29))),
    ("jackets", "jack", _CLOTHES, ("black", "red", "green"), (("Squall", 199), ("Drizzle", 129), ("Breeze", 85))),
    ("t-shirts", "tee", _CLOTHES, ("black", "white", "red"), (("Heron", 35), ("Finch", 25), ("Plain", 15))),
    ("backpacks", "pack", (), ("black", "green"), (("Ridge", 110), ("Ferry", 70), ("Errand", 40))),
)  # fmt: skip

CATALOG: Final[Mapping[str, Product]] = {
    product.id: product
    for category, short, sizes, colours, models in _SHELVES
    for name, price in models
    for colour in colours
    for product in [Product(f"{short}-{name.lower()}-{colour}", name, category, colour, price, sizes)]
}
CATEGORIES: Final = tuple(shelf[0] for shelf in _SHELVES)
COLOURS: Final = tuple(sorted({product.colour for product in CATALOG.values()}))

_CATEGORY_WORDS: Final[tuple[tuple[str, str], ...]] = (
    (r"running shoes?|runners?|trainers?|sneakers?|shoes?", "running shoes"),
    (r"boots?", "boots"),
    (r"sandals?", "sandals"),
    (r"jackets?|coats?", "jackets"),
    (r"t-?shirts?|tees?|shirts?", "t-shirts"),
    (r"backpacks?|rucksacks?|bags?", "backpacks"),
)
_MONEY: Final = r"[$€£]?\s*(\d{1,3}(?:,\d{3})+|\d{1,6})(?:\.\d+)?\b"
_BUDGET: Final = re.compile(
    rf"(?:under|below|less than|up to|at most|max(?:imum)?|budget|no more than|within|spend)(?: (?:is|of|to|about))*\s*{_MONEY}"
)
_ANY_SIZE: Final = r"(\d{1,2}(?:\.5)?|xxl|xs|xl|s|m|l)"
_SIZE: Final = re.compile(rf"\bsize(?: is|:)?\s*{_ANY_SIZE}\b|^\s*{_ANY_SIZE}\s*[.!]?\s*$")
_SIZE_WORDS: Final[Mapping[str, str]] = {"small": "S", "medium": "M", "large": "L"}


def hear(text: str) -> dict[str, Any]:
    """The slots a sentence fills: category, colour, size, budget."""
    text = text.lower()
    heard: dict[str, Any] = {}
    for words, category in _CATEGORY_WORDS:
        if re.search(rf"\b(?:{words})\b", text):
            heard["category"] = category
            break
    for colour in COLOURS:
        if re.search(rf"\b{colour}\b", text):
            heard["colour"] = colour
            break
    if size := _size(text):
        heard["size"] = size
    if money := _BUDGET.search(text):
        heard["budget"] = int(money.group(1).replace(",", ""))
    return heard


def _size(text: str) -> Size | None:
    if found := _SIZE.search(text):
        written = found.group(1) or found.group(2)
        if written[0].isdigit():
            return float(written) if "." in written else int(written)
        return written.upper()
    return next((size for word, size in _SIZE_WORDS.items() if re.search(rf"\b{word}\b", text)), None)


def search(
    *,
    category: str | None = None,
    colour: str | None = None,
    size: Size | None = None,
    max_price: float | None = None,
    below: float | None = None,
) -> list[Product]:
    """What fits, dearest first. `max_price` may be reached, `below` may not; what comes in no
    sizes fits everybody."""
    found = (
        product
        for product in CATALOG.values()
        if category in (None, product.category)
        and colour in (None, product.colour)
        and _fits(product, size)
        and (max_price is None or product.price <= max_price)
        and (below is None or product.price < below)
    )
    return sorted(found, key=lambda product: (-product.price, product.id))


def _fits(product: Product, size: Size | None) -> bool:
    return size is None or not product.sizes or size in product.sizes


def sizes_of(category: str | None) -> frozenset[Size]:
    """The sizes that things of a category come in."""
    return frozenset(size for product in CATALOG.values() if product.category == category for size in product.sizes)
