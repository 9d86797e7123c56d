"""Slot filling with a cart: what a shopper says fills the desk, "cheaper ones" leans on what lies there, and the next visit
begins with what the last one knew.

python examples/retail.py          (schemas need: pip install 'stateroom[schemas]')

The desk, slot by slot:
  wish    value   what is looked for: category, size, colour, budget; filled by and by, never asked twice
  shown   list    what was shown, so that it is not shown again
  cart    map     product -> number; two devices may put things in at once
  visits  counter
A model would do the understanding; here three lines of rules do, so that the state is what there is to look at.
"""

import asyncio
import re

import msgspec

import stateroom
from stateroom import Changes
from stateroom.flows.agent import Turn

SHELF = {
    "trail-1": {"category": "shoes", "colour": "black", "price": 140},
    "city-2": {"category": "shoes", "colour": "black", "price": 95},
    "road-3": {"category": "shoes", "colour": "black", "price": 70},
    "snow-4": {"category": "boots", "colour": "brown", "price": 160},
}
SAID = {"category": r"shoes|boots", "colour": r"black|brown", "size": r"size (\d+)", "budget": r"under (\d+)"}
TAX = 0.19


class Wish(msgspec.Struct, omit_defaults=True):
    """What a shopper wants, as far as they have said. The store refuses a size that is no number."""

    category: str | None = None
    size: int | None = None
    colour: str | None = None
    budget: int | None = None


def understood(text: str) -> dict[str, object]:
    """The slots that a sentence fills."""
    found: dict[str, object] = {}
    for name, pattern in SAID.items():
        if match := re.search(pattern, text):
            found[name] = int(match[1]) if match.groups() else match[0]
    return found


async def clerk(turn: Turn) -> str:
    wish, shown, text = dict(turn.slots["wish"]), turn.slots.get("shown", []), turn.text.lower()
    if filled := understood(text):
        turn.merge("wish", filled)  # what the sentence does not name stays as it is
        wish |= filled
    if "cheaper" in text and shown:  # cheaper than what? The desk knows.
        wish["budget"] = SHELF[shown[-1]]["price"] - 1
        turn.merge("wish", {"budget": wish["budget"]})
    if text.startswith("take"):
        turn.put("cart", {shown[-1]: turn.slots.get("cart", {}).get(shown[-1], 0) + 1})
        return f"{shown[-1]} is in your cart."
    if "total" in text:
        cart = turn.slots.get("cart", {})
        return f"${sum(SHELF[name]['price'] * count for name, count in cart.items()) * (1 + TAX):.2f} with tax."
    for name, product in SHELF.items():
        fits = all(product[slot] == wish[slot] for slot in ("category", "colour") if slot in wish)
        if fits and name not in shown and product["price"] <= wish.get("budget", 10**6):
            turn.append("shown", name)
            return f"{name} for ${product['price']}" + (f" in {wish['size']}." if "size" in wish else ". Which size?")
    return "Nothing like that is left."


async def visit(room: stateroom.Room, said: list[str], *, before: stateroom.Desk | None = None) -> stateroom.Desk:
    """One visit: a conversation, and a desk that begins with what the last visit knew and was not about that visit."""
    first = await room.turn("hello", agent="greeter")
    desk = await room.session(first.session)
    known = before.state["wish"] if before is not None else {}
    carried = (
        Changes().set("wish", {name: known[name] for name in ("size", "colour") if name in known}, schema=Wish).count("visits")
    )
    await desk.apply(carried.put("cart", before.state.get("cart", {})) if before is not None else carried)
    for text in said:
        reply = await room.turn(text, conversation=first.conversation, agent="greeter")
        print(f"shopper: {text}\nclerk:   {reply.text}")
    await desk.refresh()
    return desk


async def greeter(turn: Turn) -> str:
    """Says hello on an empty desk; from then on the clerk serves."""
    return await clerk(turn) if "wish" in turn.slots else "Hello!"


async def main() -> None:
    async with await stateroom.open("sqlite:///retail-data", agents=[greeter]) as room:
        monday = await visit(room, ["I need black shoes, size 10", "show me cheaper ones", "take them", "what is the total?"])
        await monday.checkpoint("before the phone")
        phone = await room.session(monday.id)  # the same desk from another device: maps and counters never conflict
        await asyncio.gather(monday.put("cart", {"snow-4": 1}), phone.put("cart", {"trail-1": 1}))
        await monday.refresh()
        print("cart:   ", monday.state["cart"])
        await monday.roll_back("before the phone")  # it was the children
        print("cart:   ", monday.state["cart"])
        friday = await visit(room, ["boots, please", "brown", "what is the total?"], before=monday)
        print("known:  ", friday.state["wish"])


if __name__ == "__main__":
    asyncio.run(main())
