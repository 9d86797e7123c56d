"""The promises of the stores as a test suite: a backend proves itself in ten lines.

    class TestMyBackend(BackendConformance):
        async def open_handle(self, place: Path) -> Backend:
            return await MyBackend.open(place / "state", clock=self.clock)

        def rows(self, place: Path) -> Mapping[str, int]:
            ...  # every table and how many rows it has

Needs pytest and anyio's pytest plugin (it comes with anyio). Test names carry the store's numbered promises (C1, S1, R1,
B1 …) and the product's (P1 …) where they map.
"""

from __future__ import annotations

import pytest

for _part in ("conversation", "kit", "purge", "run", "session", "store", "suite", "turn"):
    pytest.register_assert_rewrite(f"{__name__}.{_part}")

from stateroom.conformance.conversation import ConversationPromises  # noqa: E402
from stateroom.conformance.purge import PurgePromises  # noqa: E402
from stateroom.conformance.run import RunPromises  # noqa: E402
from stateroom.conformance.session import SessionPromises  # noqa: E402
from stateroom.conformance.store import StorePromises  # noqa: E402
from stateroom.conformance.turn import TurnPromises  # noqa: E402

__all__ = ["BackendConformance"]


class BackendConformance(ConversationPromises, PurgePromises, SessionPromises, TurnPromises, RunPromises, StorePromises):
    """Everything that a backend promises, on two handles and in threads."""
