"""Every promise of the session room holds for ephemeral sessions too, on every store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from stateroom.backends.base import Backend
from stateroom.backends.ram.backend import RamBackend
from stateroom.conformance.desk_versions import DeskVersionPromises
from stateroom.conformance.docs import DocPromises
from stateroom.conformance.expiry import ExpiryPromises
from stateroom.conformance.going_back import GoingBackPromises
from stateroom.conformance.holding import HoldPromises
from stateroom.conformance.register import RegisterPromises
from stateroom.conformance.session import SessionPromises
from stateroom.conformance.slots import SlotPromises
from tests.conformance.ephemeral import ephemeral
from tests.conformance.onplaces import PlaceConformance
from tests.conformance.test_ram import TestRam as OnRam
from tests.services.places import Place


class Desks(
    SessionPromises, RegisterPromises, SlotPromises, DocPromises, DeskVersionPromises, HoldPromises, ExpiryPromises,
    GoingBackPromises,
):  # fmt: skip
    """The part of the suite that is about desks."""


class OnPlaces(Desks):
    holds = PlaceConformance.holds  # type: ignore[assignment]

    def rows(self, place: Place) -> Mapping[str, int]:  # type: ignore[override]
        """A table and what lies beside it count as one; that there is a place beside is nobody's row."""
        found = Counter[str]()
        for name, count in place.rows().items():
            if name not in ("ephemeral_session", "ephemeral_mark", "ephemeral_redo", "meta"):
                found[name.removeprefix("ephemeral_")] += count
        return found

    async def open_handle(self, place: Place) -> Backend:  # type: ignore[override]
        place.clock = self.clock
        return ephemeral(await place.backend())


class TestEphemeralRam(Desks):
    shared = None
    rows, holds = OnRam.rows, OnRam.holds

    async def open_handle(self, place: Path) -> RamBackend:
        return ephemeral(await OnRam.open_handle(self, place))  # type: ignore[arg-type, return-value]


class TestEphemeralSqlite(OnPlaces):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        return Place("sqlite", tmp_path)


class TestEphemeralPostgres(OnPlaces):
    @pytest.fixture
    def place(self, postgres_store: str) -> Place:
        return Place("postgres", postgres_store)
