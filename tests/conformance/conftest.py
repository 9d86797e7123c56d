"""A class that says `SHARE = n` runs every n-th of its tests, those of a promise `ALWAYS`, and all of them in the campaign."""

from __future__ import annotations

import zlib

import pytest

from tests.crash.scale import WHOLE


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left = [item for item in items if not WHOLE and zlib.crc32(item.name.encode()) % share_of(item)]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in set(left)]


def share_of(item: pytest.Item) -> int:
    chosen = getattr(item, "cls", None)
    return 1 if chosen is None or getattr(chosen, "ALWAYS", "\0") in item.name else getattr(chosen, "SHARE", 1)
