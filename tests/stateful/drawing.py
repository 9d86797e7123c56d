"""What the machine draws from, and how answers are made comparable."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import msgspec
from hypothesis import strategies as st

from stateroom.errors import Known, StateroomError
from stateroom.principal import operator, own
from stateroom.session.model import Durability

EVERYBODY = operator("acme")
ALICE = own("acme", "alice")
AGENTS = ("clerk", "poet")

NOBODYS = 99
which = st.sampled_from([0] * 8 + [1, 1, 1, 2, 2, 3, 4, NOBODYS])  # the newest, the one before …, one that is not there
scopes = st.sampled_from([ALICE] * 12 + [EVERYBODY, EVERYBODY, own("acme", "bob"), operator("other")])
durabilities: st.SearchStrategy[Durability] = st.sampled_from(["durable", "ephemeral"])
few = st.integers(0, 2)
hold = st.sampled_from([False] * 9 + [True])  # keep the write for the next one's batch
policies = st.sampled_from(["enqueue", "enqueue", "reject", "merge", "merge", "latest", "interrupt", "parallel"])
deadlines = st.sampled_from([0, 0, 1_000, 40_000])  # ms from now; 0: none
maybe_small = st.sampled_from([None, None, None, 0, 1, 2, 4])
fences = st.sampled_from([0] * 10 + [1, -1])  # away from the right one
ends = st.sampled_from(["completed"] * 3 + ["incomplete", "failed", "cancelled", "expired", "in_progress"])


def plain(value: Any) -> Any:
    """Something that can be compared and shown: records with their kinds, without the queue's private numbers."""
    if isinstance(value, StateroomError):
        refs = (value.ref, value.fingerprint) if isinstance(value, Known) else ()
        return type(value).__name__, value.reason, plain(value.facts), refs
    if isinstance(value, msgspec.Struct):
        fields = {name: plain(getattr(value, name)) for name in value.__struct_fields__ if name != "queue_no"}
        return type(value).__name__, fields
    if isinstance(value, (list, tuple)):
        return [plain(element) for element in value]
    if isinstance(value, dict):
        return {key: plain(element) for key, element in value.items()}
    return value


async def outcome(act: Awaitable[Any]) -> Any:
    try:
        return plain(await act)
    except StateroomError as error:
        return plain(error)


async def unordered(act: Awaitable[list[Any]]) -> list[Any]:
    """A list whose order nobody promised."""
    return sorted(await act, key=repr)
