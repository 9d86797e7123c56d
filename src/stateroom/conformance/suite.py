"""What every part of the suite stands on: handles on one place, and a clock that the tests move."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import anyio.to_thread
import pytest

from stateroom.backends.base import Backend
from stateroom.clock import FrozenClock
from stateroom.conformance.kit import Actor

T = TypeVar("T")


class Suite:
    """Say how handles are opened and what the store holds; the promises are in the parts.

    Every test gets a `place` of its own (a fresh directory). Handles opened on the same place share a store; they must
    measure time with `self.clock`.
    """

    pytestmark = pytest.mark.anyio
    clock: FrozenClock

    async def open_handle(self, place: Path) -> Backend:
        """A handle on the store at `place`, made if it is not there."""
        raise NotImplementedError

    async def close(self, handle: Backend) -> None:
        await handle.close()

    def rows(self, place: Path) -> Mapping[str, int]:
        """Every table (directory, prefix) that the store at `place` has, and how many rows lie in it."""
        raise NotImplementedError

    async def lose(self, place: Path) -> None:
        """What may be lost of ephemeral sessions is lost, as in a power cut. No handle is open meanwhile."""
        raise NotImplementedError

    def holds(self, place: Path, words: bytes) -> bool:
        """Whether these words lie anywhere in the store. All handles are closed when this is asked."""
        return any(words in file.read_bytes() for file in place.rglob("*") if file.is_file())

    # ── for the parts ───────────────────────────────────────────────────────────────────────────────────────────────

    def setup_method(self) -> None:
        self.clock = FrozenClock()

    @pytest.fixture
    def anyio_backend(self) -> str:
        return "asyncio"

    @pytest.fixture
    def place(self, tmp_path: Path) -> Path:
        return tmp_path

    @pytest.fixture
    async def store(self, place: Path) -> AsyncIterator[Backend]:
        async with self.handle(place) as handle:
            yield handle

    @pytest.fixture
    async def alice(self, store: Backend) -> Actor:
        """The one that most tests act as."""
        return Actor(store)

    @pytest.fixture
    async def beside(self, store: Backend, place: Path) -> AsyncIterator[Actor]:
        """Alice again, through a second handle on the same store."""
        async with self.handle(place) as handle:
            yield Actor(handle)

    @asynccontextmanager
    async def handle(self, place: Path) -> AsyncIterator[Backend]:
        handle = await self.open_handle(place)
        try:
            yield handle
        finally:
            await self.close(handle)

    async def in_threads(self, place: Path, act: Callable[[Actor], Awaitable[T]], count: int = 3) -> list[T]:
        """`act` at once from so many threads, each with its own event loop and its own handle."""

        async def alone() -> T:
            async with self.handle(place) as handle:
                return await act(Actor(handle))

        threads = (anyio.to_thread.run_sync(lambda: asyncio.run(alone())) for _ in range(count))
        return list(await asyncio.gather(*threads))
