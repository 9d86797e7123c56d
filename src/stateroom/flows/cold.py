"""Cold storage: where archives of desks lie. A folder here; an object store is another class with these three methods."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol

from stateroom.errors import Gone, InvalidInput, StorageFull, Unavailable

_CHUNK = 256 << 10
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,200}")


class ColdStore(Protocol):
    """Keeps what it is given, whole or not at all."""

    async def put(self, name: str, chunks: AsyncIterator[bytes]) -> str:
        """Keep it under a name, in place of what was there. Durable when this returns; returns where it lies."""
        ...

    def open(self, place: str) -> AsyncIterator[bytes]:
        """What was kept, piece by piece. Gone when it is not there."""
        ...

    async def remove(self, place: str) -> None:
        """It goes, and what was written of it; nothing happens when it is gone already."""
        ...


class FileCold:
    """A folder with one file per archive. A file appears whole: written beside, synced, renamed, and the folder synced."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def put(self, name: str, chunks: AsyncIterator[bytes]) -> str:
        target = self._path(name)
        half = target.with_name(f".{target.name}.{os.getpid()}.{id(chunks):x}")
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with half.open("wb") as file:
                half.chmod(0o600)
                async for chunk in chunks:
                    await asyncio.to_thread(file.write, chunk)
                await asyncio.to_thread(_synced, file.fileno(), file.flush)
            await asyncio.to_thread(self._appear, half, target)
        except OSError as error:
            raise _unavailable(error) from error
        finally:
            half.unlink(missing_ok=True)
        return name

    async def open(self, place: str) -> AsyncIterator[bytes]:
        try:
            with self._path(place).open("rb") as file:
                while chunk := await asyncio.to_thread(file.read, _CHUNK):
                    yield chunk
        except FileNotFoundError as missing:
            raise Gone("The archive is not where it was put.", code="archive_missing") from missing
        except OSError as error:
            raise _unavailable(error) from error

    async def remove(self, place: str) -> None:
        target = self._path(place)
        target.unlink(missing_ok=True)
        for half in target.parent.glob(f".{target.name}.*"):  # of who died while it wrote
            half.unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        if not _NAME.fullmatch(name) or name.startswith("."):
            raise InvalidInput(f"This is no name of an archive: {name[:80]!r}.", code="archive_name_invalid")
        return self._folder / name

    def _appear(self, half: Path, target: Path) -> None:
        half.replace(target)
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _synced(number: int, flush: object) -> None:
    assert callable(flush)
    flush()
    os.fsync(number)


def _unavailable(error: OSError) -> Unavailable:
    kind = StorageFull if error.errno in (28, 122) else Unavailable
    return kind(f"The archive could not be used: {error.strerror}.", code="archive_unavailable")
