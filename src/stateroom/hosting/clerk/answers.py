"""What the clerk can do, as a table: words it listens for, and how it answers. The first line that fits answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from stateroom.hosting.clerk.catalog import CATALOG, CATEGORIES, Product, sizes_of
from stateroom.hosting.clerk.shop import Desk
from stateroom.hosting.clerk.visit import Visit

QUOTES_MAX: Final = 50
QUOTE_CHARS_MAX: Final = 200
OUTPUT_CHARS_MAX: Final = 2_000
_TRY: Final = "Try “black running shoes, size 10, under 120”, “show me cheaper ones”, “add the second one”, “what's in my cart?”."


def browse(visit: Visit) -> str:
    visit.note(visit.heard)
    if visit.desk.category is None:
        return f"Noted: {_wishes(visit.desk)}. What may I show you: {', '.join(CATEGORIES)}?"
    return _show(visit)


def cheaper(visit: Visit) -> str:
    """Cheaper than what was shown last: the customer does not repeat what they are looking for."""
    visit.note(visit.heard)
    category = visit.desk.category
    if category is None:
        return f"Cheaper than what? Tell me what you look for: {', '.join(CATEGORIES)}."
    return _show(visit, below=min((product.price for product in visit.desk.shown if product.category == category), default=None))


def add(visit: Visit) -> str:
    product = visit.chosen(visit.desk.shown) or next(iter(visit.named()), None)
    if product is None:
        return "Which one? Say “add the first one”, or its name."
    size = visit.heard.get("size", visit.desk.size)
    if product.sizes and size not in product.sizes:
        return f"Which size? The {_title(product)} comes in {', '.join(map(str, product.sizes))}."
    visit.note({name: value for name, value in visit.heard.items() if name == "size"})
    cart = visit.use("add_to_cart", product=product.id, size=size if product.sizes else None)
    return f"The {_title(product)} is in your cart. {_count(cart['cart'])}, ${cart['total']} in all."


def remove(visit: Visit) -> str:
    lines = visit.desk.cart
    if not lines:
        return "Your cart is empty already."
    if re.search(r"\b(?:all|everything|empty|clear)\b", visit.words):
        visit.use("empty_cart")
        return "Your cart is empty now."
    product = visit.chosen([CATALOG[line["id"]] for line in lines])
    if product is None:
        return f"Which one? {_cart(visit.desk)}"
    cart = visit.use("remove_from_cart", product=product.id)
    return f"I took the {_title(product)} out. {_count(cart['cart'])}, ${cart['total']} in all."


def view_cart(visit: Visit) -> str:
    visit.use("view_cart")
    return _cart(visit.desk)


def checkout(visit: Visit) -> str:
    if not visit.desk.cart:
        return "Your cart is empty: there is nothing to pay yet."
    order = visit.use("place_order", order=f"order-{visit.call_id()[5:13]}")
    return f"Thank you! That is ${order['total']}; your order is {order['order']}."


def tell_slot(visit: Visit) -> str:
    """Answer from the desk, not from the conversation: slots outlive the window."""
    desk = visit.desk
    if "size" in visit.words:
        return f"You wear size {desk.size}." if desk.size else "You have not told me your size yet."
    if re.search(r"colou?r", visit.words):
        return f"You like {desk.colour}." if desk.colour else "You have not told me a colour yet."
    return f"Your budget is ${desk.budget}." if desk.budget else "You have not told me your budget yet."


def recall(visit: Visit) -> str:
    wishes = _wishes(visit.desk)
    known = f"I know this about you: {wishes}. " if wishes else ""
    if not visit.earlier:
        return f"{known}You have said nothing to me before this."
    return f"{known}You said: {_quotes(visit.earlier)}"


def report(outputs: Sequence[tuple[str, str]]) -> str:
    """What the caller's own tools found: (name, output) each."""
    return " ".join(f"{name} says: {_quote(output, OUTPUT_CHARS_MAX)}." for name, output in outputs)


def greet(visit: Visit) -> str:
    return f"Hello! I am the clerk of a small shop: {', '.join(CATEGORIES)}. {_TRY}"


def thank(visit: Visit) -> str:
    return "You are welcome!"


def fallback(visit: Visit) -> str:
    """The clerk is no model, and says so; whoever asks about earlier words gets them back."""
    echo = f"You say: {_quote(visit.text)}. I am a simple clerk and did not understand that."
    if visit.earlier and re.search(r"\?|^(?:what|who|which|where|when|how|tell|repeat)\b", visit.words):
        echo += f" Before, you said: {_quotes(visit.earlier)}"
    return f"{echo} {_TRY}"


# ── what it listens for ─────────────────────────────────────────────────────────────────────────────────────────────

Fits = Callable[[Visit], bool]


def _says(pattern: str) -> Fits:
    found = re.compile(pattern).search
    return lambda visit: found(visit.words) is not None


def _fills_a_slot(visit: Visit) -> bool:
    return bool(visit.heard)


def _says_nothing(visit: Visit) -> bool:
    return not visit.text.strip()


def _always(visit: Visit) -> bool:
    return True


INTENTS: Final[tuple[tuple[Fits, Callable[[Visit], str]], ...]] = (
    (_says_nothing, greet),
    (_says(r"\bcheck ?out\b|\bplace (?:the|my|an) order\b"), checkout),
    (_says(r"\b(?:remove|take out|drop)\b|\b(?:empty|clear) (?:my|the) (?:cart|basket)\b"), remove),
    (_says(r"\b(?:add|put)\b|\bi'?ll (?:take|have)\b|\bbuy (?:the|it|that|this)\b"), add),
    (_says(r"\b(?:cart|basket)\b"), view_cart),
    (_says(r"\bwhat (?:did|have) i (?:just )?(?:say|said|tell|told|ask)|\bdo you (?:remember|know about me)\b"), recall),
    (_says(r"\bwh(?:at|ich)(?:'s| is)? (?:my )?(?:size|colou?r|budget)( (?:am|do|did|is) .*)?\W*$|\bcan i spend\b"), tell_slot),
    (_says(r"\bcheaper\b|\bless expensive\b|\btoo expensive\b"), cheaper),
    (_fills_a_slot, browse),
    (_says(r"^\W*(?:hi|hello|hey|good (?:morning|evening|day)|help)\b.{0,20}$"), greet),
    (_says(r"\b(?:thanks|thank you|bye)\b"), thank),
    (_always, fallback),
)


# ── how it puts things ──────────────────────────────────────────────────────────────────────────────────────────────


def _show(visit: Visit, below: int | None = None) -> str:
    desk = visit.desk
    wish: dict[str, Any] = {"category": desk.category, "colour": desk.colour, "size": desk.size_in_category}
    products = visit.use("search_products", **wish, max_price=desk.budget, below=below)["products"]
    if not products:
        why = "The ones you saw are the cheapest I have" if below else f"I have no {_wishes(desk)}"
        return f"{why}. Shall we try another colour or budget?"
    lines = [f"{number}. {line['name']} ({line['colour']}) for ${line['price']}" for number, line in enumerate(products, 1)]
    ask = " Which size do you wear?" if sizes_of(desk.category) and not desk.size_in_category else ""
    return f"Here are {_wishes(desk)}: {', '.join(lines)}.{ask}"


def _wishes(desk: Desk) -> str:
    """`black running shoes, size 10, up to $120`, as far as it is known."""
    words = " ".join(word for word in (desk.colour, desk.category) if word)
    size = desk.size if desk.category is None else desk.size_in_category
    budget = f"up to ${desk.budget}" if desk.budget else ""
    return ", ".join(part for part in (words, f"size {size}" if size else "", budget) if part)


def _cart(desk: Desk) -> str:
    if not desk.cart:
        return "Your cart is empty."
    lines = "; ".join(f"{_title(CATALOG[line['id']])}{_of_size(line)} for ${CATALOG[line['id']].price}" for line in desk.cart)
    return f"In your cart: {lines}. That is ${desk.total} in all."


def _of_size(line: dict[str, Any]) -> str:
    return f" in size {line['size']}" if "size" in line else ""


def _title(product: Product) -> str:
    return f"{product.colour} {product.name}"


def _count(lines: list[Any]) -> str:
    return "1 thing" if len(lines) == 1 else f"{len(lines)} things"


def _quotes(texts: list[str]) -> str:
    return " ".join(_quote(text) for text in texts[-QUOTES_MAX:])


def _quote(text: str, chars_max: int = QUOTE_CHARS_MAX) -> str:
    return f"“{text}”" if len(text) <= chars_max else f"“{text[:chars_max]}…”"
