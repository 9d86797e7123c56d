"""What a newer version says in a bundle or an archive survives an older one: it comes out again where it was (P30)."""

from __future__ import annotations

import hashlib
import hmac
import json
from pathlib import Path

import pytest

from stateroom.errors import InvalidInput
from stateroom.flows import sealed
from stateroom.principal import LOCAL, operator
from stateroom.session.service import patches_of
from tests.flows.conftest import Bench
from tests.flows.test_expiry import Ends, exported, full, room_of, source

pytestmark = pytest.mark.anyio

MOOD = b'"mood":{"a":1.50,"b":[null,12345678901234567890]}'  # as a newer version spells it


@pytest.fixture(params=["durable", "ephemeral"], autouse=True)
def durability(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ends, "durability", request.param)


def newer(bundle: bytes, key: bytes) -> bytes:
    """The bundle as a newer version would have written it: a field more in every record, and in the records in it; two parts
    that nobody knows here."""
    lines = bundle.splitlines()[:-1]
    lines = [line[:-1] + b"," + MOOD + b"}" if n == 0 else line for n, line in enumerate(lines)]
    lines[0] = lines[0].replace(b'"session":{', b'"session":{' + MOOD + b",")
    for n, line in enumerate(lines[1:], 1):
        for inner in (b'"row":{"slot":{', b'"entry":{'):
            line = line.replace(inner, inner + MOOD + b",")
        lines[n] = line.replace(b'"row":{', b'"row":{' + MOOD + b",")
    lines += [b'{"part":"workspace","row":{"path":"b.txt",' + MOOD + b"}}", b'{"part":"workspace","row":{"path":"a.txt"}}']
    lines += [b'{"part":"alarms","row":[1,{"x":1.0}]}']
    body = b"".join(line + b"\n" for line in lines)
    signature = hmac.digest(key, body, hashlib.sha256).hex()
    return body + b'{"end":%d,"algorithm":"hmac-sha256","signature":"%s"}\n' % (len(lines) - 1, signature.encode())


def rows(bundle: bytes) -> list[tuple[str, str]]:
    """Every record, fields in their order, the values as they are spelled; unknown parts come last."""
    found = list[tuple[str, str]]()
    for line in bundle.splitlines()[1:-1]:
        row = json.loads(line, parse_float=str, parse_int=str)
        found.append((row["part"], json.dumps(row["row"], sort_keys=True)))
    return sorted(found[-3:]) + found[:-3]


def moods(bundle: bytes) -> int:
    return bundle.count(MOOD)


@pytest.fixture
def key() -> bytes:
    return sealed.key_of(b"shared", "bundle")


async def test_P30_what_a_newer_version_says_comes_out_where_it_was(bench: Bench, key: bytes) -> None:
    room = (ends := await room_of(bench)).room
    given = newer(await exported(room, await full(ends), key=b"shared"), key)
    assert moods(given) > 15
    made = await room.bundles.import_(LOCAL, source(given), key=b"shared")
    out = await exported(room, made.id, key=b"shared")
    assert rows(out) == rows(given)
    assert moods(out) == moods(given), "byte for byte, in the manifest too"
    order = [line for line in out.splitlines() if b'"workspace"' in line]
    assert [b"b.txt" in line for line in order] == [True, False]
    again = await room.bundles.import_(LOCAL, source(out), key=b"shared")
    assert rows(await exported(room, again.id, key=b"shared")) == rows(given)


async def test_P30_what_is_said_of_a_slot_follows_it_into_the_past_and_a_new_version_is_new(bench: Bench, key: bytes) -> None:
    room = (ends := await room_of(bench)).room
    desk = await ends.desk(name="ann")
    made = await room.bundles.import_(LOCAL, source(newer(await exported(room, desk, key=b"shared"), key)), key=b"shared")
    await room.sessions.patch(LOCAL, made.id, patches_of({"name": "bob"}))
    out = (await exported(room, made.id, key=b"shared")).splitlines()
    (now,) = [line for line in out if line.startswith(b'{"part":"slot"')]
    (then,) = [line for line in out if line.startswith(b'{"part":"past"')]
    assert (MOOD in now, MOOD in then) == (False, True)
    fork = await room.sessions.fork(LOCAL, made.id, version=1)
    (line,) = [line for line in (await exported(room, fork.id)).splitlines() if line.startswith(b'{"part":"slot"')]
    assert MOOD in line, "a fork shows what its parent was"


async def test_P30_archives_keep_it_too_and_a_purge_takes_it_along(bench: Bench, key: bytes, tmp_path: Path) -> None:
    ends = await room_of(bench, f"archive:{tmp_path / 'cold'}")
    room = ends.room
    given = newer(await exported(room, await ends.desk(), key=b"shared"), key)
    made = await room.bundles.import_(LOCAL, source(given), key=b"shared")
    await ends.expire()
    system = operator(LOCAL.tenant, "system")
    assert await room.backend.remains(system, made.id, "beyond", after=("", -1, -1, -1), limit=100) == []
    await room.archives.restore(LOCAL, made.id)
    assert rows(await exported(room, made.id, key=b"shared")) == rows(given)


async def test_a_part_that_cannot_be_one_is_refused(bench: Bench, key: bytes) -> None:
    room = (ends := await room_of(bench)).room
    given = newer(await exported(room, await ends.desk(), key=b"shared"), key).replace(b'"alarms"', b'"../alarms"')
    with pytest.raises(InvalidInput) as refused:
        await room.bundles.import_(LOCAL, source(given), key=b"shared")
    assert refused.value.reason == "archive_invalid"


@pytest.mark.parametrize("odd", [{"metadata": "bm90anNvbg=="}, {"access": "xx"}, {"access": '{"a":5}'}, {"version": -5}])
async def test_what_nobody_could_show_is_refused_whoever_signed_it(bench: Bench, key: bytes, odd: dict[str, object]) -> None:
    room = (ends := await room_of(bench)).room
    lines = (await exported(room, await full(ends), key=b"shared")).splitlines()[:-1]
    manifest = json.loads(lines[0])
    lines[0] = json.dumps({**manifest, "session": {**manifest["session"], **odd}}).encode()
    body = b"".join(line + b"\n" for line in lines)
    signature = hmac.new(key, body, hashlib.sha256).hexdigest()
    end = f'{{"end":{len(lines) - 1},"algorithm":"hmac-sha256","signature":"{signature}"}}\n'.encode()
    with pytest.raises(InvalidInput) as refused:
        await room.bundles.import_(LOCAL, source(body + end), key=b"shared")
    assert refused.value.reason == "archive_invalid"
