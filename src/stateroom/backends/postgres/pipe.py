"""One connection in pipeline mode: many statements on their way at once, one wait for all of them.

psycopg's cursors cost more per statement than the server takes to run it. This is the part that a store needs: prepared
statements, binary values, errors as SQLSTATEs, and a time after which a connection that says nothing counts as lost.
"""

from __future__ import annotations

import re
import select
import struct
from collections import deque
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, TypeAlias

import psycopg
from psycopg import pq
from psycopg.adapt import Transformer

from stateroom import ids
from stateroom.backends.sql.tx import Row
from stateroom.errors import InvalidInput, Unavailable

_ROWS, _DONE = pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK
_INT8, _BYTEA, _TEXT = 20, 17, 25
_pack = struct.Struct(">q").pack
_MARK = re.compile(r"\?(\d*)")
_BYTES = re.compile(r"x'([0-9a-f]*)'")


_UNSEALED = ("begin", "rollback")  # nothing may come before the one, and before the other nothing would run
Encoded: TypeAlias = tuple[list[bytes | None], Row]  # values in PostgreSQL's binary format, and as they are


class Lost(Exception):
    """The connection is gone or silent. What was on its way may have happened or not."""


class Refused(Exception):
    """The server refused a statement; the transaction is over. `state` is its SQLSTATE. `fatal`: the connection too."""

    def __init__(self, state: str, message: str, *, fatal: bool = False) -> None:
        super().__init__(f"{message} ({state})")
        self.state, self.fatal = state, fatal


class Pipe:
    """Statements are sent as they come; `gather` waits for everything since the last one. One thread at a time."""

    def __init__(self, conninfo: str, *, prepare: bool = True, connect_s: float = 5.0, silent_s: float = 8.0) -> None:
        """`prepare`: whether the connection stays with one server process (behind a pooler it may not). `silent_s`: how
        long the server may take to answer."""
        self._prepare, self._silent_s = prepare, silent_s
        try:
            self._connection = psycopg.connect(
                conninfo, autocommit=True, client_encoding="utf8", connect_timeout=max(2, int(connect_s))
            )
        except psycopg.OperationalError as error:
            raise lost_or_denied(str(error).strip()) from error
        self._pg = self._connection.pgconn
        self._pg.nonblocking = 1
        self._pg.enter_pipeline_mode()
        self._poll = select.poll()
        self._names: dict[str, bytes] = {}
        self._named = 0
        self._expected: deque[str | None] = deque()  # what answers will come: None for rows, else what was prepared
        self._loads = Transformer(self._connection)
        self._sealed, self._seal_at = b"", 0  # what an answer of the present exchange must be, and which
        self._posted = 0  # statements and …
        self._owed = 0  # … exchanges whose answers nobody has waited for
        self.waits = 0  # round trips so far

    @property
    def server_version(self) -> int:
        """180006 for 18.6."""
        return self._pg.server_version

    @property
    def pid(self) -> int:
        """The server process behind it."""
        return self._pg.backend_pid

    def fileno(self) -> int:
        """What is readable when the server says something."""
        return self._pg.socket

    def notices(self) -> list[tuple[int, str]]:
        """Notifications that have come in: the server process of who sent it, and what it says."""
        try:
            self._pg.consume_input()
            found = iter(self._pg.notifies, None)
            return [(notice.be_pid, notice.extra.decode()) for notice in found if notice is not None]
        except psycopg.OperationalError as error:
            raise Lost(str(error).strip()) from error

    def close(self) -> None:
        self._connection.close()

    def send(self, sql: str, values: Row = ()) -> None:
        """Put a statement on its way; `gather` brings its rows."""
        self.put(sql, encode(values))

    def put(self, sql: str, encoded: Encoded) -> None:
        """`send` for values that are encoded already: nothing can be wrong with them any more."""
        params, values = encoded
        formats = _FORMATS[: len(params)]
        if not self._prepare:
            if not self._expected and not sql.startswith(_UNSEALED):
                self._seal()
            self._pg.send_query_params(dollars(sql).encode(), params, types_of(values), formats, 1)
        else:
            name = self._names.get(sql)
            if name is None:
                self._named += 1
                name = self._names[sql] = f"s{self._named}".encode()
                self._pg.send_prepare(name, dollars(sql).encode(), types_of(values))
                self._expected.append(sql)
            self._pg.send_query_prepared(name, params, formats, 1)
        self._expected.append(None)
        if not self._prepare and sql.startswith("begin"):
            self._seal()

    def _seal(self) -> None:
        """Behind a pooler, an exchange has a question that nobody else asks: whoever hears another answer has a server that
        somebody left in the middle, and must not take his rows for its own."""
        self._sealed, self._seal_at = ids.salt(), len(self._expected)
        self._pg.send_query_params(b"select $1", [self._sealed], [_BYTEA], [1], 1)
        self._expected.append(None)

    def ask(self, sql: str, values: Row = ()) -> list[Row]:
        """Send one statement and wait for its rows."""
        self.send(sql, values)
        return self.gather()[-1]

    def post(self, sql: str) -> None:
        """Send a statement that nobody waits for; its answer is read with the next one's. Behind a pooler it is waited for:
        some give a server away while an answer is still to come, and then it is somebody else who gets that."""
        if not self._prepare:
            self.ask(sql)
            return
        self.send(sql)
        self._pg.pipeline_sync()
        self._pg.flush()
        self._posted, self._owed = self._posted + 1, self._owed + 1

    def gather(self) -> list[list[Row]]:
        """The rows of every statement sent since the last time, in order. Refused carries the first error; nothing that
        was sent after it has run."""
        try:
            self._pg.pipeline_sync()
            results = self._receive()
        except psycopg.OperationalError as error:
            raise Lost(str(error).strip()) from error
        return self._read(results)

    def _receive(self) -> list[pq.abc.PGresult]:
        self.waits += 1
        pg, results = self._pg, list[pq.abc.PGresult]()
        owed, self._owed, unsent, nothing = self._owed, 0, pg.flush(), False
        while True:
            while not pg.is_busy():
                result = pg.get_result()
                if result is None:  # the end of one statement's answer; two in a row: there is nothing to wait for
                    if nothing or pg.status == pq.ConnStatus.BAD:
                        raise Lost("The connection broke.")
                    nothing = True
                    continue
                nothing = False
                if result.status != pq.ExecStatus.PIPELINE_SYNC:
                    results.append(result)
                elif owed == 0:
                    return results
                else:
                    owed -= 1
            self._wait(writing=bool(unsent))
            pg.consume_input()
            if unsent:
                unsent = pg.flush()

    def _wait(self, *, writing: bool) -> None:
        self._poll.register(self._pg.socket, select.POLLIN | (select.POLLOUT if writing else 0))
        if not self._poll.poll(self._silent_s * 1000):
            raise Lost(f"The server has not answered for {self._silent_s:g} s.")

    def _read(self, results: list[pq.abc.PGresult]) -> list[list[Row]]:
        found, refused = list[list[Row]](), None
        for prepared, result in zip(self._expected, results, strict=False):
            status = result.status
            if status == _ROWS:
                found.append(self._rows(result))
            elif status == _DONE:
                if prepared is None:
                    found.append([])
            else:
                if prepared is not None:
                    self._names.pop(prepared, None)
                if refused is None and status == pq.ExecStatus.FATAL_ERROR:
                    refused = refusal(result)
        self._expected.clear()
        if self._sealed:
            sealed, self._sealed = self._sealed, b""
            if found[self._seal_at : self._seal_at + 1] != [[(sealed,)]]:
                raise Lost("The pooler gave us a server that somebody else had not done with.")
            del found[self._seal_at : self._seal_at + 1]
        posted, self._posted = self._posted, 0
        if refused is None:
            return found[posted:]
        self._names = {sql: name for sql, name in self._names.items() if refused.state not in ("26000", "42P05")}
        if (
            self._pg.status == pq.ConnStatus.BAD
            or refused.fatal
            or (refused.state[:2] in ("57", "08") and refused.state != "57014")
        ):
            raise Lost(str(refused))
        raise refused

    def _rows(self, result: pq.abc.PGresult) -> list[Row]:
        count = result.ntuples
        if not count:
            return []
        self._loads.set_pgresult(result)
        return self._loads.load_rows(0, count, tuple)


# What a server, or a pooler before it, says to somebody it will never let in. Whatever else it says may pass.
_DENIED = (
    "no password supplied", "authentication failed", "pg_hba.conf", "does not exist", "no such user", "no such database",
    "permission denied", "not permitted to log in", "does not accept", "not currently accepting connections",
)  # fmt: skip


def lost_or_denied(message: str) -> Lost | Unavailable:
    """Why there is no connection: Unavailable when the server said no for good, as to a wrong password."""
    if any(word in message for word in _DENIED):
        why = message.rpartition("FATAL:")[2].strip()
        return Unavailable(f"The database turns this worker away. FATAL: {why}.", code="store_denied")
    return Lost(message)


def encode(values: Row) -> Encoded:
    """Values as PostgreSQL's binary format. InvalidInput for a number or a text that it cannot hold. Called for every
    statement: the kinds are asked for in the order of how often they come."""
    try:
        return [
            _pack(value) if (kind := type(value)) is int
            else value if kind is bytes
            else text(value) if kind is str
            else None if value is None
            else _pack(value)
            for value in values
        ], values  # fmt: skip
    except struct.error as error:
        raise InvalidInput("A number lies beyond 64 bits.", code="integer_too_large") from error


def types_of(values: Row) -> list[int]:
    """Integers are bigint; what is absent is an absent id, or a body that is gone."""
    return [_TYPES[type(value)] for value in values]


def text(value: str) -> bytes:
    """PostgreSQL has no text with a zero character in it."""
    if "\0" in value:
        raise InvalidInput("A name, key or type has a zero character in it.", code="text_invalid")
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput("A name, key or type has half a character in it.", code="text_invalid") from error


_FORMATS: Final = [1] * 65_535  # everything is binary; PostgreSQL takes no more values than that
_TYPES: Final[Mapping[type, int]] = {bytes: _BYTEA, int: _INT8, bool: _INT8, str: _TEXT, type(None): _BYTEA}


def refusal(result: pq.abc.PGresult) -> Refused:
    state = result.error_field(pq.DiagnosticField.SQLSTATE) or b"XX000"
    message = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"unknown error"
    fatal = result.error_field(pq.DiagnosticField.SEVERITY_NONLOCALIZED) in (b"FATAL", b"PANIC")
    return Refused(state.decode(), message.decode(errors="replace"), fatal=fatal)


@lru_cache(maxsize=1024)
def dollars(sql: str) -> str:
    """A shared statement as PostgreSQL writes it: `$1` for `?`, bytes as bytea."""
    count = iter(range(1, 10_000))
    numbered = _MARK.sub(lambda mark: f"${mark[1] or next(count)}", sql)
    return _BYTES.sub(lambda literal: f"'\\x{literal[1]}'::bytea", numbered)
