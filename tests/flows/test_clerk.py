"""The clerk: the same words over the same desk always get the same answer, and nothing that is said harms it."""

from __future__ import annotations

import json
from typing import Any

import anyio
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateroom.flows.agent import AgentEvent, Delta, Done, Usage
from stateroom.hosting.clerk import Clerk
from stateroom.hosting.clerk.catalog import CATALOG
from tests.flows.turns import assert_well_formed, items, says, spoken, told, turn_of

pytestmark = pytest.mark.anyio


class Customer:
    """Keeps the record and the desk between turns, as the turn flow does."""

    def __init__(self, **request: Any) -> None:
        self.past: list[dict[str, Any]] = []
        self.slots: dict[str, Any] = {}
        self.request = request
        self.calls: list[tuple[str, dict[str, Any]]] = []

    async def say(self, *input: str | dict[str, Any]) -> str:
        given = [says(one) if isinstance(one, str) else one for one in input]
        turn = turn_of(*given, past=self.past, slots=self.slots, request=self.request, run=f"run_{len(self.past)}")
        events = await told(Clerk(), turn)
        assert_well_formed(events)
        done = [event.item for event in events if isinstance(event, Done) and event.item]
        self.past += [*given, *items(events), *done, says(spoken(events), "assistant")]
        self.slots = turn.slots
        made = (item for item in items(events) if item["type"] == "function_call")
        self.calls = [(item["name"], json.loads(item["arguments"])) for item in made]
        return spoken(events)


async def test_the_clerk_fills_slots_and_the_customer_never_repeats_themselves() -> None:
    customer = Customer()
    answer = await customer.say("I need black running shoes, size 10, under 120")
    shown = customer.slots.pop("last_shown")
    assert customer.slots == {"category": "running shoes", "colour": "black", "size": 10, "budget": 120}
    wish = {"category": "running shoes", "colour": "black", "size": 10, "max_price": 120}
    assert customer.calls == [("search_products", wish)]
    assert "Harrier" in answer

    customer.slots["last_shown"] = shown
    await customer.say("show me cheaper ones")
    assert customer.calls == [("search_products", {**wish, "below": 89})]
    cheaper = [CATALOG[id_] for id_ in customer.slots["last_shown"]]
    assert max(product.price for product in cheaper) < min(CATALOG[id_].price for id_ in shown)
    assert {(product.category, product.colour) for product in cheaper} == {("running shoes", "black")}


async def test_the_clerk_keeps_a_cart() -> None:
    customer = Customer()
    assert await customer.say("what's in my cart?") == "Your cart is empty."
    await customer.say("white running shoes in size 9.5, please")
    assert "white Harrier is in your cart" in await customer.say("add the second one")
    assert customer.calls == [("add_to_cart", {"product": "run-harrier-white", "size": 9.5})]
    assert "2 things, $267" in await customer.say("I’ll take the Moor boots")  # by name, from the whole shop
    await customer.say("add the Heron in size M")
    assert "white Heron in size M for $35" in await customer.say("what's in my cart?")
    assert "Which one" in await customer.say("remove the Tern")  # that is not in it
    assert "took the white Harrier out" in await customer.say("remove the first one")
    assert "took the white Heron out" in await customer.say("remove the t-shirt")
    assert "order is order-" in await customer.say("checkout")
    assert customer.slots["cart"] == []
    assert "nothing to pay" in await customer.say("checkout")


async def test_the_clerk_empties_the_cart() -> None:
    customer = Customer()
    customer.slots = {"cart": [{"id": "pack-ridge-black"}, {"id": "pack-ferry-green"}]}
    assert await customer.say("remove everything from my cart") == "Your cart is empty now."
    assert customer.slots["cart"] == []


async def test_the_clerk_asks_when_it_cannot_know() -> None:
    customer = Customer()
    assert "What may I show you" in await customer.say("my size is 10")
    assert "Which one" in await customer.say("add it")
    assert "Cheaper than what" in await customer.say("too expensive")
    assert "Which size" in await customer.say("show me jackets")  # 10 is no size of jackets
    assert "Which size" in await customer.say("I'll take the first")
    assert "size M" in await customer.say("M")
    assert "in your cart" in await customer.say("I'll take the first")
    assert "no black sandals" in await customer.say("black sandals")
    await customer.say("black backpacks")
    assert "cheapest I have" in await customer.say("cheaper ones")


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("what size am I?", "You wear size 10."),
        ("What’s my budget?", "Your budget is $80."),
        ("which colour do I like?", "You like blue."),
        ("how much can I spend", "Your budget is $80."),
    ],
)
async def test_the_clerk_answers_from_the_desk_without_any_conversation(question: str, answer: str) -> None:
    customer = Customer()
    customer.slots = {"size": 10, "budget": 80, "colour": "blue"}
    assert await customer.say(question) == answer
    assert "not told me" in await Customer().say(question)


@pytest.mark.parametrize("question", ["what did I say?", "What do you remember?", "What is my favourite fruit?"])
async def test_the_clerk_quotes_what_was_said_before(question: str) -> None:
    customer = Customer()
    await customer.say("My favourite fruit is apple")
    await customer.say("hello")
    answer = await customer.say(question)
    assert "My favourite fruit is apple" in answer
    assert "hello" in answer


async def test_the_clerk_takes_the_past_that_came_with_the_input_for_the_past() -> None:
    answer = await Customer().say("My name is Ana", says("Hi Ana", "assistant"), "what did I say?")
    assert answer == "You said: “My name is Ana”"


async def test_the_clerk_quotes_what_it_does_not_understand() -> None:
    assert "“xyzzy”" in await Customer().say("xyzzy")


async def test_the_clerk_greets_whoever_says_nothing() -> None:
    events = await told(Clerk(), turn_of())
    assert spoken(events).startswith("Hello!")


async def test_the_clerk_counts_words_as_tokens() -> None:
    events = await told(Clerk(), turn_of(says("thank you all"), past=[says("one two")], request={"instructions": "Be a pirate"}))
    assert events[-1] == Usage({
        "input_tokens": 8, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 11,
    })  # fmt: skip
    assert spoken(events) == "You are welcome!"
    assert sum(isinstance(event, Delta) for event in events) == 3


async def test_the_clerk_speaks_at_the_pace_it_is_asked_for() -> None:
    request = {"metadata": {"pace_ms": "99999999999"}}  # bounded to a second
    with anyio.move_on_after(0.05) as scope:
        await told(Clerk(), turn_of(says("hello"), request=request))
    assert scope.cancelled_caught
    for ignored in ("-1", "x", "", "0"):
        await told(Clerk(), turn_of(says("thanks"), request={"metadata": {"pace_ms": ignored}}))


async def test_a_desk_that_changed_meanwhile_keeps_both_changes() -> None:
    turn = turn_of(says("add the Tern"), slots={"size": 9, "colour": "black"})
    await told(Clerk(), turn)
    assert turn.state_function is not None
    theirs = {"size": 9, "cart": [{"id": "pack-errand-green"}]}
    assert [line["id"] for line in turn.state_function(theirs)["cart"]] == ["pack-errand-green", "run-tern-black"]


_scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=5))
_values: st.SearchStrategy[Any] = st.recursive(
    _scalars | st.sampled_from(sorted(CATALOG)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["id", "size", "type"]), inner, max_size=3),
    max_leaves=6,
)
_names = st.sampled_from(["size", "colour", "budget", "category", "cart", "last_shown"])
_KNOWN_WORDS = """add remove the second cheapest last one cheaper black red boots jackets shoes size 10 M under 50 $1,000
    cart checkout everything Tern Moor what did I say my budget is ? hello empty 🙂 buy it"""
_words = st.lists(st.sampled_from(_KNOWN_WORDS.split()), max_size=8)


@given(slots=st.dictionaries(_names, _values, max_size=6), words=_words)
@settings(max_examples=200, deadline=None)
def test_whatever_lies_on_the_desk_the_clerk_answers_always_the_same(slots: dict[str, Any], words: list[str]) -> None:
    async def answer() -> tuple[list[AgentEvent], Any]:
        turn = turn_of(says(" ".join(words)), slots=slots)
        return await told(Clerk(), turn), turn.slots

    events, desk = anyio.run(answer)
    assert_well_formed(events)
    assert spoken(events)
    msgspec.json.encode(desk)
    assert (events, desk) == anyio.run(answer)


# ── the clerk and the caller's own tools ────────────────────────────────────────────────────────────────────────────


def tool(name: str, *required: str, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "name": name, "parameters": parameters}


WEATHER = tool(
    "get_weather", "city", city={"type": "string"}, unit={"enum": ["celsius", "fahrenheit"]}, days={"type": ["integer", "null"]}
)  # fmt: skip


async def asked_for(text: str, *tools: Any, **request: Any) -> tuple[str, dict[str, Any]] | None:
    events = await told(Clerk(), turn_of(says(text), request={"tools": list(tools), **request}))
    assert_well_formed(events)
    done = [event.item for event in events if isinstance(event, Done) and event.item]
    if not done:
        return None
    assert spoken(events) == done[0]["arguments"]
    return done[0]["name"], json.loads(done[0]["arguments"])


async def test_the_clerk_calls_a_tool_of_the_caller_by_name_or_words() -> None:
    text = "What is the weather in Paris, in Celsius, for 3 days?"
    arguments = {"city": text, "unit": "celsius", "days": 3}
    assert await asked_for(text, tool("get_time"), WEATHER) == ("get_weather", arguments)
    assert await asked_for("call get_time", WEATHER, tool("get_time")) == ("get_time", {})
    assert await asked_for("hello", WEATHER) is None
    assert await asked_for(text, WEATHER, tool_choice="none") is None


async def test_the_clerk_calls_the_tool_it_is_told_to() -> None:
    assert await asked_for("hello", WEATHER, tool_choice="required") == ("get_weather", {"city": "hello"})
    forced = {"type": "function", "name": "get_weather"}
    assert await asked_for("hello", tool("other"), WEATHER, tool_choice=forced) == ("get_weather", {"city": "hello"})


async def test_the_clerk_fills_nested_schemas() -> None:
    line = tool("", "count", "gift", count={"type": "integer"}, gift={"type": "boolean"})["parameters"]
    lines = {"type": "array", "items": {"$ref": "#/$defs/line"}}
    order = tool("order", "lines", "pay", lines=lines, pay={"anyOf": [{"type": "number"}]})
    order["parameters"]["$defs"] = {"line": line}
    assert await asked_for("order 2, pay 1.5", order) == ("order", {"lines": [{"count": 2, "gift": True}], "pay": 1.5})


async def test_a_schema_that_refers_to_itself_is_filled_within_bounds() -> None:
    branches = {f"branch{number}": {"$ref": "#"} for number in range(4)}
    name, arguments = await asked_for("a tree", tool("tree", *branches, **branches)) or ("", {})
    assert name == "tree"
    assert len(json.dumps(arguments)) < 50_000


async def test_a_tool_loop_ends_with_the_output_quoted() -> None:
    customer = Customer(tools=[WEATHER])
    await customer.say("weather in Rome")
    call = next(item for item in customer.past if item["type"] == "function_call")
    answer = await customer.say({"type": "function_call_output", "call_id": call["call_id"], "output": "31 degrees"})
    assert answer == "get_weather says: “31 degrees”."


@given(parameters=_values, tools=st.lists(_values, max_size=2))
@settings(max_examples=50, deadline=None)
def test_P31_no_tool_schema_harms_the_clerk(parameters: Any, tools: list[Any]) -> None:
    filled = {"a": parameters, "b": {"type": "array", "items": parameters}}
    schemas = [{"type": "object", "properties": filled, "required": ["a", "b"]}, parameters]
    wild = [{"type": "function", "name": "look", "parameters": schema} for schema in schemas]
    for given_tools in (wild, wild[1:], tools):
        request = {"tools": given_tools, "tool_choice": "required"}
        assert_well_formed(anyio.run(told, Clerk(), turn_of(says("look 3"), request=request)))


async def test_P31_long_input_is_heard_in_bounded_time() -> None:
    started = anyio.current_time()
    await told(Clerk(), turn_of(says("what size am " * 20_000 + "\nend")))
    assert anyio.current_time() - started < 2
