"""The doctor says what is wrong with a store and what to do, and changes nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import apsw
import msgspec
import pytest

from stateroom.backends.sqlite.ownership import Ownership
from tests.cli.conftest import Cli, Kept, Told


def sql(folder: Path, statement: str) -> None:
    db = apsw.Connection(str(folder / "state.db"))
    db.execute(statement)
    db.close()


def levels(told: Told) -> list[str]:
    return [line.split()[0] for line in told.out.splitlines() if not line.startswith(" ")]


def test_a_sound_store_is_sound(cli: Cli, kept: Kept) -> None:
    told = cli("doctor", "--data", str(kept.folder))
    assert told.code == 0
    assert set(levels(told)) == {"ok"}, told.out
    assert "alive on this store: nobody" in told.out


def test_it_changes_nothing(cli: Cli, kept: Kept) -> None:
    (kept.folder / "owners" / "1-dead.lock").touch()
    before = {file: file.read_bytes() for file in kept.folder.rglob("*") if file.is_file() and not file.name.endswith("-shm")}
    cli("doctor", "--data", str(kept.folder))
    after = {file: file.read_bytes() for file in kept.folder.rglob("*") if file.is_file() and not file.name.endswith("-shm")}
    assert {file: bytes_ for file, bytes_ in after.items() if bytes_} == {
        file: bytes_ for file, bytes_ in before.items() if bytes_
    }


def newer(folder: Path) -> None:
    sql(folder, "update meta set value = 999 where name = 'needs'")


def no_store(folder: Path) -> None:
    (folder / "state.db").unlink()


def not_sqlite(folder: Path) -> None:
    (folder / "state.db").write_bytes(b"not a database, by any means" * 100)


def torn(folder: Path) -> None:
    with (folder / "state.db").open("r+b") as file:
        file.seek(3 * 4096)
        file.write(b"\xff" * 4096 * 8)


@pytest.mark.parametrize(
    ("harm", "says"),
    [(newer, "Upgrade"), (no_store, "right folder"), (not_sqlite, "recover"), (torn, "recover")],
)
def test_what_is_bad_is_bad_and_exits_1(cli: Cli, kept: Kept, harm: Callable[[Path], None], says: str) -> None:
    harm(kept.folder)
    told = cli("doctor", "--data", str(kept.folder))
    assert told.code == 1
    assert "bad" in levels(told)
    assert says in told.out


def future_clock(folder: Path) -> None:
    sql(folder, "update meta set value = 'boot 1 99999999999999' where name = 'clock'")


def open_to_all(folder: Path) -> None:
    folder.chmod(0o755)


def long_log(folder: Path) -> None:
    (folder / "state.db-wal").write_bytes(b"")
    os.truncate(folder / "state.db-wal", 65 << 20)


@pytest.mark.parametrize(
    ("harm", "says"),
    [(future_clock, "machine's clock"), (open_to_all, "chmod o-rwx"), (long_log, "reads for very long")],
)
def test_what_deserves_a_look_is_a_warning(cli: Cli, kept: Kept, harm: Callable[[Path], None], says: str) -> None:
    harm(kept.folder)
    told = cli("doctor", "--data", str(kept.folder))
    assert told.code == 0
    assert "warn" in levels(told)
    assert says in told.out


def test_runs_of_a_dead_process_are_told_from_those_of_a_living_one(cli: Cli, kept: Kept) -> None:
    sql(kept.folder, "update run set status = 'in_progress', lease_owner = '7-owner'")
    told = cli("doctor", "--data", str(kept.folder))
    assert "2 runs belong to process 7-owner, which is gone" in told.out
    living = Ownership(kept.folder / "owners", "7-owner")
    told = cli("doctor", "--data", str(kept.folder))
    living.release()
    assert "alive on this store: process 7-owner" in told.out
    assert "process 7-owner works on 2 runs" in told.out


def test_for_machines_it_is_one_finding_a_line(cli: Cli, kept: Kept) -> None:
    told = cli("doctor", "--data", str(kept.folder), "--json")
    findings = [msgspec.json.decode(line) for line in told.out.splitlines()]
    assert all({"level", "code", "what", "remedy"} == set(finding) for finding in findings)
    assert len(findings) > 5


def test_another_kind_of_store_is_not_its_patient(cli: Cli) -> None:
    assert "(store_url_invalid)" in cli("doctor", "--store", "ram://").err
