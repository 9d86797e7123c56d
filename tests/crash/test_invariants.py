"""The queries and checkers of the campaigns go red: each is shown a store or a stream that was forged just so."""

from __future__ import annotations

import asyncio
import copy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from stateroom import ids
from stateroom.principal import LOCAL
from tests.crash import plays
from tests.crash.actor import begin, ended, opened, take
from tests.crash.invariants import INVARIANTS, effects_of, unsound, violations
from tests.crash.view import wrong_with_stream

pytestmark = pytest.mark.anyio

ENDED = "(select id from run where status = 'completed' limit 1)"
WAITS = "(select id from run where status = 'requires_action' limit 1)"
# What makes each of the invariants fail, in their order.
FORGERIES = (
    "delete from item where seq = 2",
    "update run set head = head + 1",
    f"update run set status = 'in_progress' where id = {ENDED}",
    "update action set status = 'closed' where status = 'pending'",
    "update run set lease_owner = '1-dead'",
    f"update branch set active_run = {ENDED}",
    "update branch set queued = queued + 1",
    f"delete from run_log where kind = 'end' and run = {ENDED}",
    f"update run_log set kind = 'end' where run = {WAITS}",
    f"update run set status = 'expired' where id = {WAITS}",
    "insert into inbox(tenant, home, run, n, id, kind, role, origin, trust, body)"
    f" select tenant, home, id, 0, id, '', '', '', 0, x'' from run where id = {ENDED}",
    "update run set finished_at = 0",
    f"insert into due(kind, at, tenant, id) select 'lease', 1, tenant, id from run where id = {ENDED}",
    "insert into due(kind, at, tenant, id) select 'action', 1, tenant, id from action where status = 'used'",
    "insert into due(kind, at, tenant, id) values ('lease', 1, 1, x'00')",
    "update run set key = 'same'",
    "delete from turn_key",
    f"update step set status = 'unknown' where run = {ENDED}",
    "update action set resolution = '{}' where status = 'used'",
    "update action set status = 'resolved' where status = 'used'",
)


async def sound(folder: Path) -> None:
    """A turn that completed and one that waits."""
    world = plays.world_of(folder)
    room = await opened(plays.store_of(folder), world)
    done = await take(room, "once+approved+transactional t0", conversation=await begin(room, "c"), key="k0")
    await ended(room, world, done.run.id)
    waits = await take(room, "approved t1", conversation=await begin(room, "d"), key="k1")
    while (await room.backend.run(LOCAL, waits.run.id)).status != "requires_action":
        await asyncio.sleep(0.01)
    await room.close()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store as it is when all is well."""
    folder = tmp_path_factory.mktemp("sound")
    asyncio.run(sound(folder))
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """Such a store of one's own."""
    return Path(shutil.copytree(made, tmp_path / "copy"))


def forge(folder: Path, statement: str) -> None:
    db = apsw.Connection(str(plays.store_of(folder) / "state.db"))
    db.execute(statement)
    assert db.changes() > 0, "it does change something"
    db.close()


def test_every_invariant_is_forged() -> None:
    assert len(FORGERIES) == len(INVARIANTS)


async def test_a_sound_store_violates_nothing(folder: Path) -> None:
    assert violations(plays.store_of(folder)) == []


@pytest.mark.parametrize("number", range(len(INVARIANTS)), ids=lambda number: f"{INVARIANTS[number].promise}-{number}")
async def test_P2_P4_P9_P10_P14_P15_P16_a_store_in_disorder_is_found_out(folder: Path, number: int) -> None:
    forge(folder, FORGERIES[number])
    assert any(INVARIANTS[number].says in found for found in violations(plays.store_of(folder)))


@pytest.mark.parametrize(
    ("fault", "forged"),
    [
        ("doubled: a once step", lambda world, effects: world.act("once", effects["once"])),
        ("in no record", lambda world, effects: world.act("once", "0" * 64)),
        ("lost: a approved step", lambda world, effects: world.file.write_text(f"once {effects['once']}\n")),
    ],
)
async def test_P15_effects_that_do_not_fit_the_record_are_found_out(
    folder: Path, fault: str, forged: Callable[[plays.World, dict[str, str]], None]
) -> None:
    world = plays.world_of(folder)
    room = await opened(plays.store_of(folder), world)
    secret = room.backend.secret
    await room.close()
    assert effects_of(plays.store_of(folder), world, secret=secret).faults == []
    forged(world, {kind: key for kind, key in world.effects()})
    assert any(fault in found for found in effects_of(plays.store_of(folder), world, secret=secret).faults)


async def test_P15_a_transactional_step_that_was_done_twice_is_found_out(folder: Path) -> None:
    columns = "tenant, home, session, name, version, kind, schema, origin, trust, body, by, run, at"
    forge(folder, f"insert into slot_past({columns}) select {columns} from slot where name like 'moved %'")
    found = effects_of(plays.store_of(folder), plays.world_of(folder), secret=b"").faults
    assert "'moved t0' was set 2 times" in found


CALL, ANSWER = {"type": "function_call", "call_id": "c"}, {"type": "function_call_output", "call_id": "c"}


@pytest.mark.parametrize(("items", "sound"), [
    ([CALL, ANSWER], True), ([CALL], False), ([ANSWER], False), ([CALL, ANSWER, ANSWER], False), ([ANSWER, CALL], False),
    ([CALL, CALL, ANSWER], False), ([], True),
])  # fmt: skip
def test_P17_a_window_that_no_provider_takes_is_found_out(items: list[dict[str, Any]], sound: bool) -> None:
    assert (unsound(items) == []) == sound


async def test_P3_P4_P5_a_stream_that_was_forged_is_found_out(folder: Path) -> None:
    room = await opened(plays.store_of(folder), plays.world_of(folder))
    found = await room.backend.key(LOCAL, "turn", "k0", ids.key_home(LOCAL.tenant, LOCAL.principal, "k0"))
    assert found is not None
    run = await room.backend.run(LOCAL, found.ref)
    events = [event[1] async for event in room.followers.events(LOCAL, run.id, room.followers.at(run, 0)) if event is not None]
    await room.close()
    assert wrong_with_stream(events) == []
    assert wrong_with_stream(events[:-1]), "cut"
    assert wrong_with_stream([*events, events[-1]]), "an event twice"
    for place, event in enumerate(events[:-1]):
        assert wrong_with_stream(events[:place] + events[place + 1 :]), event["type"]
        renumbered = copy.deepcopy(events[:place] + events[place + 1 :])
        for number, left in enumerate(renumbered):
            left["sequence_number"] = number
        if event["type"] in ("response.output_item.added", "response.output_item.done", "response.output_text.delta"):
            assert wrong_with_stream(renumbered), f"{event['type']} is missing"
