"""Who shares a store may do so through a pool too."""

from __future__ import annotations

import pytest

from tests.services.places import POOLED, Kind


@pytest.fixture(params=POOLED)
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param  # type: ignore[no-any-return]
