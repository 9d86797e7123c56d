"""A desk as a state function sees it: plain values, and a note of what was looked at.

What the function changed becomes patches that expect the versions it saw; what it only read is expected as well, so that
no decision stands on a value that is no longer there. What it neither looked at nor replaced is as it was, and is not looked
through for changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from stateroom.session.changes import encoded
from stateroom.session.model import Slot, SlotPatch
from stateroom.wire import json


class Working(dict[str, Any]):
    """Values by slot name. Change them, nested ones too; `del` removes a slot."""

    def __init__(self, slots: Iterable[Slot]) -> None:
        self._slots = {slot.name: slot for slot in slots if slot.body is not None}
        self._looked: set[str] = set()
        self.walked = False
        super().__init__({slot.name: json.decode_trusted(slot.body) for slot in self._slots.values() if slot.body is not None})
        self._given = dict(super().items())

    def __getitem__(self, name: str) -> Any:
        self._looked.add(name)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self._looked.add(str(name))
        return super().__contains__(name)

    def __iter__(self) -> Iterator[str]:
        self.walked = True
        return super().__iter__()

    def __len__(self) -> int:
        self.walked = True
        return super().__len__()

    def __eq__(self, other: object) -> bool:
        self.walked = True
        return super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None

    def __delitem__(self, name: str) -> None:
        self._looked.add(name)
        super().__delitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self._looked.add(name)
        return super().get(name, default)

    def setdefault(self, name: str, default: Any = None) -> Any:
        self._looked.add(name)
        return super().setdefault(name, default)

    def pop(self, name: str, *default: Any) -> Any:
        self._looked.add(name)
        return super().pop(name, *default)

    def keys(self) -> Any:
        self.walked = True
        return super().keys()

    def values(self) -> Any:
        self.walked = True
        return super().values()

    def items(self) -> Any:
        self.walked = True
        return super().items()

    def copy(self) -> dict[str, Any]:
        return dict(self.items())

    def popitem(self) -> tuple[str, Any]:
        self.walked = True
        return super().popitem()

    def __reversed__(self) -> Iterator[str]:
        self.walked = True
        return super().__reversed__()

    def __or__(self, other: Any) -> Any:
        return self.copy() | other

    def __ror__(self, other: Any) -> Any:
        return other | self.copy()

    def patches(self) -> list[SlotPatch]:
        """What was changed, each slot guarded by the version it was seen at."""
        now, changed = dict(super().items()), list[SlotPatch]()
        for name in sorted(self._slots.keys() | now.keys(), key=str):
            slot = self._slots.get(name)
            if self._untouched(name, now):
                continue
            body = encoded(now[name]) if name in now else None
            if slot is not None and body is not None and _spelled(body) == _spelled(slot.body or b""):
                continue
            version, kind = (slot.version, slot.kind) if slot is not None else (0, "value")
            changed.append(SlotPatch(name=name, body=body, expected=version, kind=kind))
        return changed

    def _untouched(self, name: str, now: dict[str, Any]) -> bool:
        """It is the value that was given, and nobody has had it in hands."""
        looked = self.walked or name in self._looked
        return not looked and name in now and name in self._given and now[name] is self._given[name]

    @property
    def versions(self) -> dict[str, int]:
        """The slots that there were, with their versions."""
        return {name: slot.version for name, slot in self._slots.items()}

    def seen(self) -> tuple[tuple[str, int], ...]:
        """The versions of what was looked at; 0 for a slot that was looked for in vain."""
        names = self._slots.keys() if self.walked else set()
        looked = {name for name in self._looked if isinstance(name, str)}
        return tuple((name, slot.version if (slot := self._slots.get(name)) else 0) for name in sorted(names | looked))


def _spelled(body: bytes) -> bytes:
    """One spelling of a value, to compare it."""
    return json.encode(json.decode_trusted(body))
