"""What must be true of a store while nobody works on it, as queries that find nothing; and effects against the record."""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import apsw
import msgspec
import psycopg

from stateroom import limits
from stateroom.backends.sql import sound
from stateroom.backends.sql.sound import ENDED, Invariant
from stateroom.context.build import build
from stateroom.conversation.model import ItemQuery
from stateroom.ids import NIL
from stateroom.principal import LOCAL
from stateroom.stack import Stateroom
from stateroom.wire import json
from tests.crash.checks import damage
from tests.crash.where import Place
from tests.crash.world import World

Ask = Callable[[str], list[tuple[Any, ...]]]

_WORDS = b"""
do $$ begin
    create schema look;
    create function look.hex(bytea) returns text language sql as $f$ select encode($1, 'hex') $f$;
    create function look.answers(bytea) returns boolean
        language sql as $f$ select convert_from($1, 'utf8')::json -> 'approved' is not null $f$;
exception when duplicate_schema then null; end $$"""


INVARIANTS = (
    sound.INVARIANTS["record_gap"],
    sound.INVARIANTS["log_gap"],
    Invariant(
        "P9", "", "every run has ended or waits",
        f"select hex(id), status from run where status not in {ENDED} and status <> 'requires_action'",
    ),
    sound.INVARIANTS["wait_for_nothing"],
    Invariant("P9", "", "nobody holds a lease", "select hex(id), lease_owner from run where lease_owner <> ''"),
    sound.INVARIANTS["branch_taken"],
    sound.INVARIANTS["queue_miscounted"],
    sound.INVARIANTS["log_without_end"],
    sound.INVARIANTS["log_ended_early"],
    sound.INVARIANTS["asked_in_vain"],
    sound.INVARIANTS["inbox_left"],
    sound.INVARIANTS["end_without_time"],
    Invariant(
        "P10", "", "nobody has to look after a run that has ended, but to compact its log",
        f"select hex(r.id), d.kind from due d join run r on r.id = d.id where r.status in {ENDED} and d.kind <> 'compact'",
    ),
    Invariant(
        "P10", "", "nobody has to look after an action that was answered or closed",
        "select hex(a.id), a.status from due d join action a on a.id = d.id where d.kind = 'action' and a.status <> 'pending'",
    ),
    Invariant(
        "P10", "", "whatever somebody has to look after is there",
        "select d.kind, hex(d.id) from due d left join run r on r.id = d.id left join action a on a.id = d.id"
        " left join session s on s.id = d.id where r.id is null and a.id is null and s.id is null",
    ),
    Invariant(
        "P14", "", "a key has one run",
        "select key, count(*) from run where key <> '' group by tenant, owner, key having count(*) > 1",
    ),
    Invariant(
        "P14", "", "a run of a key is found by it",
        "select key from run r where key <> '' and not exists (select 1 from turn_key k where k.ref = r.id and k.key = r.key)",
    ),
    Invariant(
        "P15", "", "a run that completed left no step in the air",
        "select hex(r.id), s.key, s.status from run r join step s on s.run = r.id"
        " where r.status = 'completed' and s.status not in ('done', 'failed')",
    ),
    Invariant(
        "P16", "", "an approval that was spent was given",
        "select hex(id), resolution from action where status = 'used'"
        " and (kind <> 'approval' or not answers(resolution))",
    ),
    Invariant(
        "P16", "", "what an approval guards has spent it",
        "select hex(s.run), s.status from step s where s.name = 'approved'"
        " and not exists (select 1 from action a where a.run = s.run and a.name = 'approved' and a.status = 'used')",
    ),
)  # fmt: skip


def violations(store: Place) -> list[str]:
    """Every row that any of the queries finds, and what SQLite finds wrong with its file."""
    with looking(store) as ask:
        found = [
            f"{invariant.promise}: it is not so that {invariant.says}: {row}"
            for invariant in INVARIANTS
            for row in ask(invariant.finds)
        ]
    return found if isinstance(store, str) else found + damage(store)


@contextmanager
def looking(store: Place) -> Iterator[Ask]:
    """Ask a store's tables directly, all of its rows, past everything of ours. Both kinds know `hex`, and `answers`:
    whether a resolution says if it was approved."""
    if isinstance(store, str):
        with psycopg.connect(store, autocommit=True, options="-c search_path=stateroom,look") as postgres:
            postgres.execute(_WORDS)
            yield lambda sql: postgres.execute(sql.encode(), binary=True).fetchall()
        return
    db = apsw.Connection(str(store / "state.db"), flags=apsw.SQLITE_OPEN_READONLY)
    db.create_scalar_function("answers", lambda body: "approved" in msgspec.json.decode(body), 1)
    try:
        yield lambda sql: db.execute(sql).fetchall()
    finally:
        db.close()


# ── effects ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class Effects(NamedTuple):
    """Effects outside and inside by the class of their step, and what is wrong with them."""

    steps: Counter[str]  # steps that are done, by kind
    done: Counter[str]  # effects, by kind
    faults: list[str]


def effects_of(store: Place, world: World, *, secret: bytes) -> Effects:
    """The world against the record (P15): every class kept its promise, every effect has its step."""
    with looking(store) as ask:
        steps = ask("select s.run, s.key, s.name, s.status, r.status from step s join run r on r.id = s.run")
        marks = ask(
            "select session, name, count(*) from (select session, name from slot union all select session, name from slot_past) x"
            " where name like 'moved %' group by session, name"
        )
    outside, steps_done, done, faults = world.effects(), Counter[str](), Counter[str](), list[str]()
    known: dict[str, tuple[str, str]] = {}
    for run, key, name, status, run_status in steps:
        effect_key = hmac.digest(secret, run + key.encode(), hashlib.sha256).hex()
        known[effect_key] = (name, status)
        steps_done[name] += status == "done"
        faults += _wrong_with_step(name, status, run_status, times=outside[name, effect_key])
    for (kind, key), times in outside.items():
        done[kind] += times
        if key not in known and kind != "pure":
            faults.append(f"an effect of a {kind} step is in no record")
    done["transactional"] = sum(count for _, _, count in marks)
    faults += [f"{name!r} was set {count} times" for _, name, count in marks if count != 1]
    if done["transactional"] != steps_done["transactional"]:
        faults.append(f"{steps_done['transactional']} transactional steps left {done['transactional']} marks")
    return Effects(steps_done, done, faults)


def _wrong_with_step(name: str, status: str, run_status: str, *, times: int) -> list[str]:
    """One step against how often its effect happened."""
    match name, status:
        case "transactional", _:
            return []
        case (("once" | "verified" | "approved"), _) if times > 1:
            return [f"doubled: a {name} step happened {times} times"]
        case _, "done" if times == 0:
            return [f"lost: a {name} step is done and did not happen"]
    return []


# ── what the next turn would see ────────────────────────────────────────────────────────────────────────────────────


async def unsound_windows(room: Stateroom, branches: Sequence[bytes]) -> list[str]:
    """Windows that a provider would refuse: every call has one output behind it, every output its call (P17)."""
    faults = []
    for branch in branches:
        items = await room.backend.items(LOCAL, ItemQuery(branch=branch, limit=limits.READ_ITEMS_MAX))
        window = build(items, run=NIL, items_max=limits.WINDOW_ITEMS_MAX, bytes_max=limits.WINDOW_BYTES_MAX)
        faults += [f"{branch.hex()}: {fault}" for fault in unsound(window.items)]
    return faults


def unsound(items: Sequence[Mapping[str, Any]]) -> list[str]:
    """Written by itself, not with the pairing that builds windows: ids are used once here."""
    faults, waiting, answered = list[str](), set[str](), set[str]()
    for item in items:
        call = str(item.get("call_id"))
        if item.get("type") == "function_call":
            if call in waiting | answered:
                faults.append(f"{call!r} was called twice")
            waiting.add(call)
        elif item.get("type") == "function_call_output":
            if call not in waiting:
                faults.append(f"{call!r} is answered without a call, or twice")
            waiting.discard(call)
            answered.add(call)
    return faults + [f"{call!r} is not answered" for call in sorted(waiting)]


def texts(items: Sequence[Any]) -> list[str]:
    """User messages, in order, with their marks."""
    said = []
    for item in items:
        body = json.decode_trusted(item.body)
        if item.kind == "message" and item.role == "user":
            said.append(body["content"] + (f" [{item.mark}]" if item.mark else ""))
    return said
