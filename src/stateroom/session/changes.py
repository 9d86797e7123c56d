"""What a program or an agent wants on a desk, in verbs, gathered as patches that land together.

    Changes().set("size", 10).count("visits").append("viewed", "shoe-7")

One patch changes a slot once: what commutes is joined, anything further on a slot comes in a layer of its own, a version
later and in the same batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from stateroom import trust
from stateroom.errors import InvalidInput
from stateroom.session import kinds
from stateroom.session import schema as schemas
from stateroom.session.model import NewEntry, SlotKind, SlotPatch
from stateroom.wire import json

_JOINED: Final = frozenset({
    ("counter", "add"), ("set", "add"), ("set", "discard"), ("list", "append"), ("map", "put"), ("map", "drop"),
    ("window", "append"),
})  # fmt: skip


class Changes:
    """Each verb returns the whole, so that they can be said in one breath. `origin` says where the content comes from."""

    def __init__(self, *, origin: str = "user") -> None:
        self._origin = origin
        self._layers: list[dict[str, SlotPatch]] = []
        self.seen: dict[str, int] = {}  # versions of slots that all of it stands on and that it does not change
        self._at: dict[str, int] = {}  # the layer of a slot's last change

    def __bool__(self) -> bool:
        return bool(self._layers)

    # ── values ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def set(
        self, name: str, value: Any, *, expected: int | None = None, kind: SlotKind = "value", schema: Any = "",
        sources: Sequence[str] = (),
    ) -> Changes:  # fmt: skip
        """A slot's whole value. `expected`: the version that was seen, 0: it must not exist. `schema`: a JSON Schema, a
        msgspec or pydantic type, or the name of a shipped one; it stays until another is given. `sources`: slots that the
        value was made from."""
        given = SlotPatch(
            name=name, body=encoded(value), expected=expected, kind=kind, schema=_schema(schema), sources=tuple(sources)
        )
        return self.apply(given)

    def remove(self, name: str, *, expected: int | None = None) -> Changes:
        return self.apply(SlotPatch(name=name, body=None, expected=expected))

    def merge(self, name: str, patch: Any, *, expected: int | None = None) -> Changes:
        """JSON Merge Patch (RFC 7396) of a value: objects merge, None removes."""
        return self._do(name, "value", "merge", operand=patch, expected=expected)

    def edit(self, name: str, operations: Sequence[Mapping[str, Any]], *, expected: int | None = None) -> Changes:
        """JSON Patch (RFC 6902) of a value, all operations or none."""
        return self._do(name, "value", "patch", operand=operations, expected=expected)

    # ── what commutes: nobody has to have seen anything ─────────────────────────────────────────────────────────────

    def count(self, name: str, by: int = 1) -> Changes:
        """More, or less, on a counter."""
        return self._do(name, "counter", "add", operand=by)

    def add(self, name: str, *members: Any) -> Changes:
        """Members of a set."""
        return self._do(name, "set", "add", operand=list(members))

    def discard(self, name: str, *members: Any) -> Changes:
        return self._do(name, "set", "discard", operand=list(members))

    def append(self, name: str, *elements: Any) -> Changes:
        """Elements at the end of a list."""
        return self._do(name, "list", "append", operand=list(elements))

    def put(self, name: str, entries: Mapping[str, Any]) -> Changes:
        """Entries of a map, by key."""
        return self._do(name, "map", "put", operand=dict(entries) if isinstance(entries, Mapping) else entries)

    def drop(self, name: str, *keys: str) -> Changes:
        """Keys of a map."""
        return self._do(name, "map", "drop", operand=list(keys))

    # ── windows and documents ───────────────────────────────────────────────────────────────────────────────────────

    def window(self, name: str, *, seconds: float | None = None, size: int | None = None) -> Changes:
        """What a window keeps: the last `seconds`, the last `size` bytes, or what fits both."""
        kept = {key: value for key, value in (("seconds", seconds), ("bytes", size)) if value is not None}
        return self.set(name, kept, kind="window")

    def observe(self, name: str, body: bytes, *, at: int = 0, media: str = "application/octet-stream") -> Changes:
        """An entry of a window. `at`: when it was observed, ms since 1970; 0: now."""
        entry = NewEntry(body=body, at=at, media=media)
        return self.join(SlotPatch(name=name, body=b"null", kind="window", op="append", entries=(entry,)))

    def sync(self, name: str, update: bytes, *, epoch: int | None = None) -> Changes:
        """What a replica changed in a document, or a whole one, as Loro exports it; `epoch` of the document it had."""
        return self.apply(SlotPatch(name=name, body=update, kind="doc", op="update", epoch=epoch))

    def restart(self, name: str, *, epoch: int | None = None) -> Changes:
        """A document goes on without its past: what was deleted from it is in no byte any more."""
        return self.apply(SlotPatch(name=name, body=None, kind="doc", op="restart", epoch=epoch))

    # ── what comes of it ────────────────────────────────────────────────────────────────────────────────────────────

    def apply(self, patch: SlotPatch) -> Changes:
        """A patch as it is, but for where it comes from."""
        patch = replace(patch, origin=self._origin, trust=trust.ceiling(self._origin))
        layer = self._at.get(patch.name, -1) + 1
        if layer:  # guarded by the change before it
            patch = replace(patch, expected=None)
        if layer == len(self._layers):
            self._layers.append({})
        self._layers[layer][patch.name] = patch
        self._at[patch.name] = layer
        return self

    def patches(self) -> list[SlotPatch]:
        """The patches in order."""
        return [patch for layer in self._layers for patch in layer.values()]

    def layers(self) -> list[tuple[SlotPatch, ...]]:
        """The patches, a layer for each version."""
        return [tuple(layer.values()) for layer in self._layers]

    def forget(self, name: str) -> None:
        """What was said of a slot is not wanted any more."""
        for layer in self._layers:
            layer.pop(name, None)
        self._layers = [layer for layer in self._layers if layer]
        self._at.pop(name, None)

    def names(self) -> list[str]:
        """The slots that are changed."""
        return sorted(self._at)

    def join(self, patch: SlotPatch) -> Changes:
        """A patch that joins the one before it on its slot, where the two commute."""
        last = self._layers[self._at[patch.name]][patch.name] if patch.name in self._at else None
        if last is None or (last.kind, last.op) != (patch.kind, patch.op) or (patch.kind, patch.op) not in _JOINED:
            return self.apply(patch)
        old, new = json.decode_trusted(last.body or b"null"), json.decode_trusted(patch.body or b"null")
        if not isinstance(new, type(old)) or isinstance(new, bool | str):
            raise InvalidInput(f"Two operations on {patch.name[:80]!r} do not go together.", code="operand_invalid")
        both = replace(last, body=encoded(_joined(old, new)), entries=(*last.entries, *patch.entries))
        self._layers[self._at[patch.name]][patch.name] = both
        return self

    def _do(self, name: str, kind: SlotKind, op: str, *, operand: Any, expected: int | None = None) -> Changes:
        return self.join(SlotPatch(name=name, body=encoded(operand), kind=kind, op=op, expected=expected))


def encoded(value: Any) -> bytes:
    """A value as a slot holds it: plain, or a msgspec or pydantic object. InvalidInput for what no JSON can say."""
    if isinstance(value, msgspec.Struct):
        value = msgspec.to_builtins(value)
    elif hasattr(value, "model_dump"):
        value = value.model_dump(mode="json")
    body = json.from_plain(value)
    kinds.check_integers(json.decode_trusted(body))
    return body


def shown(patch: SlotPatch, value: Any) -> Any:
    """What a slot will hold after a patch, as far as that can be said without the store."""
    if patch.op == "" or patch.body is None or patch.kind in ("window", "doc"):
        return value if patch.body is None or patch.kind in ("window", "doc") else json.decode_trusted(patch.body)
    old = None if value is None else json.encode(value)
    return json.decode_trusted(kinds.applied(patch.kind, patch.op, old=old, operand=patch.body))


def _joined(old: Any, new: Any) -> Any:
    if old is None:  # the entries of a window
        return None
    return {**old, **new} if isinstance(old, dict) else old + new


def _schema(given: Any) -> str:
    return given if isinstance(given, str) else schemas.of(given)
