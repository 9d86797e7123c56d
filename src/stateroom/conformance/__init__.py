"""The promises of the stores as a test suite: a backend proves itself in ten lines.

    class TestMyBackend(BackendConformance):
        async def open_handle(self, place: Path) -> Backend:
            return await MyBackend.open(place / "state", clock=self.clock)

        def rows(self, place: Path) -> Mapping[str, int]:
            ...  # every table and how many rows it has

        async def lose(self, place: Path) -> None:
            ...  # what may be lost of ephemeral sessions is lost, as in a power cut

Needs pytest and anyio's pytest plugin (it comes with anyio). Test names carry the store's numbered promises (C1, S1, R1,
B1 …) and the product's (P1 …) where they map.
"""

from __future__ import annotations

import pytest

_PARTS = (
    "actions", "conversation", "desk_versions", "docs", "double_text", "ephemeral", "expiry", "going_back", "holding", "kit",
    "lifetimes", "purge", "register", "run", "session", "slots", "steps", "store", "suite", "turn",
)  # fmt: skip
for _part in _PARTS:
    pytest.register_assert_rewrite(f"{__name__}.{_part}")

from stateroom.conformance.actions import ActionPromises  # noqa: E402
from stateroom.conformance.conversation import ConversationPromises  # noqa: E402
from stateroom.conformance.desk_versions import DeskVersionPromises  # noqa: E402
from stateroom.conformance.docs import DocPromises  # noqa: E402
from stateroom.conformance.double_text import DoubleTextPromises  # noqa: E402
from stateroom.conformance.ephemeral import EphemeralPromises  # noqa: E402
from stateroom.conformance.expiry import ExpiryPromises  # noqa: E402
from stateroom.conformance.going_back import GoingBackPromises  # noqa: E402
from stateroom.conformance.holding import HoldPromises  # noqa: E402
from stateroom.conformance.lifetimes import LifetimePromises  # noqa: E402
from stateroom.conformance.purge import PurgePromises  # noqa: E402
from stateroom.conformance.register import RegisterPromises  # noqa: E402
from stateroom.conformance.run import RunPromises  # noqa: E402
from stateroom.conformance.session import SessionPromises  # noqa: E402
from stateroom.conformance.slots import SlotPromises  # noqa: E402
from stateroom.conformance.steps import StepPromises  # noqa: E402
from stateroom.conformance.store import StorePromises  # noqa: E402
from stateroom.conformance.turn import TurnPromises  # noqa: E402

__all__ = ["BackendConformance"]


class BackendConformance(
    ConversationPromises,
    PurgePromises,
    SessionPromises,
    RegisterPromises,
    SlotPromises,
    DocPromises,
    DeskVersionPromises,
    HoldPromises,
    ExpiryPromises,
    EphemeralPromises,
    GoingBackPromises,
    TurnPromises,
    DoubleTextPromises,
    RunPromises,
    StepPromises,
    ActionPromises,
    LifetimePromises,
    StorePromises,
):
    """Everything that a backend promises, on two handles and in threads."""
