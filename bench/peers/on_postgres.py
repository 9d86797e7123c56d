"""The same on one PostgreSQL server, each in a database of its own. The comparison says where it is in `BENCH_POSTGRES`."""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import msgspec
import psycopg

from bench.peers.base import Peer
from bench.peers.ours import Stateroom as OnSqlite
from bench.peers.replay import Items, Turn
from bench.postgres.wire import Wire
from stateroom.backends.postgres.backend import PostgresBackend
from stateroom.backends.postgres.migrate import migrate

SERVER = "BENCH_POSTGRES"
POWER_CUT = "power cut; fsync, synchronous_commit=on"
encode, decode = msgspec.json.encode, msgspec.json.decode


class Database:
    """A new one, and what has happened in it."""

    def __init__(self, folder: Path) -> None:
        self.name = f"peer_{zlib.crc32(str(folder).encode()):08x}"
        self.ask(f'create database "{self.name}"', database="postgres")
        self.size = 0

    def url(self, *, database: str = "", user: str = "postgres", scheme: str = "postgresql") -> str:
        parts = urlsplit(os.environ[SERVER])
        return urlunsplit(parts._replace(scheme=scheme, netloc=f"{user}@", path=f"/{database or self.name}"))

    def ask(self, sql: str, database: str = "") -> Any:
        with psycopg.connect(self.url(database=database), autocommit=True) as db:
            done = db.execute(sql.encode())
            return done.fetchone()[0] if done.description else None  # type: ignore[index]

    def settled(self) -> None:
        """What lies in it so far is not the turns'."""
        self.size = self.ask("select pg_database_size(current_database())")

    def grown(self) -> int:
        return int(self.ask("select pg_database_size(current_database())")) - self.size

    @property
    def writes(self) -> int:
        """Transactions of the whole server that wrote something, so far."""
        return int(self.ask("select pg_snapshot_xmax(pg_current_snapshot())::text"))


class InDatabase(Peer):
    """A peer whose folder stays empty."""

    async def open(self) -> None:
        self.database = Database(self.folder)
        await super().open()
        self.database.settled()

    @property
    def commits(self) -> int:  # type: ignore[override]
        return self.database.writes

    def disk(self) -> int:
        return self.database.grown()


class Stateroom(InDatabase, OnSqlite):
    survives = f"{POWER_CUT}, twice a turn: the input before the agent starts, the answer before it is told"

    commits = OnSqlite.commits  # type: ignore[assignment]  # what it tells other workers is no commit

    async def store(self) -> PostgresBackend:  # type: ignore[override]
        migrate(self.database.url(), say=lambda _: None)
        return await PostgresBackend.open(self.database.url(user="stateroom_app"))


class Raw(InDatabase):
    """The least that could be written by hand: rows of items under their key, a state row, one commit a turn."""

    stores = "items, state as one value; no run, no key, no versions"
    survives = f"{POWER_CUT}; a crash before the end loses the input too"

    async def open(self) -> None:
        await super().open()
        self.db, self.ids = Wire(self.database.url()), dict[str, int]()
        item = "create table item(conversation bigint, seq bigint, body bytea not null, primary key (conversation, seq))"
        head = "create table conversation(id bigint primary key, tail bigint not null, state bytea not null)"
        await self.db.exchange((item, ()), (head, ()))
        self.database.settled()

    async def turn(self, conversation: str, turn: Turn) -> None:
        id_ = self.ids.setdefault(conversation, len(self.ids))
        newest, head = await self.db.exchange(
            ("select body from item where conversation = $1 order by seq desc limit 50", (id_,)),
            ("select tail, state from conversation where id = $1", (id_,)),
        )
        [decode(body) for (body,) in newest]
        tail, state = head[0] if head else (0, b"{}")
        await self.add(id_, tail, turn.items, encode({**decode(state), **turn.delta}))

    async def add(self, id_: int, tail: int, items: Items, state: bytes) -> None:
        put = "insert into conversation values ($1, $2, $3) on conflict(id) do update set tail = excluded.tail, state = excluded.state"
        new = "insert into item select $1, $2 + n, body from unnest($3::bytea[]) with ordinality as new(body, n)"
        await self.db.exchange(
            ("begin", ()), (new, (id_, tail, tuple(map(encode, items)))), (put, (id_, tail + len(items), state)), ("commit", ())
        )

    async def fill(self, conversation: str, turns: Sequence[Turn]) -> None:
        id_ = self.ids.setdefault(conversation, len(self.ids))
        await self.add(id_, 0, [item for turn in turns for item in turn.items], encode(turns[-1].state))

    async def kept(self, conversation: str) -> int:
        ((row,),) = await self.db.exchange(("select count(*) from item where conversation = $1", (self.ids[conversation],)))
        return int(row[0])

    async def close(self) -> None:
        await self.db.close()
