"""Desks: kinds of slots, versions, forks and lifetimes, sent to both backends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from msgspec.structs import replace

from stateroom.backends.base import Backend
from stateroom.principal import Scope
from stateroom.session.model import (
    CompactPast,
    DropCheckpoint,
    Durability,
    Expire,
    ForkSession,
    MakeCheckpoint,
    NewEntry,
    OpenSession,
    PatchSlots,
    PurgeSession,
    RollBack,
    SlotPatch,
    TouchSession,
)
from tests.stateful.drawing import durabilities, hold, maybe_small, scopes, which
from tests.stateful.waiting import Waiting

NAMES = ("good", "better")
lives = st.sampled_from([0, 0, 0, 2_000, 20_000])
versions = st.sampled_from([None, None, 0, 1, 2, 3, 5, 8])
SCHEMA = '{"type": "array", "maxItems": 3}'


def operations(n: int) -> tuple[SlotPatch, ...]:
    """What may be done, legal on what the others leave there or not."""
    number = b"%d" % n
    return (
        SlotPatch(name="a", kind="counter", op="add", body=number),
        SlotPatch(name="b", kind="list", op="append", body=b"[%d]" % n, schema=SCHEMA, origin="tool"),
        SlotPatch(name="b", kind="list", op="append", body=b"[%d]" % n),
        SlotPatch(name="c", kind="map", op="put", body=b'{"k%d":%d}' % (n % 3, n)),
        SlotPatch(name="c", kind="map", op="drop", body=b'["k%d"]' % (n % 3)),
        SlotPatch(name="d", kind="set", op="add", body=b"[%d]" % (n % 4), sources=("b",)),
        SlotPatch(name="d", kind="value", op="merge", body=b'{"x":%d}' % n),
        SlotPatch(name="w", kind="window", body=b'{"seconds":3,"bytes":40}'),
        SlotPatch(name="w", kind="window", op="append", body=b"", entries=(NewEntry(number * 4), NewEntry(number))),
        SlotPatch(name="w", kind="window", op="append", body=b"", entries=(NewEntry(b"old", at=1),)),
        *(SlotPatch(name=name, body=None) for name in "abcdw"),
    )


class Desks(Waiting):
    """What a desk can be asked beyond plain patches."""

    @rule(scope=scopes, ttl_ms=lives, max_ms=lives, durability=durabilities)
    def opens_a_desk_of_its_own(self, scope: Scope, ttl_ms: int, max_ms: int, durability: Durability) -> None:
        new = OpenSession(id=self.new_id(), owner=scope.principal, subject="s", ttl_ms=ttl_ms, max_ms=max_ms)
        self.does(scope, replace(new, durability=durability))

    @precondition(lambda self: self.sessions)
    @rule(
        scope=scopes,
        n=which,
        chosen=st.lists(st.integers(0, 14), min_size=1, max_size=3),
        expected=maybe_small,
        seen=st.sampled_from([()] * 5 + [(("b", 1),), (("c", 0),)]),
        hold=hold,
    )
    def operates(self, scope: Scope, n: int, chosen: list[int], expected: Any, seen: Any, hold: bool) -> None:
        known = operations(self.made)
        patches = {known[k].name: known[k] for k in chosen}.values()
        write = PatchSlots(
            session=self.pick(self.sessions, n), patches=tuple(patches), by=scope.principal, seen=seen, agent="clerk"
        )
        self.does(scope, write, hold)

    @precondition(lambda self: self.sessions)
    @rule(scope=scopes, n=which, name=st.sampled_from(NAMES), version=versions, hold=hold)
    def names_a_version(self, scope: Scope, n: int, name: str, version: Any, hold: bool) -> None:
        self.does(scope, MakeCheckpoint(session=self.pick(self.sessions, n), name=name, by="x", version=version), hold)

    @precondition(lambda self: self.sessions)
    @rule(scope=scopes, n=which, name=st.sampled_from(NAMES))
    def drops_a_name(self, scope: Scope, n: int, name: str) -> None:
        self.does(scope, DropCheckpoint(session=self.pick(self.sessions, n), name=name))

    @precondition(lambda self: self.sessions)
    @rule(scope=scopes, n=which, version=versions, name=st.sampled_from(["", "", *NAMES]), hold=hold)
    def goes_back(self, scope: Scope, n: int, version: Any, name: str, hold: bool) -> None:
        write = RollBack(session=self.pick(self.sessions, n), by=scope.principal, version=version, checkpoint=name)
        self.does(scope, write, hold)

    @precondition(lambda self: self.sessions)
    @rule(scope=scopes, n=which, version=versions, ttl_ms=st.none() | lives)
    def forks_a_desk(self, scope: Scope, n: int, version: Any, ttl_ms: Any) -> None:
        parent = self.pick(self.sessions, n)
        write = ForkSession(id=self.new_id(), parent=parent, owner=scope.principal, version=version, ttl_ms=ttl_ms)
        self.does(scope, write)

    @precondition(lambda self: self.sessions)
    @rule(scope=scopes, n=which, before=st.integers(0, 6))
    def compacts_a_desk(self, scope: Scope, n: int, before: int) -> None:
        self.does(scope, CompactPast(session=self.pick(self.sessions, n), before=before))

    @precondition(lambda self: self.sessions)
    @rule(scope=scopes, n=which)
    def touches_a_desk(self, scope: Scope, n: int) -> None:
        self.does(scope, TouchSession(session=self.pick(self.sessions, n)))

    @precondition(lambda self: self.sessions)
    @rule(scope=scopes, n=which)
    def looks_after_a_desk(self, scope: Scope, n: int) -> None:
        self.does(scope, Expire(session=self.pick(self.sessions, n)))

    @precondition(lambda self: self.sessions)
    @rule(scope=scopes, n=which, archive=st.sampled_from(["", "cold"]))
    def purges_a_desk(self, scope: Scope, n: int, archive: str) -> None:
        self.does(scope, PurgeSession(session=self.pick(self.sessions, n), archive=archive))

    def desk_reads(self, scope: Scope, session: bytes) -> Iterable[tuple[str, Callable[[Backend], Awaitable[Any]]]]:
        yield "slots", lambda store: store.slots(scope, session)
        yield "delta", lambda store: store.slots(scope, session, 1)
        yield "past", lambda store, of="abw"[self.made % 3]: store.past(scope, session, of, 2)
        if not scope.sees_all:
            return
        yield "head", lambda store: store.session(scope, session)
        yield "as it was", lambda store, of=self.made % 6: store.slots_at(scope, session, of)
        yield "checkpoints", lambda store: store.checkpoints(scope, session, 100)
        yield "window", lambda store: store.entries(scope, session, "w", as_of=None, limit=3)
