"""Fields of a record that this version does not know: set apart as their bytes are, and put back where they were (D15)."""

from __future__ import annotations

import inspect

import msgspec

from stateroom.wire import json

Fields = dict[str, msgspec.Raw]
_fields = msgspec.json.Decoder(Fields).decode


def beyond(record: bytes, kind: type[msgspec.Struct]) -> bytes:
    """The fields of a record, and of the records in it, that its kind does not have; b"" when there are none."""
    rest = _rest(record, kind)
    return json.encode(rest) if rest else b""


def _rest(record: bytes, kind: type[msgspec.Struct]) -> Fields:
    known, rest = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}, Fields()
    for name, value in _fields(record).items():
        if name not in known:
            rest[name] = msgspec.Raw(bytes(value))
        elif _is_record(known[name]) and (inner := _rest(bytes(value), known[name])):
            rest[name] = msgspec.Raw(json.encode(inner))
    return rest


def _is_record(kind: object) -> bool:
    return inspect.isclass(kind) and issubclass(kind, msgspec.Struct)


def joined(record: bytes, rest: bytes) -> bytes:
    """The record with these fields; where both say something, the record does."""
    fields = _fields(record)
    for name, value in _fields(rest).items():
        if name not in fields:
            fields[name] = value
        elif bytes(fields[name])[:1] == bytes(value)[:1] == b"{":
            fields[name] = msgspec.Raw(joined(bytes(fields[name]), bytes(value)))
    return json.encode(fields)
