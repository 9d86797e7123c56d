"""How desks end: unreadable at once, taken by the hook, purged, and brought back (P23, P13)."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import pytest
from msgspec.structs import replace

from stateroom import ids, limits
from stateroom.clock import FrozenClock
from stateroom.errors import AlreadyExists, Conflict, Gone, InvalidInput, NotFound, Unavailable
from stateroom.flows import sealed
from stateroom.flows.agent import AgentEvent, Delta, Turn
from stateroom.flows.webhook import Webhook
from stateroom.ids import NIL
from stateroom.principal import LOCAL, Scope, operator
from stateroom.session import versions
from stateroom.session.model import Durability, NewEntry, OpenSession, Session, Slot, SlotPatch
from stateroom.session.service import operation, patches_of
from stateroom.stack import Stateroom
from tests.flows.conftest import Acts, Bench, ask, echo

pytestmark = pytest.mark.anyio
TTL = 60_000


class Ends:
    """A room whose desks expire, and a clock that is moved by hand."""

    durability: Durability = "durable"

    def __init__(self, room: Stateroom, clock: FrozenClock) -> None:
        self.room, self.clock = room, clock

    async def desk(self, ttl_ms: int = TTL, **state: Any) -> bytes:
        id_ = self.room.sessions.new_id()
        owner = LOCAL.principal
        write = OpenSession(id=id_, owner=owner, subject=owner, ttl_ms=ttl_ms, durability=self.durability)
        await self.room.sessions.open_as(LOCAL, write, slots=state or {"cart": [1]})
        return id_

    async def expire(self, ms: int = TTL + 1) -> None:
        self.clock.advance(ms)
        await self.room.expiry.sweep()

    async def head(self, desk: bytes) -> Session:
        return await self.room.backend.head(operator(LOCAL.tenant, "system"), desk)


@pytest.fixture(params=["durable", "ephemeral"], autouse=True)
def durability(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it holds for both."""
    monkeypatch.setattr(Ends, "durability", request.param)


async def room_of(bench: Bench, on_expiry: Any = None) -> Ends:
    clock = FrozenClock()
    bench.clock = clock
    backend = await bench.place.backend()
    room = Stateroom(backend, {"agent": Acts(echo)}, owner=backend.owner, default_agent="agent", on_expiry=on_expiry)
    bench._rooms.append(room)
    return Ends(room, clock)


async def full(ends: Ends) -> bytes:
    """A desk with something of everything on it."""
    loro = pytest.importorskip("loro")
    desk, sessions = await ends.desk(cart=[1], name="ann"), ends.room.sessions
    await sessions.patch(LOCAL, desk, [operation("count", "counter", "add", operand=3)])
    await sessions.patch(LOCAL, desk, patches_of({"name": "bob"}))
    await sessions.checkpoint(LOCAL, desk, "bob")
    await sessions.patch(LOCAL, desk, [SlotPatch(name="seen", kind="window", body=b'{"seconds":3600}')])
    await sessions.patch(
        LOCAL, desk, [SlotPatch(name="seen", kind="window", op="append", body=b"", entries=(NewEntry(b"x"), NewEntry(b"y")))]
    )
    document = loro.LoroDoc()
    document.get_text("t").insert(0, "hello")
    document.commit()
    await sessions.patch(
        LOCAL, desk, [SlotPatch(name="doc", kind="doc", body=bytes(document.export(loro.ExportMode.Snapshot())))]
    )
    await sessions.patch(LOCAL, desk, [SlotPatch(name="shaped", body=b"1", schema='{"type":"integer"}')])
    await sessions.patch(LOCAL, desk, patches_of({}, removed=["cart"]))
    return desk


async def all_of(room: Stateroom, desk: bytes) -> tuple[Any, ...]:
    sessions = room.sessions
    return (
        (await sessions.get(LOCAL, desk)).version,
        await room.backend.slots(LOCAL, desk, 0),
        await room.backend.slots(LOCAL, desk, 1),
        [await sessions.slots_at(LOCAL, desk, version) for version in range(5)],
        [(mark.name, mark.version, mark.kind) for mark in await sessions.checkpoints(LOCAL, desk)],
        [entry.body for entry in await sessions.entries(LOCAL, desk, "seen")],
        (await sessions.document(LOCAL, desk, "doc")).snapshot,
    )


async def test_P23_without_a_hook_what_has_expired_is_purged(bench: Bench) -> None:
    ends = await room_of(bench)
    desks = [await ends.desk() for _ in range(limits.EXPIRE_PAGE + 3)]
    living = await ends.desk(ttl_ms=10 * TTL)
    await ends.expire()
    assert {(await ends.head(desk)).status for desk in desks} == {"expired"}
    assert await ends.room.sessions.state(LOCAL, living) == {"cart": [1]}
    assert await ends.room.backend.remains(operator(LOCAL.tenant, "system"), desks[0], "slot", after=("", 0, 0, 0), limit=9) == []


async def test_P23_archived_before_purge_and_restorable(bench: Bench, tmp_path: Path) -> None:
    ends = await room_of(bench, f"archive:{tmp_path / 'cold'}")
    desk = await full(ends)
    before = await all_of(ends.room, desk)
    await ends.expire()
    assert (await ends.head(desk)).status == "archived"
    with pytest.raises(Gone) as gone:
        await ends.room.sessions.get(LOCAL, desk)
    assert gone.value.reason == "session_archived"
    assert await ends.room.backend.remains(operator(LOCAL.tenant, "system"), desk, "slot", after=("", 0, 0, 0), limit=9) == []
    back = await ends.room.archives.restore(LOCAL, desk)
    assert (back.id, back.owner, back.expires_at) == (desk, LOCAL.principal, ends.room.backend.now() + TTL)
    assert await all_of(ends.room, desk) == before
    await ends.room.sessions.patch(LOCAL, desk, patches_of({"name": "eve"}))
    with pytest.raises(InvalidInput):
        await ends.room.sessions.patch(LOCAL, desk, patches_of({"shaped": "no"}))
    await ends.expire()
    assert (await ends.room.archives.restore(LOCAL, desk)).version == before[0] + 1
    assert (await ends.room.sessions.state(LOCAL, desk))["name"] == "eve"


async def test_P23_a_fork_is_archived_with_what_it_shows_of_its_parent(bench: Bench, tmp_path: Path) -> None:
    ends = await room_of(bench, f"archive:{tmp_path / 'cold'}")
    desk = await full(ends)
    fork = (await ends.room.forks.session(LOCAL, desk)).id
    await ends.room.sessions.patch(LOCAL, fork, patches_of({"name": "eve"}))
    state, slots = await ends.room.sessions.state(LOCAL, fork), await ends.room.backend.slots(LOCAL, fork, 0)
    base = await ends.room.sessions.slots_at(LOCAL, fork, (await ends.room.sessions.get(LOCAL, fork)).base)
    await ends.expire()
    await ends.expire(limits.EXPIRE_RETRY_MS)
    assert {(await ends.head(one)).status for one in (desk, fork)} == {"archived"}
    back = await ends.room.archives.restore(LOCAL, fork)
    assert back.parent == NIL
    assert {**await ends.room.sessions.state(LOCAL, fork), "seen": state["seen"]} == state
    assert [_bare(slot) for slot in await ends.room.backend.slots(LOCAL, fork, 0)] == slots
    assert [_bare(slot) for slot in await ends.room.sessions.slots_at(LOCAL, fork, back.kept_from)] == base
    assert [entry.body for entry in await ends.room.sessions.entries(LOCAL, fork, "seen")] == [b"x", b"y"]
    await ends.room.archives.restore(LOCAL, desk)
    assert (await ends.room.sessions.state(LOCAL, desk))["name"] == "bob"


def _bare(slot: Slot) -> Slot:
    """A fork counts nothing of its parent's window; one that stands alone counts it all."""
    return versions.inherit(slot)


async def test_P23_a_parent_comes_back_while_a_fork_stands_on_it(bench: Bench, tmp_path: Path) -> None:
    ends = await room_of(bench, f"archive:{tmp_path / 'cold'}")
    desk = await ends.desk(cart=[1])
    fork = await ends.room.forks.session(LOCAL, desk)
    await ends.room.backend.head(LOCAL, desk)
    for _ in range(3):
        ends.clock.advance(TTL - 1)
        await ends.room.sessions.touch(LOCAL, fork.id)
        await ends.room.expiry.sweep()
    assert (await ends.head(desk)).status == "archived"
    assert await ends.room.sessions.state(LOCAL, fork.id) == {"cart": [1]}
    await ends.room.archives.restore(LOCAL, desk)
    assert await ends.room.sessions.state(LOCAL, desk) == {"cart": [1]}
    assert await ends.room.sessions.state(LOCAL, fork.id) == {"cart": [1]}


async def test_a_tampered_archive_is_refused_and_nothing_comes_back(bench: Bench, tmp_path: Path) -> None:
    ends = await room_of(bench, f"archive:{tmp_path / 'cold'}")
    desk = await ends.desk(cart=["mine"], other=1)
    await ends.expire()
    (file,) = (tmp_path / "cold").iterdir()
    whole = file.read_bytes()
    lines = whole.split(b"\n")
    for broken in (
        whole.replace(b'"local"', b'"other"'), b"\n".join(lines[:1] + lines[2:]), b"\n".join(lines[:-2]) + b"\n",
        whole[: len(whole) // 2], b"", b"{}\n", whole + b"{}\n", whole.replace(b'"version":1', b'"version":7'),
    ):  # fmt: skip
        file.write_bytes(broken)
        with pytest.raises(InvalidInput) as refused:
            await ends.room.archives.restore(LOCAL, desk)
        assert refused.value.reason in ("archive_tampered", "archive_invalid")
        assert (await ends.head(desk)).status == "archived"
    file.unlink()
    with pytest.raises(Gone):
        await ends.room.archives.restore(LOCAL, desk)
    file.write_bytes(whole)
    assert (await ends.room.archives.restore(LOCAL, desk)).version == 1


async def test_P28_nobody_restores_what_is_not_theirs(bench: Bench, tmp_path: Path) -> None:
    ends = await room_of(bench, f"archive:{tmp_path / 'cold'}")
    desk = await ends.desk()
    with pytest.raises(Conflict):
        await ends.room.archives.restore(LOCAL, desk)
    await ends.expire()
    for scope in (Scope(LOCAL.tenant, "mallory"), Scope("other", LOCAL.principal)):
        with pytest.raises(NotFound):
            await ends.room.archives.restore(scope, desk)


async def test_P23_a_hook_that_fails_keeps_the_desk_and_is_asked_again_later_and_later(bench: Bench) -> None:
    asked, fails = [], [True]

    def hook(session: dict[str, Any]) -> None:
        asked.append(session)
        if fails[0]:
            raise RuntimeError("the other side is down")

    ends = await room_of(bench, hook)
    desk = await ends.desk(cart=[1])
    await ends.expire()
    assert (await ends.head(desk)).status == "expiring"
    assert asked[0]["state"] == {"cart": [1]}
    await ends.expire(limits.EXPIRE_RETRY_MS - 1)
    assert len(asked) == 1
    await ends.expire(1)
    assert len(asked) == 2
    await ends.expire(limits.EXPIRE_RETRY_MS)
    await ends.expire(limits.EXPIRE_RETRY_MS)
    assert len(asked) <= 4
    fails[0] = False
    await ends.expire(limits.EXPIRE_RETRY_MS_MAX)
    assert (await ends.head(desk)).status == "expired"


async def test_a_callable_may_be_asynchronous_and_is_given_up_in_time(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    async def hook(session: dict[str, Any]) -> None:
        await asyncio.sleep(60)

    monkeypatch.setattr(limits, "HOOK_MS_MAX", 50)
    ends = await room_of(bench, hook)
    desk = await ends.desk()
    await asyncio.wait_for(ends.expire(), 10)
    assert (await ends.head(desk)).status == "expiring"


async def test_P23_two_workers_share_the_work(bench: Bench, tmp_path: Path) -> None:
    ends = await room_of(bench, f"archive:{tmp_path / 'cold'}")
    backend = await bench.place.backend()
    other = Stateroom(backend, {"agent": Acts(echo)}, owner="o", default_agent="agent", on_expiry=f"archive:{tmp_path / 'cold'}")
    bench._rooms.append(other)
    desks = [await ends.desk(n=n) for n in range(20)]
    ends.clock.advance(TTL + 1)
    await asyncio.gather(ends.room.expiry.sweep(), other.expiry.sweep())
    assert {(await ends.head(desk)).status for desk in desks} == {"archived"}
    for n, desk in enumerate(desks):
        await other.archives.restore(LOCAL, desk)
        assert await ends.room.sessions.state(LOCAL, desk) == {"n": n}
    assert len(list((tmp_path / "cold").iterdir())) == len(desks), "nothing lies there that no desk names"


async def test_P23_what_expires_is_left_to_those_who_can_do_what_was_said_of_the_store(bench: Bench, tmp_path: Path) -> None:
    """A process that was told nothing is on duty first; it neither purges nor keeps the others from it."""
    plain = await room_of(bench)
    backend = await bench.place.backend()
    told = Stateroom(
        backend, {"agent": Acts(echo)}, owner=backend.owner, default_agent="agent", on_expiry=f"archive:{tmp_path / 'cold'}"
    )
    bench._rooms.append(told)
    desk = await plain.desk()
    await told.expiry.begin()
    await plain.expire()
    assert (await plain.head(desk)).status == "active", "nobody has touched it; it is unreadable all the same"
    with pytest.raises(Gone):
        await plain.room.sessions.get(LOCAL, desk)
    for _ in range(2):
        plain.clock.advance(limits.LEASE_MS)
        await plain.room.expiry.sweep()
        await told.expiry.sweep()
    assert (await plain.head(desk)).status == "archived"


async def test_P23_somebody_has_to_say_that_nothing_is_done_any_more(bench: Bench, tmp_path: Path) -> None:
    ends = await room_of(bench, f"archive:{tmp_path / 'cold'}")
    await ends.room.start()
    plain = Stateroom(ends.room.backend, {"agent": Acts(echo)}, owner="o", default_agent="agent")
    other = Stateroom(ends.room.backend, {"agent": Acts(echo)}, owner="o", default_agent="agent", on_expiry=lambda told: None)
    await plain.start()
    desk = await ends.desk()
    ends.clock.advance(TTL + 1)
    for room in (plain, other):
        await room.expiry.sweep()
        assert (await ends.head(desk)).status == "active"
    last = Stateroom(ends.room.backend, {"agent": Acts(echo)}, owner="o", default_agent="agent", on_expiry="nothing")
    await last.start()
    await plain.expiry.sweep()
    assert (await ends.head(desk)).status == "expired"
    for room in (plain, last):
        for sweeper in room._sweepers:
            sweeper.cancel()


async def test_P23_each_try_has_its_own_place_and_the_one_that_comes_late_harms_nothing(bench: Bench, tmp_path: Path) -> None:
    """Another worker archives what is purged already: it finds nothing, and must not put that over what was put away."""
    ends = await room_of(bench, f"archive:{tmp_path / 'cold'}")
    desk = await ends.desk(cart=[1])
    scope = operator(LOCAL.tenant, "system")
    head = await ends.head(desk)
    await ends.expire()
    late = await ends.room.archives.archive(scope, replace(head, archive=ends.room.archives.name(head)))
    assert late != (await ends.head(desk)).archive
    await ends.room.archives.restore(LOCAL, desk)
    assert await ends.room.sessions.state(LOCAL, desk) == {"cart": [1]}


async def test_P13_a_clock_that_jumps_expires_nothing_early(bench: Bench) -> None:
    ends = await room_of(bench)
    desk = await ends.desk()
    for jump in (10 * TTL, -100 * TTL):
        ends.clock.wall += jump
        await ends.room.expiry.sweep()
        assert (await ends.room.sessions.get(LOCAL, desk)).status == "active"
    ends.clock.boot += TTL + 1
    await ends.room.expiry.sweep()
    assert (await ends.head(desk)).status == "expired"


async def test_old_versions_go_by_policy_and_named_ones_never(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DESK_VERSIONS_KEPT", 5)
    monkeypatch.setattr(limits, "TIDY_ROWS_MAX", 7)
    ends = await room_of(bench)
    desk = await ends.desk(n=0)
    for n in range(1, limits.TIDY_EVERY + 3):
        await ends.room.sessions.patch(LOCAL, desk, patches_of({"n": n}))
        if n == 9:
            await ends.room.sessions.checkpoint(LOCAL, desk, "ten")
    await ends.room.expiry.sweep()
    head = await ends.room.sessions.get(LOCAL, desk)
    assert head.kept_from == head.version - 5
    assert [slot.body for slot in await ends.room.sessions.slots_at(LOCAL, desk, 10)] == [b"9"]
    with pytest.raises(Gone):
        await ends.room.sessions.slots_at(LOCAL, desk, 11)
    assert len(await ends.room.backend.past(LOCAL, desk, "n", 1000)) <= 7
    assert await ends.room.backend.due("tidy", ends.room.backend.now() + 1, 10) == []


# ── bundles ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def exported(room: Stateroom, desk: bytes, key: bytes = b"") -> bytes:
    return b"".join([line async for line in room.bundles.export(LOCAL, desk, key=key)])


def source(content: bytes, piece: int = 1000):  # type: ignore[no-untyped-def]
    async def chunks() -> AsyncIterator[bytes]:
        for at in range(0, len(content), piece):
            yield content[at : at + piece]

    return chunks


async def test_a_bundle_opens_in_another_stateroom(bench: Bench) -> None:
    from stateroom.stack import open as open_room

    ends = await room_of(bench)
    desk = await full(ends)
    bundle = await exported(ends.room, desk, b"shared")
    async with await open_room("ram://") as other:
        with pytest.raises(InvalidInput) as refused:
            await other.bundles.import_(LOCAL, source(bundle))
        assert refused.value.reason == "archive_tampered"
        new = await other.bundles.import_(LOCAL, source(bundle), key=b"shared")
        same = await other.bundles.import_(LOCAL, source(bundle), key=b"shared", same_id=True)
        assert (new.id != desk, same.id) == (True, desk)
        with pytest.raises(AlreadyExists):
            await other.bundles.import_(LOCAL, source(bundle), key=b"shared", same_id=True)
        for there in (new.id, same.id):
            assert (await all_of(other, there))[:-2] == (await all_of(ends.room, desk))[:-2]
            assert await other.sessions.state(LOCAL, there) == await ends.room.sessions.state(LOCAL, desk)
        rolled = await other.rollbacks.to(LOCAL, new.id, "bob")
        assert rolled.version == new.version + 1


async def test_a_bundle_comes_back_into_the_same_store_as_another_desk(bench: Bench) -> None:
    ends = await room_of(bench)
    desk = await full(ends)
    there = await ends.room.bundles.import_(LOCAL, source(await exported(ends.room, desk)))
    assert await all_of(ends.room, there.id) == await all_of(ends.room, desk)
    with pytest.raises(AlreadyExists):
        await ends.room.bundles.import_(LOCAL, source(await exported(ends.room, desk)), same_id=True)


async def test_a_bundle_of_a_newer_format_and_a_line_without_end_are_refused(bench: Bench) -> None:
    ends = await room_of(bench)
    bundle = await exported(ends.room, await ends.desk())
    for broken, code in (
        (bundle.replace(b'"stateroom":1', b'"stateroom":2'), "archive_too_new"),
        (b"x" * (5 << 20), "archive_invalid"),
    ):
        with pytest.raises(InvalidInput) as refused:
            await ends.room.bundles.import_(LOCAL, source(broken, 1 << 20))
        assert refused.value.reason == code


# ── the web ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class Heard(BaseHTTPRequestHandler):
    status: ClassVar[int] = 204
    heard: ClassVar[list[tuple[dict[str, str], bytes]]] = []

    def do_POST(self) -> None:
        Heard.heard.append((dict(self.headers), self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(Heard.status)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


async def test_a_webhook_is_told_signed_and_failing_keeps_the_desk(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    Heard.heard.clear()
    server = HTTPServer(("127.0.0.1", 0), Heard)
    Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/hook?x=1"
    try:
        ends = await room_of(bench, url)
        desk = await ends.desk(cart=[1])
        await ends.expire()
        assert (await ends.head(desk)).status == "expiring", "an address of this machine is not called"
        assert Heard.heard == []
        monkeypatch.setenv("STATEROOM_WEBHOOK_PRIVATE", "1")
        ends = Ends(
            Stateroom(ends.room.backend, {"agent": Acts(echo)}, owner="o", default_agent="agent", on_expiry=url), ends.clock
        )
        Heard.status = 500
        await ends.expire(limits.EXPIRE_RETRY_MS)
        assert ((await ends.head(desk)).status, len(Heard.heard)) == ("expiring", 3)
        Heard.status = 204
        await ends.expire(limits.EXPIRE_RETRY_MS_MAX)
        assert (await ends.head(desk)).status == "expired"
        headers, body = Heard.heard[-1]
        key = sealed.key_of(ends.room.backend.secret, "webhook")
        signed = headers["Stateroom-Timestamp"].encode() + b"." + body
        assert headers["Stateroom-Signature"] == "v1=" + hmac.new(key, signed, hashlib.sha256).hexdigest()
        told = json.loads(body)
        assert (told["event"], told["session"], told["state"]) == ("session.expired", ids.text("session", desk), {"cart": [1]})
    finally:
        Heard.status = 204
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://user:pw@example.org/", "nonsense", "file:///etc/passwd"])
async def test_what_is_no_webhook_is_refused(bench: Bench, url: str) -> None:
    with pytest.raises(InvalidInput):
        await room_of(bench, url)


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "10.1.2.3", "169.254.169.254", "localhost", "0.0.0.0"])
async def test_no_webhook_reaches_into_our_network(bench: Bench, host: str) -> None:
    ends = await room_of(bench)
    hook = Webhook(ends.room.backend, f"http://{host}:9/")
    with pytest.raises((InvalidInput, Unavailable)) as refused:
        await hook.take(LOCAL, await ends.room.sessions.get(LOCAL, await ends.desk()))
    assert refused.value.reason == "webhook_private"


async def keeps(turn: Turn) -> AsyncIterator[AgentEvent]:
    turn.changes["last"] = turn.text
    yield Delta("ok")


async def test_P23_a_turn_after_expiry_gets_a_fresh_desk(bench: Bench) -> None:
    clock = FrozenClock()
    bench.clock = clock
    room = await bench.room(keeps)
    conversation = (await room.conversations.create(LOCAL)).id
    old = ids.new(ids.home(conversation), 1)
    write = OpenSession(id=old, owner="local", subject="local", conversation=conversation, agent="agent", ttl_ms=TTL)
    await room.sessions.open_as(LOCAL, write, slots={"last": "?"})
    await ask(room, "a", conversation=conversation)
    clock.advance(TTL + 1)
    await ask(room, "b", conversation=conversation)
    desk = await room.sessions.bound(LOCAL, conversation, "agent")
    assert desk is not None
    assert desk.id != old
    assert await room.sessions.state(LOCAL, desk.id) == {"last": "b"}
