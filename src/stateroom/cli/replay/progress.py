"""Shows how far a replay has come: a line rewritten on a terminal, else a line now and then."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

_TERMINAL_S, _PLAIN_S = 0.2, 5.0


@asynccontextmanager
async def shown(line: Callable[[], str]) -> AsyncIterator[None]:
    """Show `line()` on stderr while the body runs."""
    task = asyncio.create_task(_show(line))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if sys.stderr.isatty():
            print(f"\r\x1b[K{line()}", file=sys.stderr)


async def _show(line: Callable[[], str]) -> None:
    terminal = sys.stderr.isatty()
    while True:
        await asyncio.sleep(_TERMINAL_S if terminal else _PLAIN_S)
        if terminal:
            print(f"\r\x1b[K{line()}", end="", file=sys.stderr, flush=True)
        else:
            print(line(), file=sys.stderr, flush=True)
