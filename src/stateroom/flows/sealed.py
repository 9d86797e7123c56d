"""The format of archives and bundles: one JSON object a line, and a signature over all of them at the end.

    {"stateroom":1,"session":{…},"conversation":"conv_…","at":…}    the manifest
    {"part":"slot","row":{…}}                                        everything of the desk, part by part
    {"end":…,"algorithm":"hmac-sha256","signature":"…"}              how many rows, and HMAC-SHA-256 over all bytes before

A line is read only when it is short enough, a desk only when the signature is right. Fields and parts that this version does
not know are set apart, and put back when the desk is written again; a newer format is refused.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping

import msgspec

from stateroom import limits
from stateroom.errors import InvalidInput, LimitExceeded
from stateroom.flows.beyond import beyond, joined
from stateroom.session import access, rules
from stateroom.session import remains as r
from stateroom.session.model import Checkpoint, Session, Slot
from stateroom.wire import json

FORMAT = 1
ALGORITHM = "hmac-sha256"


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What it is of. `conversation` is the one it was bound to; that is not in it."""

    stateroom: int
    session: Session
    conversation: str = ""
    at: int = 0


class _Row(msgspec.Struct, frozen=True):
    part: str
    row: msgspec.Raw


class _End(msgspec.Struct, frozen=True):
    end: int
    algorithm: str
    signature: str


_TYPES: Mapping[str, type[msgspec.Struct]] = {
    "schema": r.GivenSchema, "slot": Slot, "past": r.PastSlot, "document": r.Snapshot, "entry": r.Lying,
    "checkpoint": Checkpoint,
}  # fmt: skip
_PART = re.compile(r"[a-z][a-z_]{0,39}")
_READ: Mapping[str, Callable[[bytes], object]] = {part: msgspec.json.Decoder(kind).decode for part, kind in _TYPES.items()}
_manifest = msgspec.json.Decoder(Manifest).decode
_row = msgspec.json.Decoder(_Row).decode
_end = msgspec.json.Decoder(_End).decode


def key_of(secret: bytes, purpose: str) -> bytes:
    """A key for one purpose, from the store's secret or one that two stores share."""
    return hmac.digest(secret, f"stateroom {purpose} 1".encode(), "sha256")


class Writer:
    """Makes the lines, and signs them."""

    def __init__(self, key: bytes) -> None:
        self._mac, self._rows = hmac.new(key, digestmod=hashlib.sha256), 0

    def manifest(self, manifest: Manifest, rest: bytes = b"") -> bytes:
        line = json.encode(manifest)
        return self._line(joined(line, rest) if rest else line)

    def row(self, part: str, remnant: r.Remnant | msgspec.Raw, *rest: bytes) -> bytes:
        """`rest`: what else was said of it."""
        self._rows += 1
        if any(rest):
            row = json.encode(remnant)
            for one in filter(None, rest):
                row = joined(row, one)
            remnant = msgspec.Raw(row)
        return self._line(json.encode({"part": part, "row": remnant}))

    def end(self) -> bytes:
        return json.encode(_End(self._rows, ALGORITHM, self._mac.hexdigest())) + b"\n"

    def _line(self, line: bytes) -> bytes:
        self._mac.update(line + b"\n")
        return line + b"\n"


class Reader:
    """Reads it once: the manifest, then the rows. What comes of it may be used when `rows` has ended without an error."""

    def __init__(self, chunks: AsyncIterator[bytes], key: bytes) -> None:
        self._lines, self._mac, self._count = _lines(chunks), hmac.new(key, digestmod=hashlib.sha256), 0
        self.rest = b""  # what else the manifest says

    async def manifest(self) -> Manifest:
        line = await anext(self._lines, b"")
        found = _decoded(_manifest, line)
        if not isinstance(found, Manifest):
            raise _invalid("it has no manifest")
        if found.stateroom != FORMAT:
            raise InvalidInput(f"This is format {found.stateroom}; this version reads {FORMAT}.", code="archive_too_new")
        _check_head(found.session)
        self._mac.update(line + b"\n")
        self.rest = beyond(line, Manifest)
        return found

    async def rows(self) -> AsyncIterator[r.Remnant]:
        """InvalidInput `archive_tampered` at its end, when anything before it was changed."""
        async for line in self._lines:
            if line.startswith(b'{"end"'):
                await self._check(line)
                return
            self._mac.update(line + b"\n")
            self._count += 1
            row = _decoded(_row, line)
            assert isinstance(row, _Row)
            if row.part not in _READ:
                yield self._unknown(row)
                continue
            remnant, kind = _checked(_decoded(_READ[row.part], bytes(row.row))), _TYPES[row.part]
            yield remnant
            for of, rest in _set_apart(row.part, beyond(bytes(row.row), kind)):
                yield r.set_apart(of, r.mark(remnant), rest)
        raise _invalid("it was cut off")

    def _unknown(self, row: _Row) -> r.Beyond:
        """A row of a part that this version does not know: kept as it is, in its order."""
        if not _PART.fullmatch(row.part):
            raise _invalid(f"it has a part {row.part[:40]!r}")
        return r.set_apart(f"+{row.part}", ("", self._count, 0, 0), bytes(row.row))

    async def _check(self, line: bytes) -> None:
        end = _decoded(_end, line)
        assert isinstance(end, _End)
        if end.algorithm != ALGORITHM or end.end != self._count or not hmac.compare_digest(end.signature, self._mac.hexdigest()):
            raise InvalidInput("The signature is not right: it was changed, or signed with another key.", code="archive_tampered")
        if await anext(self._lines, None) is not None:
            raise _invalid("something follows its end")


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    rest = b""
    async for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line
        if len(rest) > limits.ARCHIVE_LINE_BYTES_MAX:
            raise _invalid("a line has no end")
    if rest:
        raise _invalid("it was cut off")


def _set_apart(part: str, rest: bytes) -> Iterator[tuple[str, bytes]]:
    """What is said of a slot follows it when it changes; what is said of its being in the past stays there."""
    if not rest:
        return
    if part != "past":
        yield part, rest
        return
    fields = msgspec.json.decode(rest, type=dict[str, msgspec.Raw])
    if (slot := fields.pop("slot", None)) is not None:
        yield "slot", bytes(slot)
    if fields:
        yield "past", json.encode(fields)


def _decoded(read: Callable[[bytes], object], line: bytes) -> object:
    if len(line) > limits.ARCHIVE_LINE_BYTES_MAX:
        raise _invalid("a line is too long")
    try:
        return read(line)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _invalid(str(error)[:200]) from error


def _check_head(session: Session) -> None:
    """Whoever shows the desk, alone or in a list, has to be able to."""
    try:
        json.decode(session.metadata)
        access.rules_of(session.access)
    except (InvalidInput, msgspec.DecodeError) as error:
        raise _invalid(str(error)[:200]) from error
    if not 0 <= session.version <= limits.JSON_INT_MAX:
        raise _invalid("its version is none")


def _checked(remnant: object) -> r.Remnant:
    """Nothing comes in that could not have been written here."""
    slot = remnant if isinstance(remnant, Slot) else remnant.slot if isinstance(remnant, r.PastSlot) else None
    if slot is not None:
        rules.check_name(slot.name)
        if slot.body is not None:
            json.decode(slot.body)
    assert isinstance(remnant, r.GivenSchema | Slot | r.PastSlot | r.Snapshot | r.Lying | Checkpoint)
    if r.weight(remnant) > limits.SLOT_BYTES_MAX:
        raise LimitExceeded(f"A slot holds {limits.SLOT_BYTES_MAX} bytes.", code="slot_too_large")
    return remnant


def _invalid(why: str) -> InvalidInput:
    return InvalidInput(f"This is no archive of a session: {why}.", code="archive_invalid")
