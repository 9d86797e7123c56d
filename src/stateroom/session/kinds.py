"""What may be done to a slot of each kind, as a table of pure functions on plain values.

`value` is compared and set: whoever read it says which version. The others commute: the store applies each change to
whatever lies there, so that writers who know nothing of each other never conflict, and nobody's contribution is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from stateroom import limits
from stateroom.errors import InvalidInput, LimitExceeded
from stateroom.session import merge
from stateroom.session.model import SlotKind
from stateroom.wire import json

_canonical = msgspec.json.Encoder(order="deterministic").encode


def whole(value: Any) -> Any:
    """Numbers as JSON compares them: 1.0 is 1."""
    if isinstance(value, float) and value.is_integer() and abs(value) <= limits.JSON_INT_MAX:
        return int(value)
    if isinstance(value, list):
        return [whole(element) for element in value]
    return {name: whole(inner) for name, inner in value.items()} if isinstance(value, dict) else value


def member(value: Any) -> bytes:
    """By what two members of a set are the same."""
    return _canonical(whole(value))


def _array(value: Any, what: str) -> list[Any]:
    if isinstance(value, list):
        return value
    raise InvalidInput(f"{what} takes an array.", code="operand_invalid")


def _object(value: Any, what: str) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    raise InvalidInput(f"{what} takes an object.", code="operand_invalid")


def _integer(value: Any, what: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise InvalidInput(f"{what} takes an integer.", code="operand_invalid")


def _add_number(old: Any, operand: Any) -> int:
    total = int(old) + _integer(operand, "Adding to a counter")
    if abs(total) > limits.JSON_INT_MAX:
        raise LimitExceeded("A counter lies within ±2**53.", code="counter_out_of_range")
    return total


def _add_members(old: Any, operand: Any) -> list[Any]:
    """In one order whatever the order of the additions, so that equal sets are equal bytes."""
    members = {member(value): value for value in (*_array(operand, "Adding to a set"), *old)}
    return [members[key] for key in sorted(members)]


def _discard(old: Any, operand: Any) -> list[Any]:
    gone = {member(value) for value in _array(operand, "Discarding from a set")}
    return [value for value in old if member(value) not in gone]


def _append(old: Any, operand: Any) -> list[Any]:
    return [*old, *_array(operand, "Appending to a list")]


def _put(old: Any, operand: Any) -> dict[str, Any]:
    return {**old, **_object(operand, "Putting into a map")}


def _drop(old: Any, operand: Any) -> dict[str, Any]:
    gone = _array(operand, "Dropping from a map")
    if not all(isinstance(key, str) for key in gone):
        raise InvalidInput("Dropping from a map takes keys.", code="operand_invalid")
    return {key: value for key, value in old.items() if key not in set(gone)}


Operation = Callable[[Any, Any], Any]

# kind -> operation -> the value after it, from the value before it and the operand. The two kinds whose contents lie apart
# have theirs in window.py and doc.py.
OPERATIONS: Final[Mapping[SlotKind, Mapping[str, Operation]]] = {
    "value": {"merge": merge.merge, "patch": merge.patched},
    "counter": {"add": _add_number},
    "set": {"add": _add_members, "discard": _discard},
    "list": {"append": _append},
    "map": {"put": _put, "drop": _drop},
    "window": {"append": lambda old, _: old},
    "doc": {"update": lambda old, _: old, "restart": lambda old, _: old},
}

_BY_NAME: Final[Mapping[str, Mapping[str, Operation]]] = {str(kind): known for kind, known in OPERATIONS.items()}

# kind -> what is there before anything is, and what a value has to be that is set.
EMPTY: Final[Mapping[SlotKind, Any]] = {"value": None, "counter": 0, "set": [], "list": [], "map": {}}
SHAPES: Final[Mapping[SlotKind, Operation]] = {
    "counter": _add_number,
    "set": _add_members,
    "list": _append,
    "map": _put,
}


def check_operation(kind: str, op: str) -> None:
    """InvalidInput unless the kind exists and knows the operation; "" is set or remove, and every kind knows these."""
    operations = _BY_NAME.get(kind)
    if operations is None:
        raise InvalidInput(f"A slot is of a kind among {', '.join(OPERATIONS)}.", code="slot_kind_unknown")
    if op and op not in operations:
        known = ", ".join(operations)
        raise InvalidInput(f"A slot of kind {kind!r} knows {known}, not {op[:40]!r}.", code="operation_unknown")


def decoded(body: bytes) -> Any:
    """An operand or a body, as a value. Whoever let it in has looked at it (the one codec at every entrance); here it only
    must not be able to break anything."""
    json.check_depth(body)
    try:
        return json.decode_trusted(body)
    except (msgspec.DecodeError, ValueError) as error:
        raise InvalidInput(f"This is not valid JSON: {error}", code="json_invalid") from error


def shaped(kind: SlotKind, body: bytes) -> bytes:
    """A body that is set, as it is stored: as it was spelled, unless the kind has its own spelling."""
    if kind == "value":
        return body
    value = decoded(body)
    check_integers(value)
    settled = SHAPES[kind](EMPTY[kind], value)
    return json.encode(settled) if kind == "set" else body


def applied(kind: SlotKind, op: str, *, old: bytes | None, operand: bytes) -> bytes:
    """The slot's body after an operation."""
    given = decoded(operand)
    check_integers(given)
    body = json.encode(OPERATIONS[kind][op](EMPTY[kind] if old is None else json.decode_trusted(old), given))
    json.check_depth(body)
    return body


def check_integers(value: Any) -> None:
    """Integers beyond ±2**53 are refused: another language would silently round them (D15)."""
    stack = [value]
    while stack:
        found = stack.pop()
        if isinstance(found, dict):
            stack.extend(found.values())
        elif isinstance(found, list):
            stack.extend(found)
        elif isinstance(found, int) and not -limits.JSON_INT_MAX <= found <= limits.JSON_INT_MAX:
            raise InvalidInput("State holds integers within ±2**53; send larger ones as strings.", code="integer_too_large")
