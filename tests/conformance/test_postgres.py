"""The postgres backend keeps every promise."""

from __future__ import annotations

import pytest

from tests.conformance.onplaces import PlaceConformance
from tests.services.places import Place


class TestPostgres(PlaceConformance):
    @pytest.fixture
    def place(self, postgres_store: str) -> Place:
        return Place("postgres", postgres_store)
