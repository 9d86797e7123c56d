"""How the hand-written side talks to PostgreSQL: prepared statements with binary values, one exchange for many of them.

`Wire` is libpq's pipeline mode on the event loop with nothing in between, the least that Python can do; `Cursors` is the
same with psycopg's own cursors, which most people would take.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import psycopg
from psycopg import pq
from psycopg.types.numeric import Int8BinaryDumper
from psycopg.types.string import StrBinaryDumper

Statement = tuple[str, Sequence[Any]]
Rows = list[tuple[Any, ...]]
_INT8, _BYTEA, _TEXT, _BYTEAS, _TEXTS = 20, 17, 25, 1001, 1009
_pack = struct.Struct(">q").pack


class Connection(Protocol):
    async def exchange(self, *statements: Statement) -> list[Rows]:
        """All of them in one exchange, in order, with their rows. psycopg.Error when one is refused; none after it ran."""

    async def close(self) -> None: ...


class Wire:
    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)
        self._pg = self._connection.pgconn
        self._pg.nonblocking = 1
        self._pg.enter_pipeline_mode()
        self._names: dict[str, bytes] = {}
        self._wanted: list[bool] = []  # of each answer under way: whether it has rows for the caller
        self._results: list[pq.abc.PGresult] = []
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Future[None] | None = None
        self._loop.add_reader(self._pg.socket, self._readable)

    async def close(self) -> None:
        self._loop.remove_reader(self._pg.socket)
        self._connection.close()

    async def exchange(self, *statements: Statement) -> list[Rows]:
        for sql, values in statements:
            self._send(sql, values)
        self._pg.pipeline_sync()
        self._waiting = self._loop.create_future()
        while self._pg.flush():  # more than the socket takes at once: seldom
            await asyncio.sleep(0)
        await self._waiting
        results, self._results = self._results, []
        wanted, self._wanted = self._wanted, []
        for result in results:
            if result.status == pq.ExecStatus.FATAL_ERROR:
                raise psycopg.errors.error_from_result(result)
        return [rows(result) for want, result in zip(wanted, results, strict=True) if want]

    def _send(self, sql: str, values: Sequence[Any]) -> None:
        params, types = [], []
        for value in values:
            param, oid = encode(value)
            params.append(param)
            types.append(oid)
        name = self._names.get(sql)
        if name is None:
            name = self._names[sql] = b"s%d" % len(self._names)
            self._pg.send_prepare(name, sql.encode(), types)
            self._wanted.append(False)
        self._pg.send_query_prepared(name, params, [1] * len(params), 1)
        self._wanted.append(True)

    def _readable(self) -> None:
        waiting, ends = self._waiting, 0
        try:
            self._pg.consume_input()
            while ends < 2 and not self._pg.is_busy():
                result = self._pg.get_result()
                if result is None:  # after each statement's results; twice when nothing is under way
                    ends += 1
                elif result.status == pq.ExecStatus.PIPELINE_SYNC:
                    ends = 2
                    if waiting is not None and not waiting.done():
                        waiting.set_result(None)
                else:
                    ends = 0
                    self._results.append(result)
        except psycopg.Error as error:
            self._loop.remove_reader(self._pg.socket)
            if waiting is not None and not waiting.done():
                waiting.set_exception(error)


class Cursors:
    def __init__(self, db: psycopg.AsyncConnection[Any]) -> None:
        self._db = db

    @classmethod
    async def open(cls, url: str) -> Cursors:
        db = await psycopg.AsyncConnection.connect(url, autocommit=True, cursor_factory=psycopg.AsyncRawCursor)
        db.adapters.register_dumper(int, Int8BinaryDumper)
        db.adapters.register_dumper(str, StrBinaryDumper)
        return cls(db)

    async def close(self) -> None:
        await self._db.close()

    async def exchange(self, *statements: Statement) -> list[Rows]:
        async with self._db.pipeline():
            cursors = [await self._db.execute(sql, plain(values), prepare=True, binary=True) for sql, values in statements]
        return [await cursor.fetchall() if cursor.description else [] for cursor in cursors]


def plain(values: Sequence[Any]) -> list[Any]:
    """As psycopg takes them: a tuple would be a record."""
    return [list(value) if isinstance(value, tuple) else value for value in values]


def encode(value: Any) -> tuple[bytes, int]:
    """A value in PostgreSQL's binary format, and its type."""
    if isinstance(value, bytes):
        return value, _BYTEA
    if isinstance(value, int):
        return _pack(value), _INT8
    if isinstance(value, str):
        return value.encode(), _TEXT
    assert isinstance(value, tuple), value
    if value and isinstance(value[0], bytes):
        return array(_BYTEA, value), _BYTEAS
    return array(_TEXT, [each.encode() for each in value]), _TEXTS


def array(oid: int, values: Sequence[bytes]) -> bytes:
    if not values:
        return struct.pack(">iii", 0, 0, oid)
    parts = [struct.pack(">iiiii", 1, 0, oid, len(values), 1)]
    for value in values:
        parts += (struct.pack(">i", len(value)), value)
    return b"".join(parts)


def rows(result: pq.abc.PGresult) -> Rows:
    columns = range(result.nfields)
    decoders = [_DECODERS.get(result.ftype(column), bytes) for column in columns]
    value = result.get_value
    return [
        tuple(None if (raw := value(row, column)) is None else decoders[column](raw) for column in columns)
        for row in range(result.ntuples)
    ]


def _integer(raw: bytes) -> int:
    return int.from_bytes(raw, "big", signed=True)


_DECODERS: dict[int, Callable[[bytes], Any]] = {_INT8: _integer, 23: _integer, _TEXT: bytes.decode}
