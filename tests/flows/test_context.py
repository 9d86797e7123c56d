"""The window: always valid for providers, always with this turn's input, never more than the budget."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateroom.context.build import NOT_ANSWERED, Window, build
from stateroom.context.pairs import pair
from stateroom.conversation.model import Item, Mark
from stateroom.conversation.rules import ANSWERS
from stateroom.ids import NIL

RUN, BEFORE = b"r" * 16, b"o" * 16
OUTPUTS = frozenset(ANSWERS.values())


def stored(body: Mapping[str, Any], seq: int = 1, *, run: bytes = BEFORE, mark: Mark = "") -> Item:
    kind = body.get("type", "message")
    return Item(
        seq=seq, id=seq.to_bytes(16, "big"), branch=NIL, run=run, kind=kind, role=body.get("role", ""), origin="user",
        trust=60, mark=mark, at=0, body=msgspec.json.encode(body),
    )  # fmt: skip


def says(text: str, role: str = "user") -> dict[str, Any]:
    return {"type": "message", "role": role, "content": text}


def call(id_: str, kind: str = "function_call") -> dict[str, Any]:
    return {"type": kind, "call_id": id_, "name": "look", "arguments": "not even JSON"}


def output(id_: str, text: str = "found", kind: str = "function_call_output") -> dict[str, Any]:
    return {"type": kind, "call_id": id_, "output": text}


def window(past: Sequence[dict[str, Any]], *, input: Sequence[dict[str, Any]] = (), items_max: int = 100) -> Window:
    items = [stored(body, seq) for seq, body in enumerate(past, 1)]
    items += [stored(body, seq, run=RUN) for seq, body in enumerate(input, len(items) + 1)]
    return build(items, run=RUN, items_max=items_max, bytes_max=1 << 20)


def assert_valid_for_providers(items: Sequence[Mapping[str, Any]]) -> None:
    """A judge of its own: at every point no more outputs than calls of an id, and at the end as many."""
    open_calls: Counter[tuple[str, str]] = Counter()
    for item in items:
        kind, id_ = item.get("type"), item.get("call_id")
        if not isinstance(id_, str):
            continue
        if kind in ANSWERS:
            open_calls[ANSWERS[kind], id_] += 1
        elif kind in OUTPUTS:
            open_calls[kind, id_] -= 1
            assert open_calls[kind, id_] >= 0, f"an output of {id_} has no call before it"
    assert not +open_calls, f"calls without an output: {+open_calls}"


def test_everything_that_fits_comes_in_order_and_as_it_was() -> None:
    past = [says("hello"), {"type": "x_unknown", "deep": [1, {"a": None}]}, call("c1"), output("c1"), says("hi", "assistant")]
    built = window(past, input=[says("more")])
    assert built.items == [*past, says("more")]
    assert built.input == [says("more")]
    assert built.report.kept == built.report.seen
    assert built.report.closed == 0


def test_the_newest_items_win_and_the_report_says_what_was_culled() -> None:
    past = [says(f"m{number}") for number in range(10)]
    built = window(past, input=[says("now")], items_max=4)
    assert built.items == [*past[-3:], says("now")]
    assert built.report.culled["budget"].items == 7
    assert built.report.culled["budget"].bytes == 7 * len(msgspec.json.encode(past[0]))


def test_the_budget_counts_bytes_and_ends_at_the_first_item_that_does_not_fit() -> None:
    past = [says("small"), says("x" * 1000), says("tiny")]
    items = [stored(body, seq) for seq, body in enumerate(past, 1)] + [stored(says("now"), 9, run=RUN)]
    built = build(items, run=RUN, items_max=100, bytes_max=500)
    assert built.items == [says("tiny"), says("now")]


def test_this_turns_input_is_never_cut() -> None:
    mine = [says("a" * 1000), says("b" * 1000)]
    built = window([says("old")], input=mine, items_max=0)
    assert built.items == mine == built.input
    assert built.report.culled["budget"].items == 1


def test_marked_input_of_other_turns_is_left_out_and_of_this_turn_kept() -> None:
    items = [
        stored(says("bad"), 1, mark="failed"), stored(says("never ran"), 2, mark="not_run"), stored(says("good"), 3),
        stored(says("mine"), 4, run=RUN, mark="failed"),
    ]  # fmt: skip
    built = build(items, run=RUN, items_max=10, bytes_max=1000)
    assert built.items == [says("good"), says("mine")]
    assert (built.report.culled["failed"].items, built.report.culled["not_run"].items) == (1, 1)


def test_input_comes_last_even_when_others_wrote_after_it() -> None:
    items = [stored(says("mine"), 1, run=RUN), stored(says("theirs"), 2)]
    assert build(items, run=RUN, items_max=10, bytes_max=1000).items == [says("theirs"), says("mine")]


def test_without_a_run_there_is_no_input() -> None:
    items = [stored(says("appended by hand"), 1, run=NIL)]
    built = build(items, run=NIL, items_max=10, bytes_max=1000)
    assert built.items == [says("appended by hand")]
    assert built.input == []
    assert build(items, run=NIL, items_max=0, bytes_max=0).items == []


def test_P17_an_output_whose_call_was_culled_is_left_out() -> None:
    built = window([call("c1"), output("c1"), says("there", "assistant")], input=[says("and?")], items_max=3)
    assert built.items == [says("there", "assistant"), says("and?")]
    assert built.report.culled["unpaired"].items == 1
    assert built.report.culled["budget"].items == 1


def test_P17_an_open_call_is_closed_behind_its_group() -> None:
    built = window([call("c1"), call("c2"), output("c2"), says("well", "assistant")], input=[says("never mind")])
    assert built.items == [
        call("c1"), call("c2"), output("c1", NOT_ANSWERED), output("c2"), says("well", "assistant"), says("never mind"),
    ]  # fmt: skip
    assert built.report.closed == 1


def test_P17_an_open_call_that_was_culled_is_not_closed() -> None:
    built = window([call("c1"), call("c2"), output("c2")], input=[says("go on")], items_max=3)
    assert built.items == [call("c2"), output("c2"), says("go on")]
    assert built.report.closed == 0


@pytest.mark.parametrize("kind", sorted(ANSWERS))
def test_P17_every_kind_of_call_is_closed_by_its_kind_of_output(kind: str) -> None:
    built = window([call("c1", kind)], input=[says("so?")])
    assert built.items[1] == {"type": ANSWERS[kind], "call_id": "c1", "output": NOT_ANSWERED}


def test_P17_a_call_that_this_turn_answers_is_not_closed_and_not_cut() -> None:
    past = [call("c1"), *(says(f"m{number}") for number in range(5))]
    built = window(past, input=[output("c1")], items_max=3)
    assert built.items == [call("c1"), says("m4"), output("c1")]
    assert built.report.closed == 0


def test_P17_an_output_nobody_asked_for_stays_in_the_input_and_out_of_the_window() -> None:
    built = window([says("hello")], input=[output("c9"), says("and this")])
    assert built.items == [says("hello"), says("and this")]
    assert built.input == [output("c9"), says("and this")]
    assert built.unasked == ("c9",)


def test_P17_failed_input_no_longer_answers_its_call() -> None:
    items = [stored(call("c1"), 1), stored(output("c1", "poison"), 2, mark="failed"), stored(output("c1"), 3, run=RUN)]
    assert build(items, run=RUN, items_max=10, bytes_max=1000).items == [call("c1"), output("c1")]


def test_repeated_call_ids_pair_in_order() -> None:
    past = [call("c"), output("c", "1"), call("c"), output("c", "2"), call("c"), call("c"), output("c", "3"), output("c", "4")]
    assert window(past).items == past
    assert pair(past).outputs == {0: 1, 2: 3, 4: 6, 5: 7}


def test_an_output_answers_the_newest_group_that_used_its_id() -> None:
    past = [call("call_0"), says("forget it"), call("call_0"), output("call_0")]
    assert window(past).items == [call("call_0"), output("call_0", NOT_ANSWERED), *past[1:]]


def test_reasoning_does_not_part_a_group() -> None:
    reasoning = {"type": "reasoning", "summary": []}
    assert window([call("a"), reasoning, call("b"), output("a"), output("b")]).report.closed == 0
    assert pair([call("a"), reasoning, call("b")]).unanswered == {0: 2, 2: 2}


def test_conversations_may_begin_with_the_assistant_or_with_an_output() -> None:
    assert window([says("welcome", "assistant")], input=[says("hi")]).items[0] == says("welcome", "assistant")
    assert window([output("c1"), says("ok", "assistant")], input=[says("hi")]).items[0] == says("ok", "assistant")


def test_items_without_a_call_id_are_untouched() -> None:
    odd = [{"type": "function_call", "name": "f"}, {"type": "function_call_output", "call_id": 7}, {"role": "user"}]
    assert window(odd).items == odd


# ── for all conversations ───────────────────────────────────────────────────────────────────────────────────────────

_ids = st.sampled_from(["a", "b", "c"])
_bodies = st.one_of(
    st.builds(says, st.text(max_size=5), st.sampled_from(["user", "assistant", "developer"])),
    st.builds(call, _ids, st.sampled_from(["function_call", "custom_tool_call"])),
    st.builds(output, _ids, kind=st.sampled_from(["function_call_output", "custom_tool_call_output"])),
    st.sampled_from([{"type": "reasoning", "summary": []}, {"type": "x_new", "call_id": "a"}, {"type": "function_call"}]),
)
_marks: st.SearchStrategy[Mark] = st.sampled_from(["", "", "", "failed", "not_run"])


@given(
    past=st.lists(st.tuples(_bodies, _marks), max_size=25), mine=st.lists(_bodies, max_size=6),
    items_max=st.integers(0, 30), bytes_max=st.integers(0, 1500),
)  # fmt: skip
def test_P17_every_window_is_valid(
    past: list[tuple[dict[str, Any], Mark]], mine: list[dict[str, Any]], items_max: int, bytes_max: int
) -> None:
    items = [stored({**body, "n": seq}, seq, mark=mark) for seq, (body, mark) in enumerate(past, 1)]
    items += [stored({**body, "n": seq}, seq, run=RUN) for seq, body in enumerate(mine, len(past) + 1)]
    before = list(items)
    built = build(items, run=RUN, items_max=items_max, bytes_max=bytes_max)
    report = built.report

    assert_valid_for_providers(built.items)
    shown = [item["n"] for item in built.items if "n" in item]
    assert shown == sorted(set(shown))
    assert not any(items[seq - 1].mark for seq in shown)
    assert [item["n"] for item in built.input] == list(range(len(past) + 1, len(items) + 1))
    refused = [item["call_id"] for item in built.input if item["n"] not in shown]
    assert refused == list(built.unasked)
    answered = sum(1 for item in built.input if item.get("type") in OUTPUTS)  # calls that had to be kept beyond the budget
    assert sum(1 for seq in shown if seq <= len(past)) <= max(0, items_max - len(mine)) + answered

    assert report.kept.items == len(shown)
    assert report.closed == len(built.items) - len(shown)
    assert report.kept.items + sum(tally.items for tally in report.culled.values()) == report.seen.items == len(items)
    assert report.kept.bytes + sum(tally.bytes for tally in report.culled.values()) == report.seen.bytes
    again = build(items, run=RUN, items_max=items_max, bytes_max=bytes_max)
    assert (again.items, again.input, again.report) == (built.items, built.input, report)
    assert items == before
