"""An agent of your own: an async generator that streams, calls a tool, and keeps its orders on the desk.

python examples/waiter.py                                 embedded
stateroom serve --agent examples.waiter:waiter            behind HTTP
"""

import asyncio
import json

import stateroom
from stateroom.flows.agent import Turn

MENU = {"coffee": 3, "tea": 2, "cake": 5}


async def waiter(turn: Turn):
    found = [dish for dish in MENU if dish in turn.text.lower()]
    if not found:
        yield f"We have {', '.join(MENU)}."
        return
    call = {"type": "function_call", "call_id": f"order_{turn.run}", "name": "order", "arguments": json.dumps({"dishes": found})}
    yield call
    yield {"type": "function_call_output", "call_id": call["call_id"], "output": json.dumps({"accepted": True})}
    # Somebody else may order at the same table meanwhile: then this is asked again with the desk as it is by then.
    turn.update(lambda desk: {"orders": [*desk.get("orders", []), *found]})
    orders = turn.slots["orders"]
    for word in f"That makes {len(orders)}: {', '.join(orders)}, ${sum(MENU[dish] for dish in orders)}.".split(" "):
        yield f"{word} "


async def main() -> None:
    async with await stateroom.open("sqlite:///bar-data", agents=[waiter]) as room:
        table = await room.create(metadata={"table": "7"})
        for said in ("What do you have?", "A coffee, please", "And some cake"):
            print("guest: ", said)
            print("waiter: ", end="")
            async for event in room.stream(said, conversation=table.id):
                if event["type"] == "response.output_text.delta":
                    print(event["delta"], end="", flush=True)
            print()


if __name__ == "__main__":
    asyncio.run(main())
