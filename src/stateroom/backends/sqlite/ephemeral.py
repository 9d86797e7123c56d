"""The second file: what lies on ephemeral desks, written without fsync (D10).

It survives whatever happens to processes, and is thrown away whole when the machine was restarted: then nobody knows what of
it had reached the disk. `state.db` names the file that belongs to it, and the boot that it is of. One transaction spans both;
SQLite commits `state.db` first, so what may be lost is never ahead of what is durable. A process may die between the two, as
long as the fsync takes: a transaction in which some batch belongs to both files is numbered, and `state.db` keeps what it does to
the second one, until there is another. Whoever finds the second file one number behind does it again.
"""

from __future__ import annotations

import select
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import apsw
import msgspec

from stateroom import ids
from stateroom.backends.sql.tx import Row, into_lossy
from stateroom.backends.sqlite import db as files
from stateroom.clock import Clock

FILE: Final = "ephemeral.db"
_AGAIN_MS: Final = 5
_ENDINGS: Final = ("", "-wal", "-shm", "-journal")

TABLES: Final = """
create table ephemeral_session(
    tenant integer not null, home integer not null, id blob not null, version integer not null, touched_at integer not null,
    expires_at integer not null, kept_from integer not null, primary key (tenant, home, id)) without rowid;
create table ephemeral_slot(
    tenant integer not null, home integer not null, session blob not null, name text not null, version integer not null,
    kind text not null, schema text not null, origin text not null, trust integer not null, body blob, by text not null,
    run blob, at integer not null, agent text not null default '', epoch integer not null default 0,
    primary key (tenant, home, session, name));
create table ephemeral_slot_past(
    tenant integer not null, home integer not null, session blob not null, name text not null, version integer not null,
    kind text not null, schema text not null, origin text not null, trust integer not null, body blob, by text not null,
    run blob, at integer not null, agent text not null default '', epoch integer not null default 0,
    primary key (tenant, home, session, name, version));
create table ephemeral_slot_entry(
    tenant integer not null, home integer not null, session blob not null, name text not null, at integer not null,
    version integer not null, n integer not null, size integer not null, media text not null, body blob not null,
    primary key (tenant, home, session, name, at, version, n));
create table ephemeral_slot_doc(
    tenant integer not null, home integer not null, session blob not null, name text not null, version integer not null,
    body blob not null, primary key (tenant, home, session, name, version));
create table ephemeral_slot_schema(
    tenant integer not null, home integer not null, lineage blob not null, digest text not null, body text not null,
    primary key (tenant, home, lineage, digest)) without rowid;
create table ephemeral_checkpoint(
    tenant integer not null, home integer not null, session blob not null, name text not null, version integer not null,
    kind text not null, by text not null, agent text not null, run blob, branch blob, seq integer not null,
    at integer not null, primary key (tenant, home, session, name)) without rowid;
create index ephemeral_checkpoint_by_version on ephemeral_checkpoint(tenant, home, session, version, kind);
create table ephemeral_desk_beyond(
    tenant integer not null, home integer not null, session blob not null, place text not null, k1 integer not null,
    k2 integer not null, k3 integer not null, body blob not null, primary key (tenant, home, session, place, k1, k2, k3));
create table ephemeral_leaf(
    tenant integer not null, home integer not null, batch blob not null, at integer not null, body blob not null, salt blob);
create unique index ephemeral_leaf_by_batch on ephemeral_leaf(batch, tenant);
create table ephemeral_mark(name text primary key, value not null) without rowid;
"""


class Unattached(Exception):
    """This connection does not have the second file at hand, or another than the one that is named now."""


class Doubtful(Exception):
    """What was looked for may be on its way from one file to the other: look again while nobody writes."""


def named(db: apsw.Connection) -> str:
    """Which file belongs to the store; "": none yet."""
    mark = files.meta(db, "ephemeral")
    return "" if mark is None else str(mark).partition(" ")[0]


def behind(db: apsw.Connection) -> int:
    """By how many numbers the second file is behind: 0, or 1 where a commit is under way or was cut short. Anything else: it
    is not the file it was."""
    return _number(db) - _number_beside(db)


def _number(db: apsw.Connection) -> int:
    row = db.execute("select number from ephemeral_redo").fetchone()
    return 0 if row is None else int(row[0])


def _number_beside(db: apsw.Connection) -> int:
    return int(db.execute("select value from ephemeral_mark where name = 'number'").get)


def catch_up(db: apsw.Connection) -> None:
    """Inside a transaction: do again what the second file has missed. Nothing else is done, whatever is written there."""
    (given, kept) = db.execute("select number, statements from ephemeral_redo").get
    statements = msgspec.msgpack.decode(kept, type=list[tuple[str, list[list[Any]]]])
    if not all(into_lossy(sql) and ";" not in sql for sql, _ in statements):
        raise apsw.CorruptError("what is to be done again is nothing of ours")
    for sql, rows in statements:
        db.executemany(sql, rows)
    _set_number(db, given)


def number(db: apsw.Connection, statements: Sequence[tuple[str, Sequence[Row]]]) -> None:
    """At the end of a transaction whose batches belong to both files: give it its number, and keep what it does to the second."""
    given = _number(db) + 1
    db.execute("delete from ephemeral_redo")
    db.execute("insert into ephemeral_redo(number, statements) values (?, ?)", (given, msgspec.msgpack.encode(statements)))
    _set_number(db, given)


def _set_number(db: apsw.Connection, given: int) -> None:
    db.execute("update ephemeral_mark set value = ? where name = 'number'", (given,))


def attach(db: apsw.Connection, path: Path, clock: Clock, *, vfs: str | None = None) -> str:
    """Give a connection the second file, made anew when there is none that can be trusted. Its name. Whoever closes the file
    as the last one has it to himself for a moment, and SQLite waits for him no time: it is tried again."""
    for _ in range(files.BUSY_MS // _AGAIN_MS):
        try:
            return _attached(db, path, clock, vfs=vfs)
        except apsw.BusyError:
            select.poll().poll(_AGAIN_MS)
    return _attached(db, path, clock, vfs=vfs)


def _attached(db: apsw.Connection, path: Path, clock: Clock, *, vfs: str | None) -> str:
    """Nobody else looks meanwhile: who makes or takes the file holds the store's lock."""
    if any(name == "ephemeral" for _, name, _ in db.execute("pragma database_list")):
        db.execute("detach ephemeral")
    beside, lock = path.with_name(FILE), files.connect(path, vfs=vfs)
    try:
        lock.execute("begin immediate")
        name = _prepared(lock, beside, clock, vfs=vfs)
        db.execute("attach ? as ephemeral", (str(beside),))
        files.tune(db, "ephemeral", synchronous="off")
        lock.execute("commit")
        return name
    finally:
        lock.close(True)


def _prepared(lock: apsw.Connection, beside: Path, clock: Clock, *, vfs: str | None) -> str:
    """The name of the file that is there or is made now."""
    mark = str(files.meta(lock, "ephemeral") or "").split()
    if mark and _same_boot(mark, clock) and _fits(beside, mark[0], number=_number(lock), vfs=vfs):
        return mark[0]
    name = ids.salt().hex()
    _make(beside, name, vfs=vfs)
    lock.execute("delete from ephemeral_redo")
    files.set_meta(lock, "ephemeral", f"{name} {clock.boot_id()} {clock.boot_ms()}")
    return name


def _same_boot(mark: list[str], clock: Clock) -> bool:
    """Where a boot has no name, by how long it has lasted."""
    return mark[1] == clock.boot_id() and (mark[1] != "unknown" or int(mark[2]) <= clock.boot_ms())


def _fits(beside: Path, name: str, *, number: int, vfs: str | None) -> bool:
    """Whether the file is the one that is named, and as far as it should be."""
    if not beside.exists():
        return False
    try:
        db = files.connect(beside, synchronous="off", vfs=vfs)
        try:
            said = db.execute("select value from ephemeral_mark where name = 'file'").get
            return said == name and number - _number_beside(db) in (0, 1)
        finally:
            db.close(True)
    except (apsw.NotADBError, apsw.CorruptError, apsw.SQLError):
        return False


def _make(beside: Path, name: str, *, vfs: str | None) -> None:
    for ending in _ENDINGS:
        beside.with_name(beside.name + ending).unlink(missing_ok=True)
    db = files.connect(beside, synchronous="off", vfs=vfs)
    try:
        db.execute("begin immediate")
        db.execute(TABLES)
        db.execute("insert into ephemeral_mark(name, value) values ('file', ?), ('number', 0)", (name,))
        db.execute("commit")
    finally:
        db.close(True)
