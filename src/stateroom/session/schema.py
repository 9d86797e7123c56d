"""Schemas of slots: JSON Schema, or one of the shipped ones by its name. Pure; needs the extra `schemas` for the former.

A schema comes from nowhere but the patch that gives it: remote references are not followed.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
from typing import Any

import msgspec

from stateroom import limits
from stateroom.errors import InvalidInput, LimitExceeded
from stateroom.session.conventions import SHIPPED
from stateroom.wire import json

GIVEN = "sha256:"  # how a slot names a schema that was given to it


def ref(schema: str) -> str:
    """How a slot names its schema: by its digest when it is given, else by the name itself."""
    return GIVEN + hashlib.sha256(schema.encode()).hexdigest()[:32] if given(schema) else schema


def given(schema: str) -> bool:
    """Whether this is a schema, and not the name of one."""
    return schema.lstrip().startswith("{")


def asks(schema: str) -> bool:
    """Whether a slot with this schema has anything to keep; a name that nobody knows is a label."""
    return given(schema) or schema.startswith(GIVEN) or schema in SHIPPED


def of(kind: Any) -> str:
    """The JSON Schema of a msgspec or pydantic type, or of any type that msgspec knows."""
    if isinstance(kind, str):
        return kind
    if isinstance(kind, dict):
        return json.encode(kind).decode()
    if hasattr(kind, "model_json_schema"):
        return json.encode(kind.model_json_schema()).decode()
    try:
        return json.encode(msgspec.json.schema(kind)).decode()
    except TypeError as error:
        raise InvalidInput(f"No JSON Schema can be made of this type: {error}"[:300], code="schema_invalid") from error


def check_schema(schema: str) -> None:
    """Whether a given schema is one. InvalidInput `schema_invalid` when not."""
    if len(schema.encode()) > limits.SCHEMA_BYTES_MAX:
        raise LimitExceeded(f"A schema has {limits.SCHEMA_BYTES_MAX} bytes.", code="schema_too_large")
    json.decode_object(schema.encode())
    _compiled(schema)


def check(name: str, schema: str, value: Any) -> None:
    """Whether a slot's value keeps its schema. InvalidInput `schema_broken` with `path` (JSON Pointer) and reason."""
    if given(schema):
        for error in _compiled(schema).iter_errors(value):
            path = "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in error.instance_path)
            raise _broken(name, path, str(error.message))
    elif (shipped := SHIPPED.get(schema)) is not None:
        try:
            msgspec.convert(value, shipped)
        except msgspec.ValidationError as error:
            reason, _, at = str(error).partition(" - at `$")
            raise _broken(name, _pointer(at.rstrip("`")), reason) from error


def _pointer(path: str) -> str:
    """msgspec's `.steps[0].status` as a JSON Pointer. It leaves indexes out: `[...]`."""
    return "/".join(path.replace("[...]", ".*").replace("[", ".").replace("]", "").split("."))


def _broken(name: str, path: str, reason: str) -> InvalidInput:
    return InvalidInput(
        f"Slot {name!r} breaks its schema at {path or '/'!r}: {reason}"[:500], code="schema_broken", param=name, path=path,
        reason=reason[:300],
    )  # fmt: skip


@functools.lru_cache(maxsize=256)
def _compiled(schema: str) -> Any:
    try:
        library = importlib.import_module("jsonschema_rs")
    except ModuleNotFoundError as missing:
        message = "Slots with a JSON Schema need the extra: pip install 'stateroom[schemas]'."
        raise InvalidInput(message, code="schemas_not_installed") from missing
    patterns = library.RegexOptions(size_limit=1 << 20)  # the engine without backtracking: linear time
    try:
        return library.validator_for(json.decode_trusted(schema.encode()), pattern_options=patterns, offline=True)
    except ValueError as error:
        raise InvalidInput(f"This is no JSON Schema: {error}"[:300], code="schema_invalid") from error
