"""The kinds of entries in a run's log, and how many wire events each stands for (D9).

| kind | body | wire events |
|---|---|---|
| `opened` | | response.created, response.in_progress |
| `accepted` | | response.created (status queued) |
| `started` | | response.in_progress |
| `reset` | | response.in_progress with empty output: what was open begins again under new ids |
| `open` | the item's head | output_item.added; for a message also content_part.added |
| `delta` | UTF-8 text | one delta of the open item |
| `close` | the whole item, or nothing: head plus deltas | the open item's done events |
| `item` | the item | all events of an item that was not streamed |
| `end` | | all events of outputs that no entry showed, then the terminal event |

The four in the middle name their item; when it is purged their bodies are blanked, and they stand for as many events
that show nothing.

Counts are part of the store's contents: wire numbers are given when the entry is written. Change a count only with a
new kind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stateroom.run.model import NewRow
from stateroom.wire import json

OPENED = (NewRow("opened", 2),)
QUEUED = (NewRow("accepted", 1),)
STARTED = (NewRow("started", 1),)
RESET = (NewRow("reset", 1),)

CLOSING: Mapping[str, int] = {"message": 3, "function_call": 2}  # text.done + part.done + item.done; arguments.done + item.done


def open_row(id_: bytes, head: Mapping[str, Any]) -> NewRow:
    return NewRow("open", 2 if head["type"] == "message" else 1, json.encode(head), id_)


def delta_row(id_: bytes, text: str) -> NewRow:
    return NewRow("delta", 1, text.encode(), id_)


def close_row(id_: bytes, head: Mapping[str, Any], whole: bytes = b"") -> NewRow:
    return NewRow("close", CLOSING.get(head["type"], 1), whole, id_)


def item_row(id_: bytes, item: Mapping[str, Any], body: bytes) -> NewRow:
    return NewRow("item", whole_count(item), body, id_)


def end_row(unseen: Sequence[Mapping[str, Any]] = ()) -> NewRow:
    """The end; `unseen` are the outputs no earlier entry showed."""
    return NewRow("end", sum(whole_count(item) for item in unseen) + 1)


def whole_count(item: Mapping[str, Any]) -> int:
    """Events of an item shown at once: added, per content part (added, delta + text.done if it is text, done), done;
    a call has one delta and done for its arguments."""
    if item.get("type", "message") == "message":
        return 2 + sum(4 if is_text(part) else 2 for part in parts_of(item))
    return 4 if item.get("type") == "function_call" else 2


def parts_of(item: Mapping[str, Any]) -> list[Any]:
    """A message's content as a list of parts: a plain string is one text part."""
    content = item.get("content")
    if isinstance(content, list):
        return content
    return [] if content is None else [content]


def is_text(part: Any) -> bool:
    """Whether a part is text that can be shown as a delta."""
    return isinstance(part, str) or (
        isinstance(part, dict) and part.get("type") == "output_text" and isinstance(part.get("text"), str)
    )


def composed(head: Mapping[str, Any], text: str) -> dict[str, Any]:
    """A started item with its deltas put in: what an `open`, its `delta`s and an empty `close` say."""
    match head["type"]:
        case "message":
            return {**head, "content": [{"type": "output_text", "text": text, "annotations": []}]}
        case "function_call" | "mcp_call":
            return {**head, "arguments": text}
        case "custom_tool_call":
            return {**head, "input": text}
    return {**head, "text": text} if text else dict(head)
