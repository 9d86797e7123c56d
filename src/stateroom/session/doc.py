"""Loro's edge: documents that replicas edit offline and that converge (P22). Needs the extra `docs`.

Loro raises bare BaseException for bad bytes, which passes every `except Exception` on its way up; here, and nowhere else, it
is turned into an error of ours.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from stateroom import limits
from stateroom.errors import Conflict, InvalidInput, LimitExceeded
from stateroom.wire import json


def applied(snapshot: bytes, update: bytes) -> tuple[bytes, bytes]:
    """The document with an update (or another snapshot), as a snapshot and as the JSON of what it says.

    Applying the same update twice is applying it once, and the order of updates does not matter. InvalidInput for bytes
    that are none, Conflict `doc_update_incomplete` when it builds on changes that are not there.
    """
    if not isinstance(update, bytes):
        raise InvalidInput("An update of a document is bytes.", code="doc_invalid")
    if len(update) > limits.SLOT_BYTES_MAX:
        raise LimitExceeded(f"A slot holds {limits.SLOT_BYTES_MAX} bytes.", code="slot_too_large")
    loro = _loro()
    with _edge():
        document = _loaded(loro, snapshot)
        pending = document.import_(update).pending if update else None
        if pending is not None:
            raise Conflict("The update builds on changes that are missing here: send these too.", code="doc_update_incomplete")
        return _bytes(document.export(loro.ExportMode.Snapshot())), rendered(document.get_deep_value())


def restarted(snapshot: bytes) -> tuple[bytes, bytes]:
    """The document without its past, and what it says: what was deleted is in no byte of it."""
    loro = _loro()
    with _edge():
        document = _loaded(loro, snapshot)
        return _bytes(document.export(loro.ExportMode.StateOnly(None))), rendered(document.get_deep_value())


def since(snapshot: bytes, seen: bytes) -> bytes:
    """What a replica has not seen, as an update. `seen` is the version vector that it sent; b"": nothing."""
    loro = _loro()
    with _edge():
        document = _loaded(loro, snapshot)
        if not seen:
            return _bytes(document.export(loro.ExportMode.Snapshot()))
        return _bytes(document.export(loro.ExportMode.Updates(loro.VersionVector.decode(seen))))


def rendered(value: Any) -> bytes:
    """What a document says, as JSON."""
    return json.encode(value)


def _loaded(loro: Any, snapshot: bytes) -> Any:
    document = loro.LoroDoc()
    if snapshot:
        document.import_(snapshot)
    return document


def _bytes(exported: Any) -> bytes:
    return bytes(exported)


@contextmanager
def _edge() -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        if isinstance(error, Exception | KeyboardInterrupt | SystemExit | GeneratorExit) or not _foreign(error):
            raise
        raise InvalidInput(f"These bytes are no document: {error}"[:300], code="doc_invalid") from None


def _foreign(error: BaseException) -> bool:
    """Whether it came from Rust: a bare BaseException, or a panic."""
    return type(error) is BaseException or type(error).__module__ == "pyo3_runtime"


def _loro() -> Any:
    try:
        return importlib.import_module("loro")
    except ModuleNotFoundError as missing:
        message = "Slots of kind 'doc' need the extra: pip install 'stateroom[docs]'."
        raise InvalidInput(message, code="docs_not_installed") from missing
