"""The postgres backend keeps every promise: on the newest version and the oldest, directly and through a pool."""

from __future__ import annotations

import pytest

from tests.conformance.onplaces import PlaceConformance
from tests.services.pgbouncer import Pooler
from tests.services.places import Place, pooled


class TestPostgres(PlaceConformance):
    @pytest.fixture
    def place(self, postgres_store: str) -> Place:
        return Place("postgres", postgres_store)


class TestOldest(PlaceConformance):
    SHARE = 3

    @pytest.fixture
    def place(self, oldest_store: str) -> Place:
        return Place("postgres", oldest_store)


class TestPooled(PlaceConformance):
    """In transaction mode: nothing may be kept on a connection."""

    SHARE = 3

    @pytest.fixture
    def place(self, pooler: Pooler, postgres_store: str) -> Place:
        return Place("pooled", postgres_store, by=pooled(pooler, postgres_store))
