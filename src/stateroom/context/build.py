"""What the model sees of a conversation: the newest items that fit, always valid for providers (P17). Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, Literal

import msgspec

from stateroom.context.pairs import Pairs, pair_line, takes_part
from stateroom.conversation.model import Item
from stateroom.conversation.rules import ANSWERS
from stateroom.ids import NIL
from stateroom.wire.json import decode_trusted, encode

Reason = Literal["failed", "not_run", "budget", "unpaired"]
NOT_ANSWERED = "This call was not answered."


class _Call(msgspec.Struct):
    call_id: Any = None


_call = msgspec.json.Decoder(_Call).decode


class Tally(msgspec.Struct, frozen=True):
    """How many items, and how many bytes their bodies have."""

    items: int = 0
    bytes: int = 0


class Report(msgspec.Struct, frozen=True):
    """What became of the items given: `seen` = `kept` + all of `culled`.

    `closed` counts the outputs made up for calls nobody answered.
    """

    seen: Tally
    kept: Tally
    culled: dict[Reason, Tally]
    closed: int = 0


class Window:
    """`bodies` for the model (JSON), oldest first, this turn's input last; `items` are they, parsed when asked for:
    who only passes them on need not read them. `input` is this turn's input alone, as it came. `unasked` names the call
    ids of outputs in it that answer no call among the items given: no model would take them, so `bodies` has them not."""

    def __init__(self, *, bodies: list[bytes], input: list[bytes], unasked: tuple[str, ...], count: Callable[[], Report]) -> None:
        self.bodies, self.unasked = bodies, unasked
        self._input, self._count = input, count

    @cached_property
    def report(self) -> Report:
        """Counted when asked for."""
        return self._count()

    @cached_property
    def items(self) -> list[dict[str, Any]]:
        return [decode_trusted(body) for body in self.bodies]

    @cached_property
    def input(self) -> list[dict[str, Any]]:
        return [decode_trusted(body) for body in self._input]


def build(
    items: Sequence[Item], *, run: bytes, items_max: int, bytes_max: int, calls: Sequence[str | None] | None = None
) -> Window:
    """The window of `run` over a branch's items, given oldest first. `calls` are their call ids, if somebody knows them.

    Input of other turns that failed or never ran is left out, then everything older than the newest items that fit.
    The run's own input is never cut, nor is a call that it answers. An output without its call is left out; a call
    without an output gets one that says so, which no budget counts. Costs O(items given).
    """
    known = call_ids(items) if calls is None else calls
    own = [place for place, item in enumerate(items) if item.run == run] if run != NIL else []
    past = [place for place, item in enumerate(items) if not item.mark and item.run != run] if own else _unmarked(items)
    line = [items[place] for place in past + own]
    pairs = pair_line([(items[place].kind, known[place]) for place in past + own])

    fixed = set(range(len(past), len(line)))
    fixed |= {call for call, output in pairs.outputs.items() if output in fixed}
    first = _first([len(item.body) for item in line], fixed, items_max=items_max, bytes_max=bytes_max)
    within = fixed.union(range(first, len(line)))
    unpaired = {output for call, output in pairs.outputs.items() if output in within and call not in within}
    unpaired |= pairs.strays & within
    shown, closed = _closed(line, sorted(within - unpaired), pairs)

    def count() -> Report:
        return Report(
            seen=_tally(items),
            kept=_tally(item for position, item in enumerate(line) if position in within and position not in unpaired),
            culled={
                "failed": _tally(item for item in items if item.mark == "failed" and item.run != run),
                "not_run": _tally(item for item in items if item.mark == "not_run" and item.run != run),
                "budget": _tally(item for position, item in enumerate(line[:first]) if position not in fixed),
                "unpaired": _tally(line[position] for position in unpaired),
            },
            closed=closed,
        )

    unasked = tuple(known[(past + own)[position]] or "" for position in sorted(unpaired & fixed))
    return Window(bodies=shown, input=[item.body for item in line[len(past) :]], unasked=unasked, count=count)


def call_ids(items: Iterable[Item]) -> list[str | None]:
    """The call id of each call and of each output, when it has a sound one."""
    found = [_call(item.body).call_id if takes_part(item.kind) else None for item in items]
    return [call if isinstance(call, str) else None for call in found]


def _unmarked(items: Sequence[Item]) -> list[int]:
    return [place for place, item in enumerate(items) if not item.mark]


def _first(sizes: Sequence[int], fixed: set[int], *, items_max: int, bytes_max: int) -> int:
    """Where the newest items that fit beside the fixed ones begin; the first that does not fit ends the window."""
    if len(sizes) <= items_max and sum(sizes) <= bytes_max:
        return 0
    items_left = items_max - len(fixed)
    bytes_left = bytes_max - sum(sizes[position] for position in fixed)
    for position in range(len(sizes) - 1, -1, -1):
        if position in fixed:
            continue
        items_left, bytes_left = items_left - 1, bytes_left - sizes[position]
        if items_left < 0 or bytes_left < 0:
            return position + 1
    return 0


def _closed(line: Sequence[Item], kept: Sequence[int], pairs: Pairs) -> tuple[list[bytes], int]:
    """The kept bodies in order, with an output behind its group for every call that has none, and how many those are."""
    if not pairs.unanswered:
        return [line[position].body for position in kept], 0
    missing: defaultdict[int, list[bytes]] = defaultdict(list)
    shown = set(kept)
    for call, last_of_group in pairs.unanswered.items():
        if call in shown:
            missing[last_of_group].append(encode(not_answered(decode_trusted(line[call].body))))
    bodies = [body for position in kept for body in (line[position].body, *missing.get(position, ()))]
    return bodies, len(bodies) - len(kept)


def not_answered(call: dict[str, Any]) -> dict[str, Any]:
    """The output that closes a call nobody answered."""
    return {"type": ANSWERS[call["type"]], "call_id": call["call_id"], "output": NOT_ANSWERED}


def _tally(items: Iterable[Item]) -> Tally:
    sizes = [len(item.body) for item in items]
    return Tally(items=len(sizes), bytes=sum(sizes))
