"""A conversation with the demo agent, the desk it fills, a second process that goes on, and a fork.

python examples/shop.py
"""

import asyncio

import stateroom

STORE = "sqlite:///shop-data"


async def first_visit() -> str:
    async with await stateroom.open(STORE) as room:
        reply = await room.turn("I need black running shoes, size 10, under $120")
        print("shop:", reply.text)
        print("desk:", {name: value for name, value in reply.slots.items() if name != "last_shown"})
        return reply.conversation


async def second_visit(conversation: str) -> None:
    """Another process, another day: nothing was kept in memory."""
    async with await stateroom.open(STORE) as room:
        cheaper = await room.turn("show me cheaper ones", conversation=conversation)
        print("shop:", cheaper.text)
        other = await room.fork(conversation, metadata={"why": "what if they were white?"})  # its desk starts empty
        print("shop, on the fork:", (await room.turn("I need white running shoes", conversation=other.id)).text)
        ordered = await room.turn("add the first one to my cart", conversation=conversation, key="cart-1")
        again = await room.turn("add the first one to my cart", conversation=conversation, key="cart-1")
        assert again.response == ordered.response, "one key, one execution"
        print("shop:", ordered.text)
        async for item in room.items(conversation):
            print("     ", item["type"], item.get("name") or item.get("role") or "")


asyncio.run(second_visit(asyncio.run(first_visit())))
