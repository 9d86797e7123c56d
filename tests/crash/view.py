"""What a client makes of a stream: the rules of the OpenAI wire and of resets, kept by itself, to be held against the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def wrong_with_stream(events: Sequence[dict[str, Any]]) -> list[str]:
    """Numbers with holes, parts of items nobody began, items that never end, or another answer than the last event says.

    A `response.in_progress` without output after items says that those are void: their worker was lost or waited.
    """
    numbers = [event["sequence_number"] for event in events]
    faults = [] if numbers == list(range(len(numbers))) else [f"the numbers are {numbers}"]
    items: dict[int, dict[str, Any]] = {}
    pieces: dict[str, str] = {}
    for event in events:
        name, index = event["type"], event.get("output_index")
        if name == "response.in_progress" and not event["response"]["output"]:
            faults += [f"item {at} was left open" for at, item in items.items() if item["status"] == "in_progress"]
            items.clear()
        elif name == "response.output_item.added":
            if index in items:
                faults.append(f"item {index} was begun twice")
            items[index] = event["item"]
        elif name == "response.output_item.done":
            if items.get(index, {}).get("id") != event["item"]["id"]:
                faults.append(f"item {index} ended and had not begun")
            items[index] = event["item"]
            said = "".join(part.get("text", "") for part in event["item"].get("content", ()))
            if said != pieces.get(event["item"]["id"], ""):
                faults.append(f"item {index} ended as {said!r} and came as {pieces.get(event['item']['id'])!r}")
        elif name == "response.output_text.delta":
            if items.get(index, {}).get("id") != event["item_id"]:
                faults.append(f"more of item {index}, which had not begun")
            pieces[event["item_id"]] = pieces.get(event["item_id"], "") + event["delta"]
        elif name == "response.output_text.done" and pieces.get(event["item_id"], "") != event["text"]:
            faults.append(f"{event['text']!r} came as {pieces.get(event['item_id'])!r}")
    return faults + _wrong_with_end(events, list(items.values()))


def _wrong_with_end(events: Sequence[dict[str, Any]], items: list[dict[str, Any]]) -> list[str]:
    """The last event, which has the whole answer."""
    last = events[-1] if events else {"type": "nothing"}
    if last["type"] not in ("response.completed", "response.incomplete", "response.failed"):
        return [f"the stream ends with {last['type']}"]
    if last["type"] == "response.completed" and last["response"]["output"] != items:
        return [f"the answer is {last['response']['output']}, its items were {items}"]
    return []
