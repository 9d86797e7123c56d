"""The suite over a place of ours, and one of its tests by itself."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stateroom.backends.base import Backend
from stateroom.conformance import BackendConformance
from stateroom.conformance.kit import Actor
from tests.services.places import Place


class PlaceConformance(BackendConformance):
    """Classes say which `place` it is."""

    async def open_handle(self, place: Place) -> Backend:
        place.clock = self.clock
        return await place.backend()

    def rows(self, place: Place) -> Mapping[str, int]:
        return place.rows()

    async def lose(self, place: Place) -> None:
        place.lose()

    def holds(self, place: Place, words: bytes) -> bool:
        return place.holds(words)


async def run_test(suite: BackendConformance, name: str, place: Path | Place, *, parameter: Any) -> None:
    """One test of a suite, with its fixtures, and a value for its parameter if it has one."""
    test = getattr(suite, name)
    async with suite.handle(place) as first, suite.handle(place) as second:  # type: ignore[arg-type]
        fixtures = {"store": first, "alice": Actor(first), "beside": Actor(second), "place": place}
        await test(**{given: fixtures.get(given, parameter) for given in inspect.signature(test).parameters})
