"""Request bodies: bounded while they are read, decoded once, with every item's bytes as the caller spelled them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request

from stateroom import limits
from stateroom.errors import InvalidInput, LimitExceeded
from stateroom.wire import json

READ_S_MAX = 60.0  # for a whole body; slower than this is nobody's intent
THREAD_BYTES = 64 << 10  # larger bodies are decoded in a thread, so that they do not hold up everybody else


class Body:
    """A JSON object from outside. `value` is parsed, `raw` the bytes of each of its fields."""

    def __init__(self, value: dict[str, Any], raw: Mapping[str, bytes]) -> None:
        self.value = value
        self.raw = raw

    def get(self, name: str, *kinds: type) -> Any:
        """A field of one of these kinds, or None when it is null or not there. InvalidInput names the field."""
        found = self.value.get(name)
        if found is None or _is(found, kinds):
            return found
        raise InvalidInput(f"'{name}' is of the wrong type.", code="wrong_type", param=name)

    def items(self, name: str) -> list[bytes]:
        """An array of items, each as its own bytes."""
        found = self.get(name, list) or []
        for at, item in enumerate(found):
            check_item(item, f"{name}[{at}]")
        return json.elements(self.raw[name]) if found else []

    def metadata(self) -> bytes | None:
        """The metadata as JSON, checked against the limits; None when it is not there."""
        found = self.get("metadata", dict)
        if found is None:
            return None
        check_metadata(found)
        return self.raw["metadata"]

    def without(self, *names: str) -> bytes:
        """The object without some fields, the others byte for byte."""
        return json.encode({name: msgspec.Raw(raw) for name, raw in self.raw.items() if name not in names})


async def read(request: Request) -> Body:
    """The body of a request. An empty one is an empty object; the content type does not matter."""
    data = await read_bytes(request)
    return await asyncio.to_thread(decode, data) if len(data) > THREAD_BYTES else decode(data)


async def read_bytes(request: Request) -> bytes:
    """All bytes, never more than the limit, whatever Content-Length said."""
    said = request.headers.get("content-length", "0")
    if said.isdigit() and int(said[:20]) > limits.BODY_BYTES_MAX:
        raise _too_large()
    data = bytearray()
    try:
        async with asyncio.timeout(READ_S_MAX):
            async for chunk in request.stream():
                data += chunk
                if len(data) > limits.BODY_BYTES_MAX:
                    raise _too_large()
    except TimeoutError as error:
        raise InvalidInput(f"The body took longer than {READ_S_MAX:.0f} s.", code="body_too_slow") from error
    except ClientDisconnect as error:
        raise InvalidInput("The body broke off.", code="body_cut") from error
    return bytes(data)


def decode(data: bytes) -> Body:
    value = json.decode_object(data)
    return Body(value, json.fields(data) if value else {})


def check_item(item: Any, place: str) -> None:
    """What every item has to be, before anything is written; its type and role are the record's rules."""
    if not isinstance(item, dict):
        raise InvalidInput("An item is a JSON object.", code="not_an_object", param=place)
    is_message = item.get("type", "message") == "message"
    if is_message and not isinstance(item.get("content"), str | list | None):
        raise InvalidInput("A message's content is a string or a list of parts.", code="wrong_type", param=f"{place}.content")


def check_metadata(metadata: Mapping[str, Any]) -> None:
    """As OpenAI has it: 16 pairs of strings, keys of 64 and values of 512 characters."""
    if len(metadata) > limits.METADATA_PAIRS_MAX:
        raise _metadata_too_large(f"Metadata has at most {limits.METADATA_PAIRS_MAX} pairs.")
    for name, value in metadata.items():
        if not isinstance(value, str):
            raise InvalidInput(f"Metadata values are strings; '{name[:80]}' is none.", code="wrong_type", param="metadata")
        if len(name) > limits.METADATA_KEY_CHARS_MAX or len(value) > limits.METADATA_VALUE_CHARS_MAX:
            longest = f"{limits.METADATA_KEY_CHARS_MAX} characters, values {limits.METADATA_VALUE_CHARS_MAX}"
            raise _metadata_too_large(f"Metadata keys have at most {longest}.")


def _is(found: Any, kinds: tuple[type, ...]) -> bool:
    return isinstance(found, kinds) and (not isinstance(found, bool) or bool in kinds)


def _metadata_too_large(message: str) -> LimitExceeded:
    return LimitExceeded(message, code="metadata_too_large", param="metadata")


def _too_large() -> LimitExceeded:
    return LimitExceeded(f"A request may have {limits.BODY_BYTES_MAX} bytes.", code="body_too_large")
