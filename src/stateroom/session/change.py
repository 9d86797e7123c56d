"""One slot's change, pure: what lies there and what is asked, to what lies there then. Every store asks here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from stateroom import limits, trust
from stateroom.batch import Record
from stateroom.errors import Conflict, InvalidInput, LimitExceeded
from stateroom.session import doc, kinds, schema, window
from stateroom.session.model import NewEntry, PatchSlots, Slot, SlotPatch
from stateroom.wire import json


class Stamp(Record, frozen=True):
    """Who changes a desk, and to which version. `now` is the store's time, `at` the wall's."""

    version: int
    by: str
    agent: str
    run: bytes
    at: int
    now: int


class Stored(Record, frozen=True):
    """What a store has that a change may need: the document of a slot, and the text of a schema by its name."""

    document: Callable[[Slot], bytes]
    schema: Callable[[str], str]


class Changed(Record, frozen=True):
    """A slot after its change, and what has to be written beside it."""

    slot: Slot
    entries: tuple[NewEntry, ...] = ()  # of a window
    document: bytes | None = None  # of a doc
    schema: str = ""  # a schema that was given: its text
    clear: bool = False  # a window's entries go with it


def stamp(write: PatchSlots, version: int, *, at: int, now: int) -> Stamp:
    return Stamp(version=version, by=write.by, agent=write.agent, run=write.run, at=at, now=now)


def names(write: PatchSlots) -> Sequence[str]:
    """The slots that a patch changes, was derived from or has seen: all that a store has to read for it."""
    found = dict.fromkeys(patch.name for patch in write.patches)
    found.update(dict.fromkeys(name for patch in write.patches for name in patch.sources))
    found.update(dict.fromkeys(name for name, _ in write.seen))
    return list(found)


def change(patch: SlotPatch, current: Mapping[str, Slot], mark: Stamp, *, stored: Stored) -> Changed:
    """The slot after the patch. Conflict when it does not fit what lies there, InvalidInput when it never can."""
    old = current.get(patch.name)
    living = old if old is not None and old.body is not None else None
    if patch.op == "" and patch.body is None:
        return _removed(patch, old, mark)
    if living is not None and living.kind != patch.kind:
        raise Conflict(
            f"Slot {patch.name!r} is a {living.kind}: remove it to make it a {patch.kind}.", code="slot_kind_conflict",
            slot=patch.name, kind=living.kind,
        )  # fmt: skip
    asked = patch.schema or (living.schema if living is not None else "")
    slot = Slot(
        name=patch.name,
        version=mark.version,
        kind=patch.kind,
        schema=schema.ref(asked),
        origin=patch.origin,
        trust=trust.derived(patch.origin, patch.trust, _sources(patch, living, current)),
        body=b"",
        by=mark.by,
        run=mark.run,
        at=mark.at,
        agent=mark.agent,
        epoch=living.epoch if living is not None else mark.version if patch.kind in ("window", "doc") else 0,
    )
    changed = _CHANGES.get(patch.kind, _plain)(patch, living, slot, mark, stored)
    _check_size(changed.slot.body or b"", patch)
    return _with_schema(changed, asked, stored) if asked else changed


def _removed(patch: SlotPatch, old: Slot | None, mark: Stamp) -> Changed:
    kind = old.kind if old is not None else patch.kind
    slot = Slot(
        name=patch.name, version=mark.version, kind=kind, schema="", origin=patch.origin,
        trust=trust.derived(patch.origin, patch.trust, ()), body=None, by=mark.by, run=mark.run, at=mark.at, agent=mark.agent,
    )  # fmt: skip
    return Changed(slot=slot, clear=kind == "window")


def _sources(patch: SlotPatch, living: Slot | None, current: Mapping[str, Slot]) -> list[int]:
    """The trust of what the new content was made from: of the old content, when it goes on in it, and of named slots."""
    named = (current.get(name) for name in patch.sources)
    found = [slot.trust for slot in named if slot is not None and slot.body is not None]
    return found + ([living.trust] if living is not None and patch.op not in ("", "restart") else [])


def _plain(patch: SlotPatch, living: Slot | None, slot: Slot, mark: Stamp, stored: Stored) -> Changed:
    operand = _operand(patch)
    if patch.op:
        old = living.body if living is not None else None
        return Changed(slot=replace(slot, body=kinds.applied(patch.kind, patch.op, old=old, operand=operand)))
    return Changed(slot=replace(slot, body=kinds.shaped(patch.kind, operand)))


def _window(patch: SlotPatch, living: Slot | None, slot: Slot, mark: Stamp, stored: Stored) -> Changed:
    old = window.of(living.body if living is not None else None)
    if patch.op == "":
        new, entries = window.defined(kinds.decoded(_operand(patch)), old), tuple[NewEntry, ...]()
    elif living is None:
        raise Conflict(f"There is no window {patch.name!r}: set what it keeps first.", code="window_missing", slot=patch.name)
    else:
        window.check_entries(patch.entries)
        new, entries = window.appended(old, patch.entries, mark.now)
    return Changed(slot=replace(slot, body=window.body(new)), entries=entries)


def _doc(patch: SlotPatch, living: Slot | None, slot: Slot, mark: Stamp, stored: Stored) -> Changed:
    if living is not None and patch.epoch is not None and patch.epoch != living.epoch:
        raise Conflict(
            f"Document {patch.name!r} is in epoch {living.epoch}: fetch it anew.", code="doc_epoch_over", slot=patch.name,
            epoch=living.epoch,
        )  # fmt: skip
    before = stored.document(living) if living is not None and patch.op else b""
    if patch.op == "update":
        snapshot, body = doc.applied(before, _operand(patch))
    else:  # set, or begin anew with what it says now: another epoch either way
        snapshot, body = doc.restarted(before) if patch.op == "restart" else doc.applied(b"", _operand(patch))
        slot = replace(slot, epoch=mark.version)
    kinds.check_integers(json.decode(body))  # what a replica wrote comes from outside, like everything else
    _check_size(snapshot, patch)
    return Changed(slot=replace(slot, body=body), document=snapshot)


_CHANGES: Mapping[str, Callable[[SlotPatch, Slot | None, Slot, Stamp, Stored], Changed]] = {
    "window": _window,
    "doc": _doc,
}


def _operand(patch: SlotPatch) -> bytes:
    if patch.body is None and patch.op != "restart":
        raise InvalidInput(f"Operation {patch.op!r} needs an operand.", code="operand_invalid", param=patch.name)
    return patch.body or b""


def _check_size(content: bytes, patch: SlotPatch) -> None:
    if len(content) > limits.SLOT_BYTES_MAX:
        raise LimitExceeded(f"A slot holds {limits.SLOT_BYTES_MAX} bytes.", code="slot_too_large", param=patch.name)


def _with_schema(changed: Changed, asked: str, stored: Stored) -> Changed:
    """Whether the slot keeps its schema; a schema that was given with this patch is to be kept."""
    name = changed.slot.name
    if not schema.asks(asked):
        return changed
    value = kinds.decoded(changed.slot.body or b"")
    if schema.given(asked):
        schema.check_schema(asked)
        schema.check(name, asked, value)
        return replace(changed, schema=asked)
    schema.check(name, stored.schema(asked) if asked.startswith(schema.GIVEN) else asked, value)
    return changed
