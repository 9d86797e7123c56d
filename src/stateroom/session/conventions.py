"""Slots that most agents have, with shipped schemas: what is to be done, in which steps, and what is raised.

A slot keeps one when its `schema` names it. Fields that these do not know are kept: they ask for what others build on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

StepStatus = Literal["pending", "in_progress", "completed", "failed", "skipped"]


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """Slot `task`: what this desk is for."""

    goal: str
    status: Literal["open", "in_progress", "completed", "failed", "cancelled"] = "open"
    constraints: dict[str, object] = {}


class PlanStep(msgspec.Struct, frozen=True, kw_only=True):
    title: str
    status: StepStatus = "pending"
    note: str = ""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Slot `plan`: steps in order, each with its status."""

    steps: list[PlanStep]


class Flag(msgspec.Struct, frozen=True, kw_only=True):
    raised: bool = True
    reason: str = ""


Flags = dict[str, Flag]  # slot `flags`, of kind map: by name what somebody has to look at

SHIPPED: Mapping[str, object] = {"stateroom/task/1": Task, "stateroom/plan/1": Plan, "stateroom/flags/1": Flags}
