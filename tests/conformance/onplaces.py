"""The suite over a place of ours."""

from __future__ import annotations

from collections.abc import Mapping

from stateroom.backends.base import Backend
from stateroom.conformance import BackendConformance
from tests.services.places import Place


class PlaceConformance(BackendConformance):
    """Classes say which `place` it is."""

    async def open_handle(self, place: Place) -> Backend:
        place.clock = self.clock
        return await place.backend()

    def rows(self, place: Place) -> Mapping[str, int]:
        return place.rows()

    def holds(self, place: Place, words: bytes) -> bool:
        return place.holds(words)
