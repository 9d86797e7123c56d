"""A full disk refuses new work loudly, loses nothing that was acknowledged, still reads, and works again with space (P19)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2 as httpx
import pytest

from stateroom.cli.replay.chaos import Child
from stateroom.cli.replay.compare import compare
from stateroom.errors import StorageFull
from stateroom.face import Reply, Room
from stateroom.principal import LOCAL
from tests.crash import actor, loopdisk, writer
from tests.crash.checks import Acked, broken_invariants, damage, record_of, wrong_with
from tests.crash.invariants import effects_of, violations
from tests.crash.recorded import ITEMS, TAPE
from tests.crash.world import World

pytestmark = [pytest.mark.anyio, pytest.mark.crash]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("FULL DISK NOT TESTED: a small disk can only be mounted by root")
    with loopdisk.small_disk(tmp_path / "disk", mib=8) as at:
        yield at


def fill(disk: Path, *, spare_bytes: int) -> Path:
    """Take every free byte but these."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        for piece in (1 << 20, 4096, 1):
            try:
                while True:
                    file.write(bytes(piece))
            except OSError:
                continue
    os.truncate(filler, filler.stat().st_size - spare_bytes)
    return filler


async def take(room: Room, conversation: str, key: str) -> Reply | StorageFull | None:
    """One turn: its answer, a refusal, or None: taken on, and not yet finished for want of space."""
    try:
        return await asyncio.wait_for(room.turn(f"turn {key}", conversation=conversation, key=key), 1.0)
    except StorageFull as full:
        return full
    except TimeoutError:
        return None


@pytest.mark.parametrize("spare_pages", [0, 10, 20, 40])  # so that different batches meet the end of the disk
async def test_P19_P1_a_full_disk_refuses_and_loses_nothing(disk: Path, spare_pages: int, figure: Callable[[str], None]) -> None:
    room = await writer.opened(disk / "store")
    conversation = (await room.create(key="c")).id
    acknowledged = [await room.turn(f"turn k:{number}", conversation=conversation, key=f"k:{number}") for number in range(20)]
    filler = fill(disk, spare_bytes=4096 * spare_pages)

    refused, unfinished, number = 0, list[str](), 20
    while not refused:  # what the log's file has room for still goes in
        key = f"k:{number}"
        outcome = await take(room, conversation, key)
        refused += isinstance(outcome, StorageFull)
        unfinished += [key] if outcome is None else []
        acknowledged += [outcome] if isinstance(outcome, Reply) else []
        number += 1
        assert number < 5_000
    with pytest.raises(StorageFull):
        await room.create(items=[{"type": "message", "role": "user", "content": "x" * 100_000}])

    lines = [Acked(f"k:{place}", conversation, reply.response) for place, reply in enumerate(acknowledged)]
    assert wrong_with(lines, await record_of(room, [conversation])) == [], "while it is full, reads answer and nothing is lost"

    filler.unlink()
    elsewhere = await room.turn("turn e:0", key="e:0")
    assert elsewhere.status == "completed", "with space it works again, without a restart"
    await room.close()

    room = await writer.opened(disk / "store")
    for key in unfinished:  # taken on and not finished for want of space: finished now
        reply = await room.turn(f"turn {key}", conversation=conversation, key=key)
        assert reply.status == "completed"
        lines.append(Acked(key, conversation, reply.response))
    lines.append(Acked("e:0", elsewhere.conversation, elsewhere.response))
    assert wrong_with(lines, await record_of(room, [conversation, elsewhere.conversation])) == []
    assert await broken_invariants(room.stack.backend) == []
    await room.close()
    assert damage(disk / "store") == []
    figure(f"full disk: {len(lines)} turns acknowledged around it, {len(unfinished)} of them finished later, 0 lost")


class Filling(World):
    """A world in which the disk of the store is full after something was done in it."""

    def __init__(self, file: Path, disk: Path) -> None:
        super().__init__(file)
        self._disk, self.filler = disk, None

    def act(self, kind: str, key: str) -> None:
        super().act(kind, key)
        if self.filler is None:
            self.filler = fill(self._disk, spare_bytes=0)


@pytest.mark.parametrize("kinds", ["once", "pure+once", "idempotent+transactional+approved"])
@pytest.mark.parametrize("crash", [False, True], ids=["goes on", "crashes"])
async def test_P19_P15_a_disk_that_fills_up_during_a_step(disk: Path, tmp_path: Path, kinds: str, crash: bool) -> None:
    """No effect begins that could not be announced, and one that happened is recorded as soon as there is room, or asked
    about when its worker did not live to see it."""
    store, world = disk / "store", Filling(tmp_path / "world", disk)
    room = await actor.opened(store, world)
    conversation = await actor.begin(room, "c")
    run = (await actor.take(room, f"{kinds} t", conversation=conversation, key="k")).run.id
    while world.filler is None:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.3)
    assert (await room.backend.run(LOCAL, run)).status == "in_progress"
    assert sum(world.effects().values()) == 1, "what comes next waits until it can be announced"
    if crash:
        await room.turns.workshop.close(0)
        await room.close(grace_s=0)
        world.filler.unlink()
        room = await actor.opened(store, world)
    else:
        world.filler.unlink()
    answered = await asyncio.wait_for(actor.ended(room, world, run), 20)
    assert answered.run.status == "completed"
    asked = [action.kind for action in await room.answers.all(LOCAL, run)]
    assert ("reconcile" in asked) == (crash and kinds == "once")
    secret = room.backend.secret
    await room.close()
    assert violations(store) == []
    found = effects_of(store, world, secret=secret)
    assert found.faults == []
    assert {kind: found.steps[kind] for kind in kinds.split("+")} == dict.fromkeys(kinds.split("+"), 1)


async def test_P19_a_server_on_a_full_disk_says_507_and_goes_on(disk: Path) -> None:
    child = Child(disk, TAPE)
    await child.start()
    try:
        await child.ready()
        async with httpx.AsyncClient(base_url=child.url, timeout=2.0) as client:
            conversation = (await client.post("/v1/conversations", json={})).json()["id"]
            body = {"model": "tape", "metadata": {"tape": "one", "turn": "0"}, "conversation": conversation, "input": ITEMS[:1]}
            first = await client.post("/v1/responses", json=body, headers={"Idempotency-Key": "first"})
            assert first.json()["status"] == "completed"

            filler = fill(disk, spare_bytes=0)
            big = {"items": [{"type": "message", "role": "user", "content": "x" * 100_000}]}
            refused = await client.post("/v1/conversations", json=big)
            assert refused.status_code == 507
            assert refused.json()["error"]["code"] == "storage_full"
            assert (await client.get("/readyz")).status_code in (200, 503, 507)  # small writes may still find room
            assert (await client.get("/healthz")).status_code == 200
            kept = await client.get(f"/v1/conversations/{conversation}/export")
            assert compare("full", ITEMS, kept.json()["items"]).good
            replayed = await client.post("/v1/responses", json=body, headers={"Idempotency-Key": "first"})
            assert replayed.json()["id"] == first.json()["id"], "what is known is answered without a byte of space"

            filler.unlink()
            assert (await client.post("/v1/conversations", json=big)).status_code == 200
            assert (await client.get("/readyz")).status_code == 200
            again = await client.post("/v1/responses", json=body, headers={"Idempotency-Key": "second"})
            assert again.json()["status"] == "completed"
    finally:
        await child.stop()
    assert damage(disk / "store") == []
