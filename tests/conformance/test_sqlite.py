"""The sqlite backend keeps every promise."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.onplaces import PlaceConformance
from tests.services.places import Place


class TestSqlite(PlaceConformance):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        return Place("sqlite", tmp_path)
