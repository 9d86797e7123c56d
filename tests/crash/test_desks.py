"""A worker is killed while desks end and come back: nothing is purged that is not whole in the archive, and nothing is half
there (P1, P23)."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from stateroom.conversation.model import ItemQuery
from stateroom.flows.failpoint import NAMES
from stateroom.principal import LOCAL
from tests.crash import desk_plays as plays
from tests.crash.where import on_postgres
from tests.crash.zygote import Zygote
from tests.services.places import DURABLE

pytestmark = [pytest.mark.anyio, pytest.mark.crash]
AWAY = [name for name in NAMES if name.startswith("expire.")]
CHANGED = {**plays.STATE, "slot 00": "changed"}


@pytest.fixture(params=DURABLE)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """What the plays of a test are about."""
    if request.param == "sqlite":
        return tmp_path
    return on_postgres(tmp_path / "plays", request.getfixturevalue("postgres_store"))


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plays have none, in this process either: afterwards it is as it was."""
    monkeypatch.setattr(plays.limits, "EXPIRE_RETRY_MS", plays.limits.EXPIRE_RETRY_MS)


async def lives(zygote: Zygote, folder: Path, play: object, failpoint: str = "") -> bool:
    """Whether the child lived to its end."""
    environ = {"STATEROOM_FAILPOINT": failpoint} if failpoint else {}
    child = await zygote.fork(play, folder, environ=environ)  # type: ignore[arg-type]
    status = await child.ended()
    assert status in (0, -signal.SIGKILL), child.last_words()
    return status == 0


async def whole(folder: Path) -> None:
    """The desk is as it was, its past and its checkpoint too."""
    room, desk = await plays.room_of(folder), plays.desk_in(folder)
    plays.limits.EXPIRE_RETRY_MS = 60_000  # type: ignore[misc]
    assert await room.sessions.state(LOCAL, desk) == CHANGED
    assert next(slot.body for slot in await room.sessions.slots_at(LOCAL, desk, 1)) == b"0"
    assert [mark.name for mark in await room.sessions.checkpoints(LOCAL, desk)] == ["first"]
    await room.close()


@pytest.mark.parametrize("failpoint", AWAY)
async def test_P23_killed_while_a_desk_ends_it_is_archived_whole_before_it_is_purged(
    zygote: Zygote, folder: Path, failpoint: str
) -> None:
    assert await lives(zygote, folder, plays.lays)
    assert not await lives(zygote, folder, plays.expires, f"{failpoint}:kill")
    room, desk = await plays.room_of(folder), plays.desk_in(folder)
    assert await plays.unreadable(room, desk)
    await room.close()
    cold = folder / "archive"
    if failpoint == "expire.archived":  # and as if it had died while it wrote
        (named,) = cold.iterdir()
        named.with_name(f".{named.name}.1.2").write_text("half")
    assert await lives(zygote, folder, plays.expires)
    room = await plays.room_of(folder)
    assert [file.name for file in cold.iterdir()] == [(await plays.head_of(room, desk)).archive], "nothing lies there unnamed"
    await room.close()
    assert await lives(zygote, folder, plays.comes_back)
    await whole(folder)


async def test_P23_killed_while_a_desk_comes_back_nobody_sees_half_of_it_and_the_next_try_brings_it(
    zygote: Zygote, folder: Path
) -> None:
    assert await lives(zygote, folder, plays.lays)
    assert await lives(zygote, folder, plays.expires)
    for nth in (1, 2):
        assert not await lives(zygote, folder, plays.comes_back, f"restore.begun:kill:{nth}")
        room, desk = await plays.room_of(folder), plays.desk_in(folder)
        assert await plays.unreadable(room, desk)
        await room.close()
    assert await lives(zygote, folder, plays.comes_back)
    await whole(folder)


async def test_P18_killed_after_a_rollback_state_and_conversation_went_back_together(zygote: Zygote, folder: Path) -> None:
    assert not await lives(zygote, folder, plays.goes_back, "rollback.landed:kill")
    room = await plays.room_of(folder)
    conversation, desk = await plays.talked(room)
    assert await room.sessions.state(LOCAL, desk) == {"n": 1}
    assert len(await room.conversations.items(LOCAL, ItemQuery(branch=conversation, limit=100))) == 1
    await room.close()
