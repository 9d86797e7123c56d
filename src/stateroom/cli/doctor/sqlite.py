"""A folder as a patient."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import msgspec

from stateroom import limits
from stateroom.backends.sqlite import db, schema
from stateroom.cli.doctor import expired, record
from stateroom.cli.doctor.finding import Finding
from stateroom.cli.terminal import size, when
from stateroom.clock import SystemClock
from stateroom.flows.told import NOTE

_SPACE_BAD, _SPACE_LOW = 64 << 20, 1 << 30
_CLOCK_MS_MAX = 60_000  # machines' clocks differ by less


class Patient(msgspec.Struct, frozen=True):
    """The store's folder and a connection that only reads."""

    folder: Path
    db: apsw.Connection


def examine(folder: Path) -> Iterator[Finding]:
    """Everything there is to say about a store's folder; what cannot be opened ends it."""
    yield from _folder(folder)
    yield from _space(folder)
    file = folder / "state.db"
    if not file.exists():
        yield Finding(
            "bad", "store_missing", "there is no state.db", "Is this the right folder? 'stateroom serve' makes a new store."
        )
        return
    try:
        connection = db.connect(file, readonly=True)
        try:
            patient = Patient(folder, connection)
            for look in _LOOKS:
                yield from look(patient)
        finally:
            connection.close(True)
    except apsw.BusyError:
        yield Finding(
            "bad", "store_busy", "another process holds the store and does not let go", "Look for a stopped process; end it."
        )
    except (apsw.CorruptError, apsw.NotADBError) as error:
        yield Finding("bad", "damage", f"the file is damaged: {error}", _RESCUE)
    except apsw.Error as error:
        yield Finding(
            "bad", "store_unreadable", f"state.db cannot be read: {error}", "Check that this user may read and write the folder."
        )


_RESCUE = (
    "Stop every process on it, keep a copy of the whole folder, then try 'sqlite3 state.db .recover' into a new file; "
    "look at the disk's own health."
)


def _folder(folder: Path) -> Iterator[Finding]:
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        yield Finding(
            "bad", "folder_closed", f"this user may not write in {folder}", f"chown -R $(id -u) {folder}, or run as its owner."
        )
        return
    locked = [
        file.name for file in (*folder.glob("state.db*"), *folder.glob("ephemeral.db*")) if not os.access(file, os.R_OK | os.W_OK)
    ]
    if locked:
        yield Finding(
            "bad", "folder_closed", f"this user may not write {', '.join(sorted(locked))}", f"chown $(id -u) {folder}/state.db*"
        )
    elif folder.stat().st_mode & 0o007:
        yield Finding(
            "warn",
            "folder_open",
            "everybody on this machine may look into the folder",
            f"chmod o-rwx {folder}, if that is not meant.",
        )
    else:
        yield Finding("ok", "folder", f"{folder} can be read and written")


def _space(folder: Path) -> Iterator[Finding]:
    free = shutil.disk_usage(folder).free
    if free < _SPACE_BAD:
        yield Finding(
            "bad",
            "disk_full",
            f"{size(free)} free on the disk",
            "Free some: new work is refused when it is full, nothing is lost.",
        )
    elif free < _SPACE_LOW:
        yield Finding("warn", "disk_low", f"{size(free)} free on the disk", "Free some before it is full.")
    else:
        yield Finding("ok", "disk", f"{size(free)} free on the disk")


def _version(patient: Patient) -> Iterator[Finding]:
    needs = db.meta(patient.db, "needs")
    newest = patient.db.execute("select max(version) from migration").fetchone()
    found = newest[0] if newest else None
    if needs is None or found is None:
        yield Finding("bad", "store_unknown", "state.db is no stateroom store", "Is this the right folder?")
    elif needs > schema.VERSION:
        remedy = f"It needs a stateroom that knows schema {needs}; this one knows {schema.VERSION}. Upgrade."
        yield Finding("bad", "store_too_new", f"the store has schema {found}", remedy)
    elif found < schema.VERSION:
        yield Finding("ok", "schema", f"the store has schema {found}; the next start brings it to {schema.VERSION}")
    else:
        yield Finding("ok", "schema", f"the store has schema {found}")


def _integrity(patient: Patient) -> Iterator[Finding]:
    answers = [str(row[0]) for row in patient.db.execute("pragma integrity_check(20)")]
    if answers == ["ok"]:
        yield Finding("ok", "integrity", f"every page of {size((patient.folder / 'state.db').stat().st_size)} is sound")
        return
    for answer in answers:
        yield Finding("bad", "damage", f"damage: {answer}", _RESCUE)


def _log(patient: Patient) -> Iterator[Finding]:
    wal = patient.folder / "state.db-wal"
    length = wal.stat().st_size if wal.exists() else 0
    if length > 4 * limits.WAL_BYTES_MAX:
        remedy = "Some process reads for very long and keeps it from being folded back: find it among the living below."
        yield Finding("warn", "log_long", f"the write-ahead log has {size(length)}", remedy)
    else:
        yield Finding("ok", "log", f"the write-ahead log has {size(length)}")


def _owners(patient: Patient) -> Iterator[Finding]:
    alive = [lock.stem for lock in sorted((patient.folder / "owners").glob("*.lock")) if _held(lock)]
    yield Finding("ok", "alive", f"alive on this store: {', '.join(f'process {owner}' for owner in alive) or 'nobody'}")
    held = "select lease_owner, count(*) from run where lease_owner <> '' group by lease_owner order by lease_owner"
    for owner, count in patient.db.execute(held):
        if owner in alive:
            yield Finding("ok", "leases", f"process {owner} works on {count} runs")
        else:
            remedy = "The next process that opens the store takes them up: start 'stateroom serve' on it."
            yield Finding("warn", "leases_left", f"{count} runs belong to process {owner}, which is gone", remedy)


def _queued(patient: Patient) -> Iterator[Finding]:
    count = patient.db.execute("select count(*) from run where status = 'queued'").fetchall()[0][0]
    if count:
        yield Finding("ok", "queue", f"{count} runs wait for their turn")


def _expired(patient: Patient) -> Iterator[Finding]:
    before = SystemClock().wall_ms() - expired.LATE_MS
    asked = patient.db.execute("select count(*), coalesce(min(at), 0) from due where kind = 'expire' and at < ?", (before,))
    late, since = (int(str(one)) for one in asked.fetchall()[0])
    yield from expired.told(str(db.meta(patient.db, NOTE) or ""), late, since)


def _clock(patient: Patient) -> Iterator[Finding]:
    mark = db.meta(patient.db, "clock")
    if mark is None:
        return
    store_ms, wall_ms = int(mark.split()[2]), SystemClock().wall_ms()
    if store_ms > wall_ms + _CLOCK_MS_MAX:
        remedy = "Set the machine's clock. Order and leases do not depend on it; times shown are wrong until it is right."
        yield Finding("warn", "clock_apart", f"the store's clock says {when(store_ms)}, the machine's {when(wall_ms)}", remedy)
    else:
        yield Finding("ok", "clock", f"the store's clock was last set down at {when(store_ms)}")


def _held(lock: Path) -> bool:
    """Whether a living process holds this lock."""
    try:
        file = os.open(lock, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(file)


def _record(patient: Patient) -> Iterator[Finding]:
    """One snapshot: nobody writes between two queries. Not where a newer version may mean something else."""
    if (db.meta(patient.db, "needs") or 0) > schema.VERSION:
        return
    patient.db.execute("begin")
    try:
        yield from record.examine(lambda sql: patient.db.execute(sql).fetchall())
    finally:
        patient.db.execute("rollback")


_LOOKS: tuple[Callable[[Patient], Iterator[Finding]], ...] = (
    _version,
    _integrity,
    _record,
    _log,
    _owners,
    _queued,
    _expired,
    _clock,
)
