"""Asking a model over `POST /chat/completions`, and reading its stream: for endpoints that know no other wire."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from stateroom.context.pairs import pair
from stateroom.flows.agent import AgentEvent, End, Turn, Usage, text_of
from stateroom.hosting.lanes import Lanes
from stateroom.hosting.responses_wire import failure

PATH = "/chat/completions"
_SAME_NAME = ("temperature", "top_p", "parallel_tool_calls", "service_tier")
_ROLES: Mapping[str, str] = {"developer": "system", "system": "system", "assistant": "assistant", "user": "user"}
_INCOMPLETE: Mapping[str, str] = {"length": "max_output_tokens", "content_filter": "content_filter"}


# ── asking ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def request(turn: Turn, model: str) -> dict[str, Any]:
    """The body. Options and tools this wire has no words for are left out."""
    asked = turn.request
    body: dict[str, Any] = {"model": model, "messages": messages(turn.window, asked.get("instructions"))}
    body |= {name: asked[name] for name in _SAME_NAME if asked.get(name) is not None}
    if asked.get("max_output_tokens") is not None:
        body["max_completion_tokens"] = asked["max_output_tokens"]
    if tools := [_tool(tool) for tool in asked.get("tools") or () if _part(tool, "type") == {"type": "function"}]:
        body["tools"] = tools
        if choice := asked.get("tool_choice"):
            body["tool_choice"] = choice if isinstance(choice, str) else {"type": "function", "function": _part(choice, "name")}
    if effort := _part(asked.get("reasoning"), "effort"):
        body["reasoning_effort"] = effort["effort"]
    if wanted := _response_format(_part(asked.get("text"), "format").get("format")):
        body["response_format"] = wanted
    return body | {"stream": True, "stream_options": {"include_usage": True}}


def messages(window: Sequence[Mapping[str, Any]], instructions: Any = None) -> list[dict[str, Any]]:
    """A valid window as messages: a group of calls becomes one assistant message, and its outputs follow at once,
    wherever they stand in the window. Items of other kinds have no place here and are left out."""
    pairs = pair(window)
    out: list[dict[str, Any]] = []
    if isinstance(instructions, str) and instructions:
        out.append({"role": "system", "content": instructions})
    group: list[int] = []
    for position, item in enumerate(window):
        kind = item.get("type", "message")
        if kind in ("function_call", "custom_tool_call"):
            group.append(position)
        elif kind != "reasoning":
            _add_calls(out, window, [(call, pairs.outputs[call]) for call in group if call in pairs.outputs])
            group = []
            if kind == "message":
                out.append(_message(item))
    _add_calls(out, window, [(call, pairs.outputs[call]) for call in group if call in pairs.outputs])
    return out


def _add_calls(out: list[dict[str, Any]], window: Sequence[Mapping[str, Any]], answered: Sequence[tuple[int, int]]) -> None:
    """One group: with the assistant's words right before it, if there were any, and with its outputs behind it."""
    if not answered:
        return
    if not out or out[-1]["role"] != "assistant" or "tool_calls" in out[-1]:
        out.append({"role": "assistant", "content": None})
    out[-1]["tool_calls"] = [_call(window[call]) for call, _ in answered]
    for _, position in answered:
        output = window[position]
        out.append({"role": "tool", "tool_call_id": output["call_id"], "content": _output_text(output)})


def _call(item: Mapping[str, Any]) -> dict[str, Any]:
    if item["type"] == "custom_tool_call":
        return {"id": item["call_id"], "type": "custom", "custom": _part(item, "name", "input")}
    function = {"name": item.get("name", ""), "arguments": _arguments(item.get("arguments"))}
    return {"id": item["call_id"], "type": "function", "function": function}


def _arguments(given: Any) -> str:
    """Many endpoints parse old arguments again and refuse the whole request when they are no JSON object."""
    try:
        if isinstance(msgspec.json.decode(given), dict):
            return str(given)
    except (msgspec.DecodeError, TypeError, UnicodeEncodeError):
        pass
    return msgspec.json.encode({"unparsed": given} if given else {}).decode()


def _output_text(output: Mapping[str, Any]) -> str:
    given = output.get("output")
    return given if isinstance(given, str) else text_of({"content": given})


def _message(item: Mapping[str, Any]) -> dict[str, Any]:
    role = _ROLES.get(item.get("role", ""), "user")
    content = item.get("content")
    if role == "user" and isinstance(content, list):
        return {"role": role, "content": [part for given in content if (part := _content_part(given))]}
    refusals = [part["refusal"] for part in content if _part(part, "refusal")] if isinstance(content, list) else []
    return {"role": role, "content": text_of(item) or "".join(refusals)}


def _content_part(part: Any) -> dict[str, Any] | None:
    match part:
        case {"type": "input_text" | "output_text" | "text", "text": text}:
            return {"type": "text", "text": text}
        case {"type": "input_image", "image_url": url}:
            return {"type": "image_url", "image_url": {"url": url, **_part(part, "detail")}}
        case {"type": "input_file"}:
            return {"type": "file", "file": _part(part, "file_data", "file_id", "filename")}
        case _:
            return None


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": _part(tool, "name", "description", "parameters", "strict")}


def _response_format(wanted: Any) -> dict[str, Any] | None:
    match _part(wanted, "type"):
        case {"type": "json_schema"}:
            return {"type": "json_schema", "json_schema": _part(wanted, "name", "description", "schema", "strict")}
        case {"type": "json_object"}:
            return {"type": "json_object"}
        case _:
            return None


def _part(given: Any, *names: str) -> dict[str, Any]:
    return {name: given[name] for name in names if given.get(name) is not None} if isinstance(given, dict) else {}


# ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _Call(msgspec.Struct):
    function: _Function
    index: int = 0
    id: str | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    refusal: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: dict[str, Any] | None = None
    error: Any = None


class Reader:
    """Chunks of one completion, as the agent contract has them. `ended` once a finish reason and the stream's end, or
    an error, were seen; the usage comes between the two."""

    def __init__(self) -> None:
        self.ended = False
        self._lanes = Lanes()
        self._finish = ""
        self._usage: dict[str, Any] | None = None
        self._message = 0  # text after a call is a message of its own

    def read(self, event: Mapping[str, Any]) -> Iterator[AgentEvent]:
        """msgspec.ValidationError when the chunk is none."""
        chunk = msgspec.convert(event, _Chunk)
        if chunk.error is not None:
            self.ended = True
            yield failure(chunk.error)
            return
        self._usage = chunk.usage or self._usage
        for choice in chunk.choices or ():
            self._finish = choice.finish_reason or self._finish
            if choice.delta is not None:
                self._read_delta(choice.delta)
        yield from self._lanes.tell()

    def _read_delta(self, delta: _Delta) -> None:
        message = ("message", self._message)
        if text := delta.content or delta.refusal:
            self._lanes.start(message, {"type": "message", "role": "assistant"})
            self._lanes.delta(message, text)
        for call in delta.tool_calls or ():
            self._lanes.done(message)
            self._message = call.index + 1
            name, call_id = call.function.name or "", call.id or f"call_{call.index}"
            self._lanes.start(call.index, {"type": "function_call", "name": name, "call_id": call_id, "arguments": ""})
            self._lanes.delta(call.index, call.function.arguments or "")

    def close(self) -> Iterator[AgentEvent]:
        """The stream is over. Without a finish reason it was cut, which is not an end."""
        if self.ended or not self._finish:
            return
        self.ended = True
        self._lanes.done_all()
        yield from self._lanes.tell()
        if self._usage is not None:
            yield Usage(_usage(self._usage))
        if reason := _INCOMPLETE.get(self._finish):
            yield End("incomplete", reason=reason)


def _usage(given: Mapping[str, Any]) -> dict[str, Any]:
    """Token counts in the names of the Responses wire."""
    prompt, completion = _count(given, "prompt_tokens"), _count(given, "completion_tokens")
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": _count(given.get("prompt_tokens_details"), "cached_tokens")},
        "output_tokens": completion,
        "output_tokens_details": {"reasoning_tokens": _count(given.get("completion_tokens_details"), "reasoning_tokens")},
        "total_tokens": _count(given, "total_tokens") or prompt + completion,
    }


def _count(given: Any, name: str) -> int:
    found = _part(given, name).get(name)
    return found if isinstance(found, int) else 0
