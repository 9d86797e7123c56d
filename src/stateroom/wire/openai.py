"""The OpenAI Responses form of runs and items, and of a run's log as streaming events. Pure (D9).

A log entry that is stored has its wire numbers, so how many events an entry stands for never changes (wire.rows counts
them); what they look like may. Choices that the OpenAI API leaves open, made so that its own client ends cleanly:

* A cancelled run ends its stream with `response.incomplete`, because the client knows no `response.cancelled`; the
  response inside says `status: cancelled`.
* `output_index` is never used twice in one stream: after a reset the numbers go on. The item that was open then is
  done with `status: incomplete`, and the `response.in_progress` that follows, with empty output, says that all earlier
  items are void.
* A turn that was merged into another one ends as completed, without output of its own; the response inside names the one
  that answers both as `merged_into`, a field the client keeps.
* What cannot be shown any more (an output deleted since) is filled up with `response.in_progress`, so that numbers
  stay dense.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from stateroom import ids
from stateroom.batch import Draft
from stateroom.conversation.model import Item
from stateroom.run.model import LogRow, Run, Status
from stateroom.wire import json, rows

PREFIXES: Mapping[str, str] = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "reasoning": "rs",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "web_search_call": "ws",
    "file_search_call": "fs",
    "mcp_call": "mcp",
    "compaction": "cmp",
}
STATUS: Mapping[Status, str] = {
    "queued": "queued",
    "in_progress": "in_progress",
    "requires_action": "in_progress",
    "cancelling": "in_progress",
    "completed": "completed",
    "incomplete": "incomplete",
    "failed": "failed",
    "cancelled": "cancelled",
    "expired": "failed",
}
LAST_EVENT: Mapping[Status, str] = {
    "completed": "response.completed",
    "incomplete": "response.incomplete",
    "cancelled": "response.incomplete",
    "failed": "response.failed",
    "expired": "response.failed",
}
DELTAS: Mapping[str, str] = {
    "message": "response.output_text.delta",
    "function_call": "response.function_call_arguments.delta",
    "custom_tool_call": "response.custom_tool_call_input.delta",
    "mcp_call": "response.mcp_call_arguments.delta",
    "reasoning": "response.reasoning_text.delta",
}
# Request fields that an answer repeats, with what stands for them when the caller was silent.
ECHOED: Mapping[str, Any] = {
    "instructions": None,
    "tool_choice": "auto",
    "truncation": "disabled",
    "parallel_tool_calls": True,
    "top_p": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "top_logprobs": 0,
    "temperature": 1.0,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "service_tier": "default",
    "safety_identifier": None,
    "prompt_cache_key": None,
    "previous_response_id": None,
}

Event = dict[str, Any]


# ── items ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def item_id(kind: str, id_: bytes) -> str:
    """`msg_0123…`: how an item is called on this wire. `ids.parse_any` reads it back."""
    return f"{PREFIXES.get(kind, 'item')}_{id_.hex()}"


def render_item(item: Item | Draft) -> bytes:
    """An item as JSON: our id, a status, a message's content as a list of parts; every other field as it was stored."""
    return _rendered(item.id, item.kind, item.body)


def shown(item: Item | Draft) -> dict[str, Any]:
    """`render_item`, parsed."""
    return _parsed(item.id, item.kind, item.body)


def _parsed(id_: bytes, kind: str, body: bytes) -> dict[str, Any]:
    parsed: dict[str, Any] = json.decode_trusted(_rendered(id_, kind, body))
    return parsed


def _rendered(id_: bytes, kind: str, body: bytes) -> bytes:
    given = json.decode_trusted(body)
    status = given.get("status")
    head: dict[str, Any] = {"id": item_id(kind, id_), "type": kind}
    head["status"] = status if isinstance(status, str) else "completed"
    if kind == "message":
        head["content"] = _content(given, body)
    return json.splice(head, body)


def _content(given: Mapping[str, Any], body: bytes) -> list[Any]:
    """A message's parts, one for each that `rows.parts_of` counts; each as it was stored where it is complete."""
    parts = rows.parts_of(given)
    if not parts:
        return []
    raw = json.fields(body)["content"]
    raws = json.elements(raw) if isinstance(given["content"], list) else [raw]
    plain = "output_text" if given.get("role") == "assistant" else "input_text"
    return [_part(part, part_raw, plain) for part, part_raw in zip(parts, raws, strict=True)]


def _part(part: Any, raw: bytes, plain: str) -> Any:
    if isinstance(part, str):
        head: dict[str, Any] = {"type": plain, "text": msgspec.Raw(raw)}
        return {**head, "annotations": [], "logprobs": []} if plain == "output_text" else head
    if isinstance(part, dict) and part.get("type") == "output_text":
        missing: dict[str, Any] = {name: [] for name in ("annotations", "logprobs") if not isinstance(part.get(name), list)}
        if missing:
            return msgspec.Raw(json.splice({"type": "output_text", **missing}, raw))
    return msgspec.Raw(raw)


# ── responses ───────────────────────────────────────────────────────────────────────────────────────────────────────


def response_object(run: Run, outputs: Sequence[Item] = ()) -> dict[str, Any]:
    """A run as a Response: every field the Open Responses schema requires, null where there is nothing to say."""
    asked = json.decode_trusted(run.options)
    error = json.decode_trusted(run.error) if run.error else {}
    code, message = error.get("code") or run.status, error.get("message") or ""
    status = STATUS[run.status]
    return {
        "id": ids.text("response", run.id),
        "object": "response",
        "created_at": run.created_at // 1000,
        "status": status,
        "background": bool(asked.get("background")),
        "completed_at": run.finished_at // 1000 if status == "completed" else None,
        "error": {"code": code, "message": message} if status == "failed" else None,
        "incomplete_details": {"reason": code} if status in ("incomplete", "cancelled") else None,
        "model": asked.get("model") or run.agent,
        "conversation": {"id": ids.text("conversation", run.conversation)} if asked.get("conversation") else None,
        "output": [shown(item) for item in outputs],
        "store": run.stored,
        "usage": _usage(json.decode_trusted(run.usage)) if run.usage else None,
        "metadata": asked.get("metadata") or {},
        "text": {"format": {"type": "text"}, **(asked.get("text") or {})},
        "tools": [_tool(tool) for tool in asked.get("tools") or ()],
        "reasoning": {"effort": None, "summary": None, **asked["reasoning"]} if asked.get("reasoning") else None,
        **{name: default if asked.get(name) is None else asked[name] for name, default in ECHOED.items()},
        **({"merged_into": ids.text("response", run.merged_into)} if run.merged_into != ids.NIL else {}),
    }


def _tool(tool: Any) -> Any:
    if isinstance(tool, dict) and tool.get("type") == "function":
        return {"description": None, "parameters": None, "strict": None, **tool}
    return tool


def _usage(used: Mapping[str, Any]) -> dict[str, Any]:
    used = {name: value for name, value in used.items() if isinstance(value, dict) == name.endswith("_details")}
    taken, given = used.get("input_tokens") or 0, used.get("output_tokens") or 0
    return {
        **used,
        "input_tokens": taken,
        "input_tokens_details": {"cached_tokens": 0, **(used.get("input_tokens_details") or {})},
        "output_tokens": given,
        "output_tokens_details": {"reasoning_tokens": 0, **(used.get("output_tokens_details") or {})},
        "total_tokens": used.get("total_tokens") or taken + given,
    }


# ── events ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Open:
    """The item that deltas belong to: where it is, what it begins with, and what has come so far."""

    def __init__(self, id_: bytes, head: Mapping[str, Any], index: int) -> None:
        self.bytes, self.head, self.index = id_, head, index
        self.kind: str = head["type"]
        self.id = item_id(self.kind, id_)
        self.pieces: list[str] = []

    def composed(self) -> dict[str, Any]:
        """The item as the scribe composes it from the same head and deltas."""
        return rows.composed(self.head, "".join(self.pieces))


class EventRenderer:
    """Turns one run's log, read from its beginning, into the events of its stream: exactly `row.count` for each row."""

    def __init__(self, run: Run) -> None:
        # What the first events show must not depend on how far the run is when they are read.
        self._begun = msgspec.structs.replace(run, usage=b"", error=b"", finished_at=0)
        self._final = run
        self._outputs: Sequence[Item] = ()
        self._shown: set[bytes] = set()
        self._index = 0  # the next item's
        self._open: _Open | None = None

    def settle(self, run: Run, outputs: Sequence[Item]) -> None:
        """The run as it ended and what it put out: called before its `end` row is rendered."""
        self._final, self._outputs = run, outputs

    def events(self, row: LogRow) -> list[Event]:
        """The events of one row, numbered from `row.first` - 1 as the wire counts."""
        events = self._of(row)[-row.count :]
        if len(events) < row.count:  # before the last one: an end stays last
            events[-1:-1] = [self._lifecycle("response.in_progress", "in_progress")] * (row.count - len(events))
        return [{"type": event["type"], "sequence_number": number, **event} for number, event in enumerate(events, row.first - 1)]

    def _of(self, row: LogRow) -> list[Event]:
        match row.kind:
            case "opened":
                begun = self._lifecycle("response.created", "in_progress")
                return [begun, {**begun, "type": "response.in_progress"}]
            case "accepted":
                return [self._lifecycle("response.created", "queued")]
            case "reset":
                return self._reset()
            case "open":
                return self._start(row.item, row.body)
            case "delta":
                return self._delta(row.body.decode())
            case "close":
                return self._close(row.body)
            case "item":
                return self._whole(row.item, row.body)
            case "end":
                return self._end()
        return []  # `started`, and kinds of a later version: the run goes on

    def _lifecycle(self, name: str, status: Status) -> Event:
        return {"type": name, "response": response_object(msgspec.structs.replace(self._begun, status=status))}

    def _reset(self) -> list[Event]:
        left, self._open = self._open, None
        if left is None:
            return []
        item = _parsed(left.bytes, left.kind, json.encode({**left.composed(), "status": "incomplete"}))
        return [{"type": "response.output_item.done", "output_index": left.index, "item": item}]

    def _start(self, id_: bytes, head: bytes) -> list[Event]:
        if not head:  # purged
            self._open = None
            return []
        left = self._open = _Open(id_, json.decode_trusted(head), self._next(id_))
        added = _added(left.id, left.kind, left.head, left.index)
        if left.kind != "message":
            return [added]
        return [added, _at("response.content_part.added", left.id, left.index, content_index=0, part=_empty_text())]

    def _delta(self, text: str) -> list[Event]:
        if (left := self._open) is None:
            return []
        left.pieces.append(text)
        return [_delta(left.id, left.kind, left.index, text)]

    def _close(self, whole: bytes) -> list[Event]:
        if (left := self._open) is None:
            return []
        self._open = None
        body = whole or json.encode(left.composed())
        item = _parsed(left.bytes, left.kind, body)
        done = {"type": "response.output_item.done", "output_index": left.index, "item": item}
        if left.kind == "message":
            part = item["content"][0] if item["content"] else _empty_text()
            return [*_part_done(left.id, left.index, 0, part), done]
        if left.kind == "function_call":
            return [_arguments_done(left.id, left.index, item), done]
        return [done]

    def _whole(self, id_: bytes, body: bytes) -> list[Event]:
        """All events of an item that was not streamed; none of one that was purged."""
        if not body:
            return []
        given = json.decode_trusted(body)
        kind = given.get("type") or "message"
        name, index, item = item_id(kind, id_), self._next(id_), _parsed(id_, kind, body)
        events = [_added(name, kind, item, index)]
        if kind == "message":
            for at, (part, stored) in enumerate(zip(item["content"], rows.parts_of(given), strict=True)):
                events += _whole_part(name, index, at, part, text=rows.is_text(stored))
        elif kind == "function_call":
            events += [_delta(name, kind, index, _arguments(item)), _arguments_done(name, index, item)]
        return [*events, {"type": "response.output_item.done", "output_index": index, "item": item}]

    def _end(self) -> list[Event]:
        unseen = [item for item in self._outputs if item.id not in self._shown]
        events = [event for item in unseen for event in self._whole(item.id, item.body)]
        name = LAST_EVENT.get(self._final.status, "response.incomplete")
        return [*events, {"type": name, "response": response_object(self._final, self._outputs)}]

    def _next(self, id_: bytes) -> int:
        self._shown.add(id_)
        index, self._index = self._index, self._index + 1
        return index


def _empty_text() -> dict[str, Any]:
    return {"type": "output_text", "text": "", "annotations": [], "logprobs": []}


def _at(event: str, item: str, index: int, **rest: Any) -> Event:
    return {"type": event, "item_id": item, "output_index": index, **rest}


def _added(name: str, kind: str, item: Mapping[str, Any], index: int) -> Event:
    """An item begins; what follows as parts or deltas is not in it yet."""
    empty: dict[str, Any] = {"content": []} if kind == "message" else {"arguments": ""} if kind == "function_call" else {}
    begun = {"id": name, **item, **empty, "status": "in_progress"}
    return {"type": "response.output_item.added", "output_index": index, "item": begun}


def _delta(name: str, kind: str, index: int, text: str) -> Event:
    rest: dict[str, Any] = {"content_index": 0} if kind in ("message", "reasoning") else {}
    if kind == "message":
        rest["logprobs"] = []
    return _at(DELTAS.get(kind, f"response.{kind}.delta"), name, index, delta=text, **rest)


def _part_done(name: str, index: int, at: int, part: Any) -> list[Event]:
    text = part.get("text") if isinstance(part, dict) else None
    said = text if isinstance(text, str) else ""
    return [
        _at("response.output_text.done", name, index, content_index=at, text=said, logprobs=[]),
        _at("response.content_part.done", name, index, content_index=at, part=part),
    ]


def _whole_part(name: str, index: int, at: int, part: Any, *, text: bool) -> list[Event]:
    if not text:
        return [
            _at("response.content_part.added", name, index, content_index=at, part=part),
            _at("response.content_part.done", name, index, content_index=at, part=part),
        ]
    return [
        _at("response.content_part.added", name, index, content_index=at, part={**part, "text": ""}),
        _at("response.output_text.delta", name, index, content_index=at, delta=part["text"], logprobs=[]),
        *_part_done(name, index, at, part),
    ]


def _arguments(item: Mapping[str, Any]) -> str:
    given = item.get("arguments")
    return given if isinstance(given, str) else json.encode(given).decode() if given is not None else ""


def _arguments_done(name: str, index: int, item: Mapping[str, Any]) -> Event:
    done = "response.function_call_arguments.done"
    return _at(done, name, index, name=item.get("name") or "", arguments=_arguments(item))
