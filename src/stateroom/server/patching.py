"""A patch of a desk, as a request spells it: our own JSON, JSON Merge Patch or JSON Patch of the whole state."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from typing import Any

from stateroom import given
from stateroom.errors import InvalidInput
from stateroom.server.body import Body, decode
from stateroom.server.call import Call
from stateroom.session import kinds, merge
from stateroom.session.access import Acting
from stateroom.session.changes import Changes, encoded
from stateroom.session.model import NewEntry, SlotKind, SlotPatch
from stateroom.session.working import Working
from stateroom.wire import json

MERGE_PATCH, JSON_PATCH = "application/merge-patch+json", "application/json-patch+json"
_ETAG = re.compile(r'"(\d{1,15})(?:\.[0-9a-f]{8})?"')
_OWN = ("set", "remove")


def media_type(call: Call) -> str:
    return call.request.headers.get("content-type", "").partition(";")[0].strip().lower()


def acting(call: Call) -> Acting:
    """For which agent the caller acts (`agent`), and with which desk in hand (`hold`)."""
    return Acting(given.text(call.query("agent") or "", "agent"), call.query_int("hold") or 0)


def if_match(call: Call) -> int | None:
    """The version of the whole desk that a change is meant for."""
    given = call.request.headers.get("if-match")
    if given is None or given.strip() == "*":
        return None
    if (found := _ETAG.fullmatch(given.strip())) is None:
        raise InvalidInput("'If-Match' takes one version as its ETag shows it.", code="if_match_invalid", param="If-Match")
    return int(found[1])


def edit(call: Call) -> Callable[[Working], None] | None:
    """What a standard patch does to the state; None when the request is in our own words."""
    match media_type(call):
        case "application/merge-patch+json":
            patch = decode(call.data).value
            return lambda state: _merge(state, patch)
        case "application/json-patch+json":
            operations = json.decode(call.data)
            return lambda state: _patch(state, operations)
    call.body = decode(call.data)
    return None


def _merge(state: Working, patch: Mapping[str, Any]) -> None:
    for name, value in patch.items():
        if value is None:
            state.pop(name, None)
        else:
            state[name] = merge.merge(state.get(name), value)


def _patch(state: Working, operations: Any) -> None:
    """Only the slots that the pointers name are looked at, and so guarded."""
    pointers = [one.get(field) for one in operations if isinstance(one, dict) for field in ("path", "from") if field in one] \
        if isinstance(operations, list) else []  # fmt: skip
    whole = "" in pointers
    names = set(state) if whole else {merge.tokens(pointer)[0] for pointer in pointers}
    after = merge.patched({name: state[name] for name in names if name in state}, operations)
    if not isinstance(after, dict):
        raise InvalidInput("The state is an object of slots.", code="patch_invalid")
    for name in names | after.keys():
        if name not in after:
            state.pop(name, None)
        else:
            state[name] = after[name]


# ── our own words ───────────────────────────────────────────────────────────────────────────────────────────────────


def changes_of(body: Body, *, empty: bool = False) -> Changes:
    """`slots` to set, names to `remove`, `operations` to do, with what is `expected`."""
    slots, remove = body.get("slots", dict) or {}, body.get("remove", list) or []
    expected, schemas, given = (body.get(name, dict) or {} for name in ("expected", "schemas", "kinds"))
    operations = body.get("operations", list) or []
    if not all(isinstance(name, str) for name in remove):
        raise InvalidInput("'remove' names slots.", code="wrong_type", param="remove")
    if not all(type(version) is int and version >= 0 for version in expected.values()):
        raise InvalidInput("'expected' gives a version for each slot it names.", code="wrong_type", param="expected")
    if not empty and not slots and not remove and not operations:
        raise InvalidInput("Give 'slots' to change or to 'remove'.", code="patch_empty")
    if twice := sorted(set(slots) & set(remove)):
        raise InvalidInput(f"Slot {twice[0]!r} is named twice in one patch.", code="slot_named_twice")
    wanted = Changes()
    for name, value in slots.items():
        kind, schema = checked_kind(given.get(name, "value")), _schema(schemas.get(name, ""))
        wanted.set(name, value, expected=expected.get(name), kind=kind, schema=schema)
    for name in remove:
        wanted.remove(name, expected=expected.get(name))
    for operation in operations:
        wanted.join(_operation(operation, expected))
    if stray := sorted(set(expected) - set(wanted.names())):
        raise InvalidInput(f"'{stray[0][:80]}' is expected and not changed.", code="expected_without_change", param="expected")
    return wanted


def checked_kind(given: Any) -> SlotKind:
    for kind in kinds.OPERATIONS:
        if kind == given:
            return kind
    raise InvalidInput(f"A slot is of a kind among {', '.join(kinds.OPERATIONS)}.", code="slot_kind_unknown")


def _operation(given: Any, expected: Mapping[str, int]) -> SlotPatch:
    """`{"slot": …, "op": "counter.add", "value": 1}`: the kind and what is done to it."""
    name, op = (given.get("slot"), given.get("op")) if isinstance(given, dict) else (None, None)
    if not isinstance(name, str) or not isinstance(op, str):
        raise InvalidInput("An operation has a 'slot' and an 'op'.", code="operation_unknown", param="operations")
    version = expected.get(name)
    sources = given.get("sources") or []
    if not isinstance(sources, list) or not all(isinstance(one, str) for one in sources):
        raise InvalidInput("'sources' names slots.", code="wrong_type", param="sources")
    patch = SlotPatch(name=name, body=None, expected=version, sources=tuple(sources))
    if op in _OWN:
        return _set(patch, given) if op == "set" else patch
    word, _, verb = op.partition(".")
    kind = checked_kind(word)
    kinds.check_operation(kind, verb or op)
    return _does(patch, given, (kind, verb))


def _set(patch: SlotPatch, given: Mapping[str, Any]) -> SlotPatch:
    return SlotPatch(
        name=patch.name, body=encoded(given.get("value")), expected=patch.expected, sources=patch.sources,
        schema=_schema(given.get("schema", "")),
        kind=checked_kind(given.get("kind", "value")),
    )  # fmt: skip


def _schema(given: Any) -> str:
    """The name of a schema, or a JSON Schema."""
    if isinstance(given, str):
        return given
    if isinstance(given, dict):
        return encoded(given).decode()
    raise InvalidInput("A schema is a JSON Schema, or the name of one.", code="wrong_type", param="schema")


def _does(patch: SlotPatch, given: Mapping[str, Any], what: tuple[SlotKind, str]) -> SlotPatch:
    kind, verb = what
    epoch = given.get("epoch")
    entries, body = tuple[NewEntry, ...](), encoded(given.get("value")) if kind != "doc" else None
    if kind == "window":
        entries = _entries(given.get("entries"))
    elif kind == "doc" and verb == "update":
        body = unpacked(given.get("value"))
    return SlotPatch(
        name=patch.name, body=body, expected=patch.expected, kind=kind, op=verb, sources=patch.sources, entries=entries,
        epoch=epoch if type(epoch) is int else None,
    )  # fmt: skip


def _entries(given: Any) -> tuple[NewEntry, ...]:
    if not isinstance(given, list | None):
        raise InvalidInput("'entries' is a list.", code="entry_invalid")
    return tuple(entry_of(one) for one in given or ())


def entry_of(given: Any) -> NewEntry:
    """`{"at": ms, "media": …, "data": any JSON}`, or with `base64` for bytes."""
    if not isinstance(given, dict):
        raise InvalidInput("An entry is an object.", code="entry_invalid")
    at, media = given.get("at", 0), given.get("media", "")
    if type(at) is not int or not isinstance(media, str):
        raise InvalidInput("An entry has a time in ms and a short media type.", code="entry_invalid")
    if "base64" in given:
        return NewEntry(body=unpacked(given["base64"]), at=at, media=media or "application/octet-stream")
    return NewEntry(body=encoded(given.get("data")), at=at, media=media or "application/json")


def unpacked(given: Any) -> bytes:
    try:
        return base64.b64decode(given, validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise InvalidInput("Bytes are sent as base64.", code="base64_invalid") from None
