"""Modules that need an optional extra."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable
from typing import Any

from stateroom.errors import StateroomError


def load(module: str) -> Any:
    """A module that needs an extra, or a clear word on how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        without_libpq = error.name is None  # how psycopg says that it found no libpq
        if not without_libpq and (not isinstance(error, ModuleNotFoundError) or str(error.name).startswith("stateroom")):
            raise
        extra = "postgres" if ".postgres" in module else "server"
        message = f"This needs the package {error.name or 'psycopg[binary]'!r}, which is not installed."
        raise StateroomError(message, code="extra_missing", extra=extra) from error


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The quick event loop where it is installed; None: Python's own."""
    try:
        made: Callable[[], asyncio.AbstractEventLoop] = importlib.import_module("uvloop").new_event_loop
    except ImportError:
        return None
    return made
