"""The limit on PostgreSQL: the same turn by hand in pipelined SQL. Same tables, bytes, checks, wall and two commits.

Each transaction takes two exchanges with the server: what it must see, locked; then what it writes, with the commit.
Statements are prepared, values binary, rows that belong together go in one statement; nobody shares a connection. What it
leaves out is what a library costs: records, dispatch, receipts, typed refusals, recovery, wake-ups, the store's time.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from bench.postgres.wire import Connection, Cursors, Rows, Statement, Wire

_pack = msgspec.msgpack.Encoder().encode
P = "local"  # the principal
POOL = 16
Item = tuple[str, str, bytes]  # kind, role, body

NAME = "select set_config('stateroom.tenant', $1, true)"
KEY = "select 1 from turn_key where tenant = $1 and home = $2 and principal = $3 and operation = 'turn' and key = $4 for update"
BRANCH = "select tail, active_run, queued, owner from branch where tenant = $1 and home = $2 and id = $3 and gone = 0 for update"
DESK = (
    "select id, version from session where tenant = $1 and home = $2 and conversation = $3 and agent = 'bench'"
    " and status = 'active' for update"
)
RUN = (
    "select conversation, session, status, fence, in_lo, in_hi, head, due_at, owner from run"
    " where tenant = $1 and home = $2 and id = $3 for update"
)

NEW_KEY = (
    "insert into turn_key(tenant, home, principal, operation, key, fingerprint, ref, at)"
    " values ($1, $2, $3, 'turn', $4, $5, $6, $7)"
)
NEW_DESK = (
    "insert into session(tenant, home, id, owner, subject, conversation, agent, lineage, metadata, created_at, touched_at)"
    " values ($1, $2, $3, $4, $4, $5, 'bench', $3, '\\x7b7d', $6, $6)"
)
NEW_ITEMS = (
    "insert into item(tenant, home, branch, seq, id, run, kind, role, origin, trust, mark, at, body)"
    " select $1, $2, $3, $4 + n, id, $5, kind, role, $6, $7, '', $8, body"
    " from unnest($9::bytea[], $10::text[], $11::text[], $12::bytea[]) with ordinality as new(id, kind, role, body, n)"
)
LEASE = "insert into due(kind, at, tenant, id) values ('lease', $1, $2, $3)"
LEASE_ENDS = "delete from due where kind = 'lease' and at = $1 and tenant = $2 and id = $3"
NEW_LOG = "insert into run_log(tenant, home, run, first, count, kind, body, at) values ($1, $2, $3, $4, $5, $6, '', $7)"
NEW_RUN = (
    "insert into run(tenant, home, id, conversation, branch, session, agent, owner, subject, status, fence, lease_owner,"
    " lease_until, in_lo, in_hi, head, options, usage, error, created_at, started_at, due_at)"
    " values ($1, $2, $3, $4, $4, $5, 'bench', $6, $6, 'in_progress', 1, 'hand-000000000000', $7, $8, $9, 2, '\\x7b7d', '', '',"
    " $10, $10, $7)"
)
TAKEN = "update branch set tail = $4, active_run = $5 where tenant = $1 and home = $2 and id = $3"
PAST = (
    "insert into slot_past(tenant, home, session, name, version, kind, schema, origin, trust, body, by, run, at)"
    " select tenant, home, session, name, version, kind, schema, origin, trust, body, by, run, at from slot"
    " where tenant = $1 and home = $2 and session = $3 and name = any($4)"
)
PUT_SLOTS = (
    "insert into slot(tenant, home, session, name, version, kind, schema, origin, trust, body, by, run, at)"
    " select $1, $2, $3, name, $4, 'value', '', 'agent:bench', 50, body, $5, $6, $7"
    " from unnest($8::text[], $9::bytea[]) as new(name, body)"
    " on conflict(tenant, home, session, name) do update set version = excluded.version, body = excluded.body,"
    " run = excluded.run, at = excluded.at"
)
TOUCHED = "update session set version = $4, touched_at = $5 where tenant = $1 and home = $2 and id = $3"
RUN_ENDS = (
    "update run set status = 'completed', lease_owner = '', lease_until = 0, out_hi = $4, head = $5, finished_at = $6,"
    " due_at = 0 where tenant = $1 and home = $2 and id = $3"
)
FREE = "update branch set tail = $4, active_run = null, last_run = $5 where tenant = $1 and home = $2 and id = $3"
LEAF = "insert into leaf(tenant, home, batch, at, body, salt) values ($1, $2, $3, $4, $5, $6)"
NEWEST = "select body from item where tenant = $1 and home = $2 and branch = $3 order by seq desc limit $4"
DESK_SLOTS = (
    "select slot.name, slot.body from slot join session on slot.session = session.id and slot.home = session.home"
    " and slot.tenant = session.tenant where session.tenant = $1 and session.home = $2 and session.conversation = $3"
    " and session.agent = 'bench' and session.status = 'active'"
)


def new_id(home: int, at: int) -> bytes:
    return home.to_bytes(2, "big") + at.to_bytes(6, "big") + os.urandom(8)


def home_of(id_: bytes) -> int:
    return id_[0] << 8 | id_[1]


class Client:
    """One connection, and the turn on it."""

    def __init__(self, db: Connection, tenant: int) -> None:
        self.db, self.tenant = db, tenant

    @classmethod
    async def open(cls, url: str, tenant: str = "local", *, cursors: bool = False) -> Client:
        db = await Cursors.open(url) if cursors else Wire(url)
        await db.exchange(("insert into tenant(name) values ($1) on conflict do nothing", (tenant,)))
        ((row,),) = await db.exchange(("select number from tenant where name = $1", (tenant,)))
        return cls(db, row[0])

    @asynccontextmanager
    async def undone(self) -> AsyncIterator[None]:
        """A transaction that is refused leaves nothing."""
        try:
            yield
        except BaseException:
            await self.db.exchange(("rollback", ()))
            raise

    @property
    def begin(self) -> tuple[Statement, Statement]:
        """A transaction, and whose rows it may touch."""
        return ("begin", ()), (NAME, (str(self.tenant),))

    async def conversation(self, at: int) -> bytes:
        id_ = new_id(int.from_bytes(os.urandom(2), "big"), at)
        place = (self.tenant, home_of(id_), id_)
        head = (
            "insert into conversation(tenant, home, id, owner, subject, kind, metadata, created_at)"
            " values ($1, $2, $3, $4, $4, 'managed', '\\x7b7d', $5)"
        )
        branch = "insert into branch(tenant, home, id, conversation, owner) values ($1, $2, $3, $3, $4)"
        await self.db.exchange(*self.begin, (head, (*place, P, at)), (branch, (*place, P)), ("commit", ()))
        return id_

    async def accept(self, conv: bytes, key: str, inputs: Sequence[Item], at: int) -> bytes:
        """First transaction. Returns the run's id."""
        home, t = home_of(conv), self.tenant
        run, batch, place = new_id(home, at), new_id(home, at), (t, home, conv)
        content = b"".join(body for _, _, body in inputs)
        digest = hashlib.sha256(content).digest()[:16]
        key_place = (t, int.from_bytes(hashlib.sha256(f"local\0{P}\0{key}".encode()).digest()[:2], "big"), P, key)
        async with self.undone():
            _, _, known, head, desk = await self.db.exchange(*self.begin, (KEY, key_place), (BRANCH, place), (DESK, place))
            if known:
                raise KeyError(key)
            tail, active, queued, owner = one(head)
            if owner != P or active is not None or queued:
                raise RuntimeError("busy")
            session = desk[0][0] if desk else new_id(home, at)
            made = [] if desk else [(NEW_DESK, (t, home, session, P, conv, at))]
            after = tail + len(inputs)
            await self.db.exchange(
                (NEW_KEY, (*key_place, digest, run, at)),
                *made,
                *self.items(conv, tail, run, inputs, origin="user", trust=60, at=at),
                (LEASE, (at + 30_000, t, run)),
                (NEW_LOG, (t, home, run, 1, 2, "opened", at)),
                (NEW_RUN, (t, home, run, conv, session, P, at + 30_000, tail, after, at)),
                (TAKEN, (*place, after, run)),
                self.leaf(home, batch, at, content),
                ("commit", ()),
            )
        return run

    async def finish(self, run: bytes, conv: bytes, outputs: Sequence[Item], slots: dict[str, bytes], at: int) -> None:
        """Second transaction. Its worker knows the conversation; that the run is its own is checked."""
        home, t = home_of(run), self.tenant
        place, at_head = (t, home, run), (t, home, conv)
        async with self.undone():
            _, _, head, row, desk = await self.db.exchange(*self.begin, (BRANCH, at_head), (RUN, place), (DESK, at_head))
            tail, active, _, _ = one(head)
            mine, session, status, fence, _, _, number, due_at, owner = one(row)
            if (mine, active, owner, status, fence) != (conv, run, P, "in_progress", 1):
                raise RuntimeError("fence")
            desk_id, version = one(desk)
            if desk_id != session:
                raise RuntimeError("desk")
            after, events = tail + len(outputs), 6 * len(outputs) + 1
            spot = (t, home, session)
            patched = [
                (PAST, (*spot, tuple(slots))),
                (PUT_SLOTS, (*spot, version + 1, P, run, at, tuple(slots), tuple(slots.values()))),
                (TOUCHED, (*spot, version + 1, at)),
            ]
            await self.db.exchange(
                *(patched if slots else ()),
                (LEASE_ENDS, (due_at, t, run)),
                *self.items(conv, tail, run, outputs, origin="agent", trust=50, at=at),
                (NEW_LOG, (t, home, run, number + 1, events, "end", at)),
                (RUN_ENDS, (*place, after, number + events, at)),
                (FREE, (*at_head, after, run)),
                self.leaf(home, new_id(home, at), at, b"".join(body for _, _, body in outputs)),
                ("commit", ()),
            )

    async def hydrate(self, conv: bytes, count: int = 50) -> list[object]:
        """The newest items and the slots, parsed: what a turn needs before anybody can answer."""
        place = (self.tenant, home_of(conv), conv)
        _, _, newest, desk, _ = await self.db.exchange(
            *self.begin, (NEWEST, (*place, count)), (DESK_SLOTS, place), ("commit", ())
        )
        return [msgspec.json.decode(body) for (body,) in newest[::-1]] + [msgspec.json.decode(body) for _, body in desk]

    def items(
        self, conv: bytes, tail: int, run: bytes, items: Sequence[Item], *, origin: str, trust: int, at: int
    ) -> list[Statement]:
        """One statement for all of them, if there are any."""
        if not items:
            return []
        home = home_of(conv)
        ids = tuple(new_id(home, at) for _ in items)
        return [(NEW_ITEMS, (self.tenant, home, conv, tail, run, origin, trust, at, ids, *zip(*items, strict=True)))]

    def leaf(self, home: int, batch: bytes, at: int, body: bytes) -> Statement:
        salt = os.urandom(16)
        digest = hmac.digest(salt, body, hashlib.sha256)
        return LEAF, (self.tenant, home, batch, at, _pack((1, P, [("AcceptTurn", batch)], digest)), salt)


def one(rows: Rows) -> tuple[Any, ...]:
    if not rows:
        raise RuntimeError("missing")
    return rows[0]


class Pool:
    """Connections that clients take turns with."""

    def __init__(self, clients: Sequence[Client]) -> None:
        self.all, self.free = clients, asyncio.Queue[Client]()
        for client in clients:
            self.free.put_nowait(client)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        client = await self.free.get()
        try:
            yield client
        finally:
            self.free.put_nowait(client)

    async def close(self) -> None:
        for client in self.all:
            await client.db.close()
