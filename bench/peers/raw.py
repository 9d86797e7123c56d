"""The least that could be written by hand: one table of items under one integer key, a state row, one commit a turn."""

from __future__ import annotations

from collections.abc import Sequence

import apsw
import msgspec

from bench.peers.base import Peer
from bench.peers.replay import Items, Turn

SCHEMA = """
create table item(place integer primary key, body blob not null);
create table conversation(id integer primary key, tail integer not null, state blob not null);
"""
NEWEST = "select body from item where place >= ? and place < ? order by place desc limit 50"
PUT = "insert into conversation values (?, ?, ?) on conflict(id) do update set tail = excluded.tail, state = excluded.state"

encode, decode = msgspec.json.encode, msgspec.json.decode


class Raw(Peer):
    stores = "items, state as one value; no run, no key, no versions"
    survives = "power cut; WAL, synchronous=FULL; a crash before the end loses the input too"

    async def open(self) -> None:
        self.db = apsw.Connection(str(self.folder / "raw.db"))
        self.db.execute("pragma journal_mode=wal").fetchall()
        self.db.execute("pragma synchronous=full")
        self.db.execute(SCHEMA)
        self.ids: dict[str, int] = {}
        self.commits = 0

    async def turn(self, conversation: str, turn: Turn) -> None:
        id_ = self.ids.setdefault(conversation, len(self.ids))
        [decode(body) for (body,) in self.db.execute(NEWEST, (id_ << 32, id_ + 1 << 32))]
        tail, state = self.db.execute("select tail, state from conversation where id = ?", (id_,)).fetchone() or (0, b"{}")
        self.add(id_, tail, turn.items, encode({**decode(state), **turn.delta}))

    def add(self, id_: int, tail: int, items: Items, state: bytes) -> None:
        self.db.execute("begin immediate")
        self.db.executemany("insert into item values (?, ?)", [((id_ << 32) + tail + n, encode(i)) for n, i in enumerate(items)])
        self.db.execute(PUT, (id_, tail + len(items), state))
        self.db.execute("commit")
        self.commits += 1

    async def fill(self, conversation: str, turns: Sequence[Turn]) -> None:
        id_ = self.ids.setdefault(conversation, len(self.ids))
        self.add(id_, 0, [item for turn in turns for item in turn.items], encode(turns[-1].state))

    async def kept(self, conversation: str) -> int:
        id_ = self.ids[conversation]
        return int(self.db.execute("select count(*) from item where place >= ? and place < ?", (id_ << 32, id_ + 1 << 32)).get)

    async def close(self) -> None:
        self.db.close()
