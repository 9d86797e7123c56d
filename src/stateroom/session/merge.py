"""JSON Merge Patch (RFC 7396) and JSON Patch (RFC 6902), as pure functions on plain values.

Our own, in one screen each: the core stays free of dependencies, `test` knows 1 from true, and a patch that copies a value
into itself again and again meets a bound instead of the memory's end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from stateroom import limits
from stateroom.errors import Conflict, InvalidInput, LimitExceeded
from stateroom.wire import json

_INDEX: Final = re.compile(r"0|[1-9][0-9]{0,9}")
_TILDE: Final = re.compile(r"~(?![01])")
_ABSENT: Final = object()


def merge(target: Any, patch: Any) -> Any:
    """RFC 7396: objects merge, null removes, anything else replaces. The target is left as it was."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merge(result.get(name), value)
    return result


def same(one: Any, other: Any) -> bool:
    """Equal as JSON is: 1 is 1.0 and not true."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(value, other[name]) for name, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)


def patched(target: Any, operations: Any) -> Any:
    """RFC 6902: the operations in turn, all or none. InvalidInput for what is no patch, Conflict (`patch_does_not_apply`
    with the operation's number and path) for one that does not fit what is there. The target is left as it was."""
    if not isinstance(operations, list):
        raise InvalidInput("A JSON Patch is an array of operations.", code="patch_invalid")
    if len(operations) > limits.PATCH_OPERATIONS_MAX:
        raise LimitExceeded(f"A JSON Patch has {limits.PATCH_OPERATIONS_MAX} operations.", code="patch_too_large")
    value, room = target, limits.SLOT_BYTES_MAX
    for number, operation in enumerate(operations):
        op = operation.get("op") if isinstance(operation, dict) else None
        if not isinstance(op, str) or op not in _OPERATIONS:
            raise InvalidInput(f"Operation {number} is none of {', '.join(_OPERATIONS)}.", code="patch_invalid")
        _check_members(operation, number)
        if op == "copy":
            room -= len(json.encode(_read(value, operation["from"], number)))
            if room < 0:
                raise LimitExceeded(f"A slot holds {limits.SLOT_BYTES_MAX} bytes.", code="slot_too_large")
        value = _OPERATIONS[op](value, operation, number)
    return value


def _check_members(operation: Mapping[str, Any], number: int) -> None:
    needed = {"add": ("value",), "replace": ("value",), "test": ("value",), "move": ("from",), "copy": ("from",)}
    for name in ("path", *needed.get(operation["op"], ())):
        if name not in operation:
            raise InvalidInput(f"Operation {number} has no '{name}'.", code="patch_invalid")
    for name in ("path", "from"):
        if name in operation:
            tokens(operation[name])


def tokens(pointer: Any) -> list[str]:
    """The steps of a JSON Pointer (RFC 6901). InvalidInput for what is none."""
    if not isinstance(pointer, str) or (pointer and not pointer.startswith("/")) or _TILDE.search(pointer):
        raise InvalidInput("A path is a JSON Pointer: '' or '/name/0', with ~0 for ~ and ~1 for /.", code="patch_invalid")
    return [token.replace("~1", "/").replace("~0", "~") for token in pointer.split("/")[1:]]


def _add(value: Any, operation: Mapping[str, Any], number: int) -> Any:
    return _put(value, operation["path"], operation["value"], number)


def _remove(value: Any, operation: Mapping[str, Any], number: int) -> Any:
    return _without(value, operation["path"], number)


def _replace(value: Any, operation: Mapping[str, Any], number: int) -> Any:
    _read(value, operation["path"], number)
    return _edited(value, tokens(operation["path"]), lambda _, __: operation["value"], operation["path"], number)


def _move(value: Any, operation: Mapping[str, Any], number: int) -> Any:
    source, goal = operation["from"], operation["path"]
    if goal.startswith(f"{source}/"):
        raise InvalidInput(f"Operation {number} moves a value into itself.", code="patch_invalid")
    moved = _read(value, source, number)
    return value if source == goal else _put(_without(value, source, number), goal, moved, number)


def _copy(value: Any, operation: Mapping[str, Any], number: int) -> Any:
    return _put(value, operation["path"], _read(value, operation["from"], number), number)


def _test(value: Any, operation: Mapping[str, Any], number: int) -> Any:
    if not same(_read(value, operation["path"], number), operation["value"]):
        raise _unfit(number, operation["path"], "holds another value")
    return value


_OPERATIONS: Final[Mapping[str, Callable[[Any, Mapping[str, Any], int], Any]]] = {
    "add": _add, "remove": _remove, "replace": _replace, "move": _move, "copy": _copy, "test": _test,
}  # fmt: skip


def _read(value: Any, pointer: str, number: int) -> Any:
    for token in tokens(pointer):
        value = _child(value, token)
        if value is _ABSENT:
            raise _unfit(number, pointer, "leads nowhere")
    return value


def _child(value: Any, token: str) -> Any:
    if isinstance(value, dict):
        return value.get(token, _ABSENT)
    if isinstance(value, list) and _INDEX.fullmatch(token) and int(token) < len(value):
        return value[int(token)]
    return _ABSENT


def _put(value: Any, pointer: str, new: Any, number: int) -> Any:
    """`new` at the place: a member, or an element before the one that is there ("-": after the last)."""

    def into(parent: Any, token: str) -> Any:
        if isinstance(parent, dict):
            return {**parent, token: new}
        if isinstance(parent, list):
            at = len(parent) if token == "-" else int(token) if _INDEX.fullmatch(token) else len(parent) + 1
            if at <= len(parent):
                return [*parent[:at], new, *parent[at:]]
        raise _unfit(number, pointer, "leads nowhere")

    *above, last = tokens(pointer) or [""]
    return new if not pointer else _edited(value, above, lambda parent, _: into(parent, last), pointer, number)


def _without(value: Any, pointer: str, number: int) -> Any:
    _read(value, pointer, number)
    if not pointer:
        return None
    *above, last = tokens(pointer)

    def out(parent: Any, _: str) -> Any:
        if isinstance(parent, dict):
            return {name: kept for name, kept in parent.items() if name != last}
        return [*parent[: int(last)], *parent[int(last) + 1 :]]

    return _edited(value, above, out, pointer, number)


def _edited(value: Any, path: list[str], edit: Callable[[Any, str], Any], pointer: str, number: int) -> Any:
    """A copy of `value` in which what lies at `path` was edited; only what is on the way there is copied."""
    if not path:
        return edit(value, "")
    child = _child(value, path[0])
    if child is _ABSENT:
        raise _unfit(number, pointer, "leads nowhere")
    inner = _edited(child, path[1:], edit, pointer, number)
    if isinstance(value, dict):
        return {**value, path[0]: inner}
    at = int(path[0])
    return [*value[:at], inner, *value[at + 1 :]]


def _unfit(number: int, pointer: str, why: str) -> Conflict:
    return Conflict(
        f"Operation {number}: {pointer[:200]!r} {why}.", code="patch_does_not_apply", operation=number, path=pointer[:200]
    )
