"""The limit: the same turn written by hand in SQL. Same tables, bytes, checks and two commits; no product around it.

What it leaves out is what a library costs: records, dispatch, receipts, typed refusals, caches, wake-ups.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import queue
import threading
from pathlib import Path

import apsw
import msgspec

from stateroom.backends.sqlite import schema

_pack = msgspec.msgpack.Encoder().encode
T, P = 1, "local"  # the tenant's number, the principal


def connect(path: Path) -> apsw.Connection:
    db = apsw.Connection(str(path), statementcachesize=256)
    db.set_busy_timeout(10_000)
    db.execute("pragma journal_mode=wal").fetchall()
    db.execute("pragma synchronous=full")
    db.execute("pragma secure_delete=on").fetchall()
    return db


def make(path: Path) -> apsw.Connection:
    db = connect(path)
    db.execute(schema.BASE)
    for migration in schema.MIGRATIONS:
        db.execute(migration.script)
    db.execute("insert into tenant(number, name) values (1, 'local')")
    return db


def new_id(home: int, at: int) -> bytes:
    return home.to_bytes(2, "big") + at.to_bytes(6, "big") + os.urandom(8)


def leaf(db: apsw.Connection, home: int, batch: bytes, at: int, body: bytes) -> None:
    salt = os.urandom(16)
    digest = hmac.digest(salt, body, hashlib.sha256)
    db.execute(
        "insert into leaf(tenant, home, batch, at, body, salt) values (?, ?, ?, ?, ?, ?)",
        (T, home, batch, at, _pack((1, P, [("AcceptTurn", batch)], digest)), salt),
    )


def new_conversation(db: apsw.Connection, at: int) -> bytes:
    id_ = new_id(int.from_bytes(os.urandom(2), "big"), at)
    home = id_[0] << 8 | id_[1]
    db.execute("begin immediate")
    db.execute(
        "insert into conversation(tenant, home, id, owner, subject, kind, metadata, created_at) values (?, ?, ?, ?, ?, ?, ?, ?)",
        (T, home, id_, P, P, "managed", b"{}", at),
    )
    db.execute("insert into branch(tenant, home, id, conversation, owner) values (?, ?, ?, ?, ?)", (T, home, id_, id_, P))
    db.execute("commit")
    return id_


INSERT_ITEM = (
    "insert into item(tenant, home, branch, seq, id, run, kind, role, origin, trust, mark, at, body)"
    " values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, '', ?, ?)"
)
INSERT_LOG = "insert into run_log(tenant, home, run, first, count, kind, body, at) values (?, ?, ?, ?, ?, ?, ?, ?)"


def accept(db: apsw.Connection, conv: bytes, key: str, inputs: list[tuple[str, str, bytes]], at: int) -> bytes:
    """First transaction, without begin and commit. Returns the run's id."""
    home = conv[0] << 8 | conv[1]
    run, batch = new_id(home, at), new_id(home, at)
    digest = hashlib.sha256(b"".join(body for _, _, body in inputs)).digest()[:16]
    key_home = int.from_bytes(hashlib.sha256(f"local\0{P}\0{key}".encode()).digest()[:2], "big")
    place = (T, key_home, P, "turn", key)
    if db.execute(
        "select fingerprint, ref, at from turn_key where tenant = ? and home = ? and principal = ? and operation = ? and key = ?",
        place,
    ).fetchone():
        raise KeyError(key)
    db.execute(
        "insert into turn_key(tenant, home, principal, operation, key, fingerprint, ref, at) values (?, ?, ?, ?, ?, ?, ?, ?)",
        (*place, digest, run, at),
    )
    tail, active, queued, owner = db.execute(
        "select tail, active_run, queued, owner from branch where tenant = ? and home = ? and id = ? and gone = 0",
        (T, home, conv),
    ).fetchone()
    if owner != P or active is not None or queued:
        raise RuntimeError("busy")
    found = db.execute(
        "select id, version, status from session where tenant = ? and home = ? and conversation = ? and agent = ?",
        (T, home, conv, "bench"),
    ).fetchone()
    session = found[0] if found else new_id(home, at)
    if found is None:
        db.execute(
            "insert into session(tenant, home, id, owner, subject, conversation, agent, lineage, metadata, created_at, touched_at)"
            " values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (T, home, session, P, P, conv, "bench", session, b"{}", at, at),
        )
    db.executemany(
        INSERT_ITEM,
        [(T, home, conv, tail + n, new_id(home, at), run, k, r, "user", 60, at, b) for n, (k, r, b) in enumerate(inputs, 1)],
    )
    tail += len(inputs)
    db.execute("insert into due(kind, at, tenant, id) values ('lease', ?, ?, ?)", (at + 30_000, T, run))
    db.execute(INSERT_LOG, (T, home, run, 1, 2, "opened", b"", at))
    db.execute(
        "insert into run(tenant, home, id, conversation, branch, session, agent, owner, subject, status, fence, lease_owner,"
        " lease_until, in_lo, in_hi, head, options, usage, error, created_at, started_at, due_at)"
        " values (?, ?, ?, ?, ?, ?, 'bench', ?, ?, 'in_progress', 1, 'hand-000000000000', ?, ?, ?, 2, ?, x'', x'', ?, ?, ?)",
        (T, home, run, conv, conv, session, P, P, at + 30_000, tail - len(inputs), tail, b"{}", at, at, at + 30_000),
    )
    db.execute("update branch set tail = ?, active_run = ? where tenant = ? and home = ? and id = ?", (tail, run, T, home, conv))
    leaf(db, home, batch, at, b"".join(body for _, _, body in inputs))
    return run


def hydrate(db: apsw.Connection, conv: bytes, count: int = 50) -> list[object]:
    """The newest items and the slots, parsed: what a turn needs before anybody can answer."""
    home = conv[0] << 8 | conv[1]
    rows = db.execute(
        "select body from item where tenant = ? and home = ? and branch = ? order by seq desc limit ?", (T, home, conv, count)
    ).fetchall()
    slots = db.execute(
        "select slot.name, slot.body from slot join session on slot.session = session.id and slot.home = session.home"
        " and slot.tenant = session.tenant where session.tenant = ? and session.home = ? and session.conversation = ?"
        " and session.agent = 'bench' and session.status = 'active'",
        (T, home, conv),
    ).fetchall()
    return [msgspec.json.decode(body) for (body,) in rows[::-1]] + [msgspec.json.decode(body) for _, body in slots]


def finish(db: apsw.Connection, run: bytes, outputs: list[tuple[str, str, bytes]], slots: dict[str, bytes], at: int) -> None:
    """Second transaction, without begin and commit."""
    home = run[0] << 8 | run[1]
    conv, session, status, fence, in_lo, in_hi, head, due_at, owner = db.execute(
        "select conversation, session, status, fence, in_lo, in_hi, head, due_at, owner from run where tenant = ? and home = ? and id = ?",
        (T, home, run),
    ).fetchone()
    if owner != P or status != "in_progress" or fence != 1:
        raise RuntimeError("fence")
    (version,) = db.execute("select version from session where tenant = ? and home = ? and id = ?", (T, home, session)).fetchone()
    for name, body in slots.items():
        place = (T, home, session, name)
        old = db.execute("select version from slot where tenant = ? and home = ? and session = ? and name = ?", place).fetchone()
        if old:
            db.execute(
                "insert into slot_past(tenant, home, session, name, version, kind, schema, origin, trust, body, by, run, at)"
                " select tenant, home, session, name, version, kind, schema, origin, trust, body, by, run, at from slot"
                " where tenant = ? and home = ? and session = ? and name = ?", place,
            )  # fmt: skip
        db.execute(
            "insert into slot(tenant, home, session, name, version, kind, schema, origin, trust, body, by, run, at)"
            " values (?, ?, ?, ?, ?, 'value', '', 'agent:bench', 50, ?, 'local', ?, ?)"
            " on conflict(tenant, home, session, name) do update set version = excluded.version, body = excluded.body,"
            " run = excluded.run, at = excluded.at",
            (*place, version + 1, body, run, at),
        )
    if slots:
        db.execute(
            "update session set version = ?, touched_at = ? where tenant = ? and home = ? and id = ?",
            (version + 1, at, T, home, session),
        )
    (tail,) = db.execute("select tail from branch where tenant = ? and home = ? and id = ?", (T, home, conv)).fetchone()
    db.execute("delete from due where kind = 'lease' and at = ? and tenant = ? and id = ?", (due_at, T, run))
    db.executemany(
        INSERT_ITEM,
        [(T, home, conv, tail + n, new_id(home, at), run, k, r, "agent", 50, at, b) for n, (k, r, b) in enumerate(outputs, 1)],
    )
    tail += len(outputs)
    db.execute(INSERT_LOG, (T, home, run, head + 1, 6 * len(outputs) + 1, "end", b"", at))
    db.execute(
        "update run set status = 'completed', lease_owner = '', lease_until = 0, out_hi = ?, head = ?, finished_at = ?, due_at = 0"
        " where tenant = ? and home = ? and id = ?",
        (tail, head + 6 * len(outputs) + 1, at, T, home, run),
    )
    db.execute(
        "update branch set tail = ?, active_run = null, last_run = ? where tenant = ? and home = ? and id = ?",
        (tail, run, T, home, conv),
    )
    leaf(db, home, new_id(home, at), at, b"".join(body for _, _, body in outputs))


class Group:
    """Hand-written group commit: one writer thread commits everything waiting in one transaction."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._queue: queue.SimpleQueue[tuple[object, list[object], threading.Lock] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def do(self, work: object) -> object:
        done = threading.Lock()
        done.acquire()
        out: list[object] = []
        self._queue.put((work, out, done))
        done.acquire()
        return out[0]

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _serve(self) -> None:
        db = connect(self._path)
        while True:
            group = [self._queue.get()]
            while not self._queue.empty():
                group.append(self._queue.get())
            if None in group:
                db.close()
                return
            db.execute("begin immediate")
            for work, out, _ in group:  # type: ignore[misc]
                out.append(work(db))  # type: ignore[operator]
            db.execute("commit")
            for _, _, done in group:  # type: ignore[misc]
                done.release()
