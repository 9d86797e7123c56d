"""Asking a model over `POST /responses`, and reading its stream."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stateroom.flows.agent import AgentEvent, End, Turn, Usage
from stateroom.hosting.lanes import Lanes

PATH = "/responses"
# What a caller may ask of the model; the rest of a request (store, conversation, stream …) is between them and us.
_PASSED_ON = (
    "instructions", "tools", "tool_choice", "parallel_tool_calls", "max_tool_calls", "temperature", "top_p",
    "max_output_tokens", "text", "reasoning", "include", "truncation", "top_logprobs", "service_tier",
)  # fmt: skip


def request(turn: Turn, model: str) -> dict[str, Any]:
    """The body. The endpoint is asked to keep nothing: the record is here."""
    passed_on = {name: turn.request[name] for name in _PASSED_ON if turn.request.get(name) is not None}
    items = [_shown(item) for item in turn.window if not _only_known_elsewhere(item)]
    return {"model": model, "input": items, **passed_on, "stream": True, "store": False}


def _shown(item: dict[str, Any]) -> dict[str, Any]:
    """Ids of our record mean nothing to the endpoint; only sealed reasoning is bound to its own."""
    return item if item.get("type") == "reasoning" else {name: value for name, value in item.items() if name != "id"}


def _only_known_elsewhere(item: Mapping[str, Any]) -> bool:
    """References, and reasoning that only the server that made it can look up."""
    kind = item.get("type")
    return kind == "item_reference" or (kind == "reasoning" and not item.get("encrypted_content"))


class Reader:
    """Events of one response stream, as the agent contract has them. `ended` once the response has told its end."""

    def __init__(self) -> None:
        self.ended = False
        self._lanes = Lanes()

    def read(self, event: Mapping[str, Any]) -> Iterator[AgentEvent]:
        key = event.get("output_index", 0)
        match event.get("type"):
            case "response.output_item.added":
                if head := _head(_object(event.get("item"))):
                    self._lanes.start(key, head)
            case "response.output_text.delta" | "response.function_call_arguments.delta":
                self._lanes.delta(key, _text(event.get("delta")))
            case "response.output_item.done":
                self._lanes.done(key, _object(event.get("item")))
            case "response.completed" | "response.incomplete" | "response.failed" | "response.cancelled" as kind:
                yield from self._end(kind, _object(event.get("response")))
            case "error":
                yield from self._fail(event.get("error") or event)
        yield from self._lanes.tell()

    def close(self) -> Iterator[AgentEvent]:
        """The stream is over. Nothing to add: the end is told by an event, or the answer was cut."""
        return iter(())

    def _end(self, kind: str, response: Mapping[str, Any]) -> Iterator[AgentEvent]:
        if kind in ("response.failed", "response.cancelled"):
            yield from self._fail(response.get("error"))
            return
        self.ended = True
        output = response.get("output")
        for index, item in enumerate(output if isinstance(output, list) else []):
            self._lanes.done(index, _object(item))  # servers that tell an item only here
        self._lanes.done_all()
        yield from self._lanes.tell()
        if usage := _object(response.get("usage")):
            yield Usage(usage)
        if kind == "response.incomplete":
            yield End("incomplete", reason=_text(_object(response.get("incomplete_details")).get("reason")))

    def _fail(self, error: Any) -> Iterator[AgentEvent]:
        self.ended = True
        yield failure(error)


def failure(error: Any) -> End:
    """An endpoint's own account of what went wrong: an object with code and message, or just words."""
    code = _text(_object(error).get("code"))
    message = _text(_object(error).get("message")) or _text(error)
    return End("failed", reason=code or "model_error", message=message or "The model failed and did not say why.")


def _head(item: Mapping[str, Any]) -> dict[str, Any] | None:
    """What is told when an item begins; None for kinds that are only told whole."""
    if item.get("type") == "message":
        return {"type": "message", "role": item.get("role") or "assistant"}
    if item.get("type") == "function_call":
        return {name: item.get(name, "") for name in ("type", "name", "call_id")}
    return None


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
