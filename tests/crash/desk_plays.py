"""What children do with desks until they are killed."""

from __future__ import annotations

import asyncio
from pathlib import Path

from stateroom import ids, limits, stack
from stateroom.errors import Gone
from stateroom.principal import LOCAL
from stateroom.session.model import OpenSession, Session
from stateroom.session.service import patches_of
from stateroom.stack import Stateroom
from tests.crash.where import place_of, url_of

STATE = {f"slot {number:02}": number for number in range(2 * limits.ARCHIVE_ROWS + 3)}
TTL_MS = 1500


async def room_of(folder: Path) -> Stateroom:
    """The sweeps are the play's own: nobody else is at it."""
    limits.EXPIRE_RETRY_MS = 1  # type: ignore[misc]
    backend = await stack.open_backend(url_of(place_of(folder)))
    return Stateroom(backend, {}, owner=backend.owner, default_agent="", on_expiry=f"archive:{folder / 'archive'}")


def desk_in(folder: Path) -> bytes:
    return bytes.fromhex((folder / "desk").read_text())


async def lays(folder: Path) -> None:
    """A desk with more on it than one page, two versions and a checkpoint."""
    room = await room_of(folder)
    desk = room.sessions.new_id()
    (folder / "desk").write_text(desk.hex())
    await room.sessions.open_as(LOCAL, OpenSession(id=desk, owner="local", subject="local", ttl_ms=TTL_MS), slots=STATE)
    await room.sessions.checkpoint(LOCAL, desk, "first")
    await room.sessions.patch(LOCAL, desk, patches_of({"slot 00": "changed"}))
    await room.close()


async def expires(folder: Path) -> None:
    """Sweep until it is put away."""
    room, desk = await room_of(folder), desk_in(folder)
    while (await head_of(room, desk)).status != "archived":
        await room.expiry.sweep()
        await asyncio.sleep(0.02)
    await room.close()


async def comes_back(folder: Path) -> None:
    room = await room_of(folder)
    await room.archives.restore(LOCAL, desk_in(folder))
    await room.close()


async def head_of(room: Stateroom, desk: bytes) -> Session:
    return await room.backend.head(LOCAL, desk)


async def unreadable(room: Stateroom, desk: bytes) -> bool:
    try:
        await room.sessions.state(LOCAL, desk)
    except Gone:
        return True
    return False


async def goes_back(folder: Path) -> None:
    """A conversation and its desk, a checkpoint of both, more of both, and back."""
    room = await room_of(folder)
    conversation = (await room.conversations.create(LOCAL)).id
    desk = ids.new(ids.home(conversation), 1)
    write = OpenSession(id=desk, owner="local", subject="local", conversation=conversation, agent="a")
    await room.sessions.open_as(LOCAL, write, slots={"n": 1})
    for number in (1, 2):
        await room.conversations.append(LOCAL, conversation, [b'{"type":"message","role":"user","content":"hi"}'])
        if number == 1:
            await room.sessions.checkpoint(LOCAL, desk, "one")
        await room.sessions.patch(LOCAL, desk, patches_of({"n": number}))
    await room.rollbacks.to(LOCAL, desk, "one")
    await room.close()


async def talked(room: Stateroom) -> tuple[bytes, bytes]:
    """The conversation and the desk."""
    (desk,) = await room.sessions.recent(LOCAL)
    return desk.conversation, desk.id
