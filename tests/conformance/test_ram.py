"""The ram backend keeps every promise."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from stateroom.backends.ram.backend import RamBackend
from stateroom.backends.ram.store import RamStore
from stateroom.conformance import BackendConformance


class TestRam(BackendConformance):
    shared: RamStore | None = None

    async def open_handle(self, place: Path) -> RamBackend:
        self.shared = self.shared or RamStore(self.clock)
        return RamBackend(self.shared)

    def rows(self, place: Path) -> Mapping[str, int]:
        return {name: len(table) for name, table in self.shared.tables.by_name().items()}

    async def lose(self, place: Path) -> None:
        assert self.shared is not None
        self.shared.lose()

    def holds(self, place: Path, words: bytes) -> bool:
        tables = self.shared.tables.by_name().values()
        return any(words.decode() in repr(row) for table in tables for row in table.pairs())
