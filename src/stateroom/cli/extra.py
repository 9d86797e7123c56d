"""Modules that need an optional extra."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable
from typing import Any

from stateroom.errors import StateroomError


def load(module: str) -> Any:
    """A module of the `server` extra, or a clear word on how to get it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("stateroom"):
            raise
        raise StateroomError(f"This needs the package {error.name!r}, which is not installed.", code="extra_missing") from error


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The quick event loop where it is installed; None: Python's own."""
    try:
        made: Callable[[], asyncio.AbstractEventLoop] = importlib.import_module("uvloop").new_event_loop
    except ImportError:
        return None
    return made
