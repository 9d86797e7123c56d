"""The one JSON codec, at every entrance (D14). Stored bytes and requests are hostile: bounded, strict, no surprises.

Refused: what is no JSON (NaN, lone surrogates and raw control characters included), duplicate keys, NUL characters,
nesting beyond 64. Kept: unknown fields, number spellings and key order, because callers store the bytes they gave.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from stateroom import limits
from stateroom.errors import InvalidInput

encode = msgspec.json.Encoder().encode
decode_trusted = msgspec.json.Decoder().decode  # for bytes this store wrote after `decode` took them
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_elements = msgspec.json.Decoder(list[msgspec.Raw]).decode

_UNSOUND = re.compile("[\0\ud800-\udfff]")
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
# Strings (one that never ends too: then there is nothing after it), and the brackets between them: enough to measure
# nesting without recursion, and in linear time, because nothing is ever matched twice.
_TOKENS = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]', re.DOTALL)


def decode(data: bytes) -> Any:
    """Parse bytes from outside. InvalidInput with a stable code for everything that is not sound JSON."""
    check_depth(data)
    if b"\\u0000" in data and _NUL.search(data):
        raise InvalidInput("Strings may not hold NUL characters.", code="json_nul")
    try:
        value = msgspec.json.decode(data)
        json.loads(data, object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
    except InvalidInput:
        raise
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"This is not valid JSON: {error}", code="json_invalid") from error
    return value


def from_plain(value: Any) -> bytes:
    """A plain value as JSON that every store and language takes. InvalidInput for NaN, lone surrogates, sets and so on."""
    try:
        body = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"This cannot be kept as JSON: {error}", code="json_invalid") from error
    decode(body)
    return body


def sound(value: Any) -> Any:
    """What an agent says, as every store, language and reader of this codec takes it: it is not worth losing an answer for
    a NUL or half a character in it, so these become U+FFFD, as text decoders have it."""
    if isinstance(value, str):
        return _UNSOUND.sub("\ufffd", value) if _UNSOUND.search(value) else value
    if isinstance(value, Mapping):
        return {sound(name): sound(one) for name, one in value.items()}
    return [sound(one) for one in value] if isinstance(value, list | tuple) else value


def answered(value: Any) -> tuple[Any, bytes]:
    """A value from an agent, made `sound`, and its JSON. InvalidInput for what is nested too deep."""
    try:
        body = encode(value)
    except UnicodeEncodeError:
        body = b"\\u0000"
    if b"\\u0000" in body:
        value = sound(value)
        body = encode(value)
    check_depth(body)
    return value, body


def without_nul(data: bytes) -> bytes:
    """JSON of somebody who may have NUL characters in it, without them."""
    return _NUL.sub(lambda found: found.group()[:-6] + b"\\ufffd", data) if b"\\u0000" in data else data


def decode_object(data: bytes) -> dict[str, Any]:
    """Like `decode`, and it has to be an object."""
    value = decode(data or b"{}")
    if not isinstance(value, dict):
        raise InvalidInput("The body must be a JSON object.", code="not_an_object")
    return value


def fields(data: bytes) -> dict[str, bytes]:
    """The top level of an object that `decode` took, each value as its own bytes: nothing is respelled."""
    return {name: bytes(raw) for name, raw in _fields(data).items()}


def elements(data: bytes) -> list[bytes]:
    """The elements of an array that `decode` took, each as its own bytes."""
    return [bytes(raw) for raw in _elements(data)]


def splice(head: Mapping[str, Any], body: bytes) -> bytes:
    """An object with `head`'s fields first and `body`'s others after them, byte for byte as they were stored."""
    own = {name: encode(value) for name, value in head.items()}
    rest = {name: raw for name, raw in _fields(body).items() if name not in own}
    return encode({**{name: msgspec.Raw(raw) for name, raw in own.items()}, **rest})


def check_depth(data: bytes) -> None:
    """Refuse nesting beyond the limit before any parser recurses into it."""
    if data.count(b"[") + data.count(b"{") <= limits.JSON_DEPTH_MAX:
        return
    depth = 0
    for match in _TOKENS.finditer(data):
        token = match.group()
        if token in (b"{", b"["):
            depth += 1
            if depth > limits.JSON_DEPTH_MAX:
                raise InvalidInput(f"JSON may be nested {limits.JSON_DEPTH_MAX} deep.", code="json_too_deep")
        elif token in (b"}", b"]"):
            depth -= 1


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise InvalidInput("An object names a key twice.", code="json_duplicate_key")
    return found


def _no_constant(name: str) -> Any:
    raise InvalidInput(f"{name} is no JSON number.", code="json_invalid")
