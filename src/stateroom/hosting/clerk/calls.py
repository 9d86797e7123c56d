"""Calls of tools that the caller brings: which one, and with what arguments. So a tool loop can be tried without a model."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from stateroom.flows.agent import Turn, text_of
from stateroom.wire import json

_DEPTH_MAX: Final = 8  # schemas may refer to themselves …
_VALUES_MAX: Final = 500  # … and more than once
_TOO_COMMON: Final = frozenset({"get", "set", "the", "and", "for", "make", "call", "function", "tool", "with"})


def wanted(turn: Turn, text: str) -> Mapping[str, Any] | None:
    """The tool to call: the one the caller insists on, or else the one whose name the text has the most words of."""
    given = turn.request.get("tools")
    tools = [tool for tool in given if isinstance(tool, dict) and _name(tool)] if isinstance(given, list) else []
    choice = turn.request.get("tool_choice")
    if not tools or choice == "none":
        return None
    if isinstance(choice, dict):
        return next((tool for tool in tools if _name(tool) == _name(choice)), None)
    scores = [_score(tool, text) for tool in tools]
    best = max(scores)
    return tools[scores.index(best)] if best or choice == "required" else None


def call(tool: Mapping[str, Any], text: str, call_id: str) -> dict[str, Any]:
    """The call as an item. Arguments are made from the tool's schema and the words that were said."""
    schema = _function(tool).get("parameters")
    arguments = _Filling(schema, text).object(schema, 0)
    return {"type": "function_call", "call_id": call_id, "name": _name(tool), "arguments": json.encode(arguments).decode()}


def answered(turn: Turn) -> list[tuple[str, str]]:
    """Tools whose outputs are this turn's input, and what they say."""
    names = {item.get("call_id"): str(item.get("name")) for item in turn.window if item.get("type") == "function_call"}
    outputs = [item for item in turn.input if item.get("type") == "function_call_output"]
    return [(names.get(item.get("call_id"), "tool"), _said(item.get("output"))) for item in outputs]


def _said(output: Any) -> str:
    return output if isinstance(output, str) else text_of({"content": output})


def _function(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """Where name and parameters are: in the tool itself, or one level down as the older wire has it."""
    inner = tool.get("function")
    return inner if isinstance(inner, dict) else tool


def _name(tool: Mapping[str, Any]) -> str:
    name = _function(tool).get("name") if tool.get("type") == "function" else None
    return name if isinstance(name, str) else ""


def _score(tool: Mapping[str, Any], text: str) -> int:
    name, said = _name(tool), text.lower()
    if re.search(rf"\b{re.escape(name.lower())}\b", said):
        return 1000
    words = {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)} - _TOO_COMMON
    return sum(1 for word in words if len(word) > 2 and re.search(rf"\b{word}", said))


class _Filling:
    """Fills a JSON schema, whatever it is: enums by what was said, numbers in the order they were said, text with all
    of it. Optional fields are left out unless something said fits them."""

    def __init__(self, root: Any, text: str) -> None:
        self._root = root
        self._text = text
        self._numbers = [float(number) for number in re.findall(r"-?\b\d{1,15}(?:\.\d{1,15})?\b", text)]
        self._values_left = _VALUES_MAX

    def object(self, schema: Any, depth: int) -> dict[str, Any]:
        properties = _mapping(_mapping(schema).get("properties"))
        required = _mapping(schema).get("required")
        needed = [name for name in properties if isinstance(required, list) and name in required]
        filled: dict[str, Any] = {}
        for name in [*needed, *properties]:
            field = self._resolved(properties[name])
            if name not in filled and (name in needed or self._is_said(field)):
                filled[name] = self._value(field, depth + 1)
        return filled or self._first_text(properties)

    def _first_text(self, properties: Mapping[str, Any]) -> dict[str, Any]:
        """Nothing is required and nothing fits: the words go into the first text there is."""
        fields = {name: self._resolved(field) for name, field in properties.items()}
        texts = [name for name, field in fields.items() if _type(field) == "string" and not _choices(field)]
        return {name: self._text for name in texts[:1]}

    def _value(self, field: Mapping[str, Any], depth: int) -> Any:
        self._values_left -= 1
        deeper = depth < _DEPTH_MAX and self._values_left > 0
        if "default" in field:
            return field["default"]
        if choices := _choices(field):
            return next(self._said_of(choices), choices[0])
        match _type(field):
            case "integer":
                return int(self._number(field))
            case "number":
                number = self._number(field)
                return int(number) if number == int(number) else number
            case "boolean":
                return not re.search(r"\b(?:no|not|don't|without)\b", self._text.lower())
            case "null":
                return None
            case "array":
                return [self._value(self._resolved(field.get("items")), depth + 1)] if deeper else []
            case "object":
                return self.object(field, depth) if deeper else {}
        return self._text

    def _number(self, field: Mapping[str, Any]) -> float:
        minimum = field.get("minimum")
        return self._numbers.pop(0) if self._numbers else minimum if isinstance(minimum, int | float) else 0

    def _is_said(self, field: Mapping[str, Any]) -> bool:
        if choices := _choices(field):
            return any(True for _ in self._said_of(choices))
        return _type(field) in ("integer", "number") and bool(self._numbers)

    def _said_of(self, choices: Sequence[Any]) -> Iterator[Any]:
        said = self._text.lower()
        return (choice for choice in choices if re.search(rf"\b{re.escape(str(choice).lower())}\b", said))

    def _resolved(self, given: Any, steps: int = 0) -> Mapping[str, Any]:
        """Follow a local reference or the first alternative."""
        field = _mapping(given)
        reference, alternatives = field.get("$ref"), field.get("anyOf") or field.get("oneOf")
        if steps < _DEPTH_MAX and isinstance(reference, str) and reference.startswith("#"):
            target = self._root
            for name in reference.split("/")[1:]:
                target = _mapping(target).get(name)
            return self._resolved(target, steps + 1)
        if steps < _DEPTH_MAX and isinstance(alternatives, list) and alternatives:
            return self._resolved(alternatives[0], steps + 1)
        return field


def _choices(field: Mapping[str, Any]) -> list[Any]:
    if "const" in field:
        return [field["const"]]
    choices = field.get("enum")
    return choices if isinstance(choices, list) else []


def _type(field: Mapping[str, Any]) -> Any:
    """The type, the first real one where several are allowed."""
    kind = field.get("type")
    if isinstance(kind, list):
        return next((one for one in kind if one != "null"), "null")
    return kind or ("object" if "properties" in field else "string")


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
