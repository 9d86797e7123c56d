"""Faults of peers are not to be found on any kind of store."""

from __future__ import annotations

import pytest

from tests.services.places import EVERY, Kind


@pytest.fixture(params=EVERY)
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param  # type: ignore[no-any-return]
