"""The command line over a PostgreSQL store: every command, the errors, and no password in anything that is printed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest

from stateroom.backends.postgres import schema
from tests.cli.conftest import Cli
from tests.migrations.later import POSTGRES as LATER
from tests.services.store import as_role, empty

SECRET = "geheim-77"
COMMAND = (sys.executable, "-m", "stateroom.cli")


def with_secret(url: str, role: str = "stateroom_app") -> str:
    """The server trusts us; the password is only there to be kept secret."""
    return as_role(url, f"{role}:{SECRET}")


@pytest.fixture(scope="module")
def used(postgres_worker_store: str) -> Iterator[str]:
    """A store in which a few conversations of the sample were played, with a password in its URL."""
    url = with_secret(postgres_worker_store)
    played = subprocess.run(
        [*COMMAND, "replay", "sample", "--limit", "2", "--store", url], capture_output=True, text=True, timeout=60, check=False
    )
    assert played.returncode == 0, played.stderr
    assert SECRET not in played.stdout + played.stderr
    assert "0 different (postgresql://stateroom_app:***@" in played.stdout
    yield url
    empty(postgres_worker_store)


@pytest.mark.parametrize("role", ["stateroom_app", "stateroom_reader"])
def test_what_was_played_is_listed_shown_exported_and_followed(cli: Cli, used: str, role: str, tmp_path: Path) -> None:
    used = with_secret(used, role)
    told = cli("conversation", "list", "--store", used, "--json")
    conversations = [json.loads(line) for line in told.out.splitlines()]
    assert len(conversations) == 2
    shown = cli("conversation", "show", conversations[0]["id"], "--store", used, "--json")
    items = [json.loads(line) for line in shown.out.splitlines()]
    assert len(items) == conversations[0]["items"]
    exported = json.loads(cli("conversation", "export", conversations[0]["id"], "--store", used).out)
    assert exported["items"] == [item["item"] for item in items]
    run = next(item["run"] for item in items if item["run"])
    found = json.loads(cli("run", "show", run, "--store", used, "--json").out)
    assert found["status"] == "completed"
    followed = cli("run", "show", run, "--store", used, "--follow")
    assert "response.completed" in followed.out
    desk = cli("session", "show", found["session"], "--store", used)
    assert (desk.code, found["session"] in desk.out) == (0, True)
    carried = cli("session", "export", found["session"], "--store", used, "--to", str(tmp_path / "desk.bundle"))
    assert (carried.code, (tmp_path / "desk.bundle").stat().st_size > 0) == (0, True)
    brought = cli("session", "import", str(tmp_path / "desk.bundle"), "--store", used)
    assert (brought.code, "(role_reads_only)" in brought.err) == ((0, False) if role == "stateroom_app" else (1, True))


def test_another_tenants_things_are_not_there(cli: Cli, used: str) -> None:
    assert "No conversations of tenant elsewhere" in cli("conversation", "list", "--store", used, "--tenant", "elsewhere").out


def test_the_doctor_looks_and_says(cli: Cli, used: str) -> None:
    told = cli("doctor", "--store", used)
    assert [line for line in told.out.splitlines() if line.startswith("bad")] == [
        "bad   fsync is off: after a crash acknowledged work may be lost, or the store damaged  (fsync_off)"
    ]  # of the tests' server
    assert told.code == 1
    assert "alter system set fsync = on" in told.out
    findings = [json.loads(line) for line in cli("doctor", "--store", used, "--json").out.splitlines()]
    assert all({"level", "code", "what", "remedy"} == set(finding) for finding in findings)


WRONG = [  # what somebody did, what the check says, and what mends it if a migration does not
    ("alter table stateroom.slot_past_3 no force row level security", "slot_past_3", ""),
    ("revoke update on stateroom.run from stateroom_app", "'stateroom_app' may not write: run.", ""),
    ("revoke delete on stateroom.slot from stateroom_app", "'stateroom_app' may not delete from: slot.", ""),
    ("revoke select on stateroom.item from stateroom_reader", "'stateroom_reader' may not read: item.", ""),
    ("revoke usage on schema stateroom from stateroom_reader", "'stateroom_reader' may not use", ""),
    ("revoke execute on function stateroom.going_on() from stateroom_app", "may not call: going_on.", ""),
    (
        'create policy "Let; me" on stateroom.run to stateroom_app using (true)', 'drop policy "Let; me" on stateroom.run',
        'drop policy "Let; me" on stateroom.run',
    ),
]  # fmt: skip


def test_migrating_says_what_is_missing_and_what_it_did(cli: Cli, postgres_database: str) -> None:
    url = with_secret(postgres_database, "postgres")
    steps = [migration.title(number) for migration in schema.MIGRATIONS for number in range(len(migration.steps))]
    check = cli("migrate", "--store", url, "--check")
    assert (check.code, check.out.splitlines()) == (1, [f"missing: {step}" for step in steps])
    assert cli("migrate", "--store", url, "--dry-run") == check
    early = cli("conversation", "list", "--store", with_secret(postgres_database))
    assert (early.code, "(not_migrated)" in early.err, "stateroom migrate" in early.err) == (1, True, True)
    done = cli("migrate", "--store", url)
    assert (done.code, done.out.splitlines()[: len(steps)]) == (0, steps)
    assert "stateroom_app" in done.out
    again = cli("migrate", "--store", url)
    assert (again.code, again.out) == (0, "nothing to do: the tables are as this version needs them\n")
    assert cli("migrate", "--store", url, "--check").code == 0
    assert cli("migrate", "--store", with_secret(postgres_database, "stateroom_reader"), "--check").code == 0
    with psycopg.connect(postgres_database, autocommit=True) as db:
        for broken, what, mended in WRONG:
            db.execute(broken.encode())
            told = cli("migrate", "--store", url, "--check")
            assert (told.code, told.out.startswith("wrong: "), what in told.out) == (1, True, True), told
            if mended:
                db.execute(mended.encode())
            else:
                assert cli("migrate", "--store", url).code == 0
            assert cli("migrate", "--store", url, "--check").code == 0
    weak = cli("migrate", "--store", with_secret(postgres_database, "stateroom_reader"))
    assert (weak.code, "(role_too_weak)" in weak.err) == (1, True)
    assert "(pooler_in_the_way)" in cli("migrate", "--store", f"{url}&pooler=on").err


def test_migrating_a_folder_does_the_same(cli: Cli, tmp_path: Path) -> None:
    where = ("--data", str(tmp_path / "store"))
    assert cli("migrate", *where, "--check").code == 1
    assert not (tmp_path / "store").exists()
    done = cli("migrate", *where)
    assert (done.code, "schema 1 (first light), step 1 of 1" in done.out) == (0, True)
    assert (cli("migrate", *where, "--check").code, cli("doctor", *where).code) == (0, 0)
    assert "(store_url_invalid)" in cli("migrate", "--store", "ram://").err


def test_ctrl_c_ends_a_migration_in_the_middle_of_a_statement(postgres_fresh_store: str) -> None:
    """The command of a build that has one more migration, held up by somebody's transaction."""
    script = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"  # whoever started us may ignore it
        "from stateroom.backends.postgres import schema, migrate; from tests.migrations.later import POSTGRES as L;"
        "migrate.Migrator.__init__.__kwdefaults__['migrations'] = (*schema.MIGRATIONS, L);"
        "from stateroom.cli.main import main; import sys; sys.exit(main(sys.argv[1:]))"
    )
    with psycopg.connect(postgres_fresh_store, options="-c search_path=stateroom") as db:
        db.execute("lock table run in row exclusive mode")
        process = subprocess.Popen(
            [sys.executable, "-c", script, "migrate", "--store", postgres_fresh_store],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2],
        )  # fmt: skip
        try:
            assert process.stdout is not None
            assert process.stdout.readline().strip() == LATER.title(0)
            time.sleep(0.3)
            process.send_signal(signal.SIGINT)
            sent = time.monotonic()
            out, err = process.communicate(timeout=20)
            assert time.monotonic() - sent < 10
        finally:
            process.kill()
            process.communicate()
    assert process.returncode == 1
    assert "run it again" in out
    assert "(interrupted)" in err
    assert "Traceback" not in err


# ── errors ──────────────────────────────────────────────────────────────────────────────────────────────────────────

WHERE = [
    f"postgresql://stateroom_app:{SECRET}@127.0.0.1:1/x?patience_s=0",
    f"postgresql://stateroom_app:{SECRET}@127.0.0.1:1/x?lanes=0",
    f"postgresql://stateroom_app:{SECRET}@127.0.0.1:1/x?lane=1",
    f"postgresql://stateroom_app:{SECRET}@{SECRET}@127.0.0.1:1/x",
    f"postgresql://stateroom_app:x/{SECRET}@127.0.0.1:1/x",
    f"postgresql+asyncpg://stateroom_app:{SECRET}@127.0.0.1:1/x",
    f"postgresql://127.0.0.1:1/x?user=u&password={SECRET}&patience_s=0",
    f"host=127.0.0.1 port=1 password={SECRET}",
]
COMMANDS = [
    ("migrate",),
    ("migrate", "--check"),
    ("doctor",),
    ("doctor", "--json"),
    ("conversation", "list"),
    ("serve", "--port", "0"),
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("where", WHERE, ids=range(len(WHERE)))
def test_no_error_prints_a_password(cli: Cli, command: tuple[str, ...], where: str) -> None:
    told = cli(*command, "--store", where)
    assert told.code == 1
    assert SECRET not in told.out + told.err
    assert "Traceback" not in told.err


@pytest.mark.parametrize("command", [*COMMANDS, ("replay", "sample"), ("serve", "--port", "0", "--workers", "2")], ids=" ".join)
def test_without_the_extra_it_says_what_to_install(command: tuple[str, ...], tmp_path: Path) -> None:
    script = "import sys; sys.modules['psycopg'] = None; from stateroom.cli.main import main; sys.exit(main(sys.argv[1:]))"
    if "--workers" in command:
        worker = "import sys; sys.modules['psycopg'] = None; from stateroom.cli.worker import main; sys.exit(main())"
        script = f"import sys; import stateroom.cli.serve as s; s.WORKER = (sys.executable, '-c', {worker!r}); {script}"
    argv = [sys.executable, "-c", script, *command, "--store", f"postgresql://app:{SECRET}@127.0.0.1:1/x"]
    told = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False)
    assert told.returncode == 1
    assert told.stderr.count("(extra_missing)") == 1
    assert "pip install 'stateroom[postgres]'" in told.stderr
    assert SECRET not in told.stdout + told.stderr


# ── serving ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("workers", [1, 2])
def test_it_serves(postgres_fresh_store: str, tmp_path: Path, workers: int) -> None:
    """Any worker goes on where another left off, and nothing that is logged has the password."""
    url = with_secret(postgres_fresh_store)
    command = [*COMMAND, "serve", "--port", "0", "--store", url, "--workers", str(workers)]
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            assert server.stdout is not None
            match = re.search(r"http://\S+", server.stdout.readline())
            assert match
            previous: Any = None
            for _ in range(4):  # new connections: whoever takes them
                with httpx2.Client(base_url=match.group(), timeout=20, verify=False) as http:
                    body = {"input": "I need black running shoes, size 10", "previous_response_id": previous}
                    answer = http.post("/v1/responses", json=body).json()
                    assert answer["status"] == "completed"
                    previous = answer["id"]
            with httpx2.Client(base_url=match.group(), timeout=20, verify=False) as http:
                assert http.get("/readyz").status_code == 200
                assert len(http.get("/v1/runs").json()["data"]) == 4
            server.send_signal(signal.SIGTERM)
            assert server.wait(20) == 0
            said = server.stdout.read()
        finally:
            server.kill()
            server.communicate()
    assert SECRET not in said + (tmp_path / "log").read_text()


def test_a_superuser_is_not_served_as_by_any_number_of_workers(postgres_store: str, tmp_path: Path) -> None:
    for workers in ("1", "2"):
        command = [*COMMAND, "serve", "--port", "0", "--store", with_secret(postgres_store, "postgres"), "--workers", workers]
        told = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False, env=os.environ)
        assert (told.returncode, told.stderr.count("(role_superuser)")) == (1, 1)
        assert "stateroom_app" in told.stderr
        assert SECRET not in told.stdout + told.stderr
