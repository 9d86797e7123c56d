"""The command line as such: help everywhere with an example, errors as one line and what to do, exit codes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Cli, Kept

COMMANDS = [
    (),
    ("serve",),
    ("replay",),
    ("conversation", "list"),
    ("conversation", "show"),
    ("conversation", "export"),
    ("session", "show"),
    ("run", "show"),
    ("doctor",),
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_explains_itself_with_an_example(cli: Cli, command: tuple[str, ...]) -> None:
    told = cli(*command, "--help")
    assert told.code == 0
    assert "example" in told.out
    assert f"stateroom {' '.join(command)}".strip() in told.out.partition("example")[2]


@pytest.mark.parametrize("group", ["conversation", "session", "run"])
def test_a_group_lists_what_it_has(cli: Cli, group: str) -> None:
    told = cli(group, "--help")
    assert told.code == 0
    assert "show" in told.out


@pytest.mark.parametrize(
    "argv",
    [
        (),
        ("frobnicate",),
        ("serve", "--port", "x"),
        ("conversation",),
        ("run", "show"),
        ("replay", "sample", "--limit", "-1"),
        ("replay", "f", "--url", "u", "--chaos"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_exits_2(cli: Cli, argv: tuple[str, ...]) -> None:
    told = cli(*argv)
    assert told.code == 2
    first, hint = told.err.splitlines()
    assert first.startswith("stateroom: ")
    assert first.endswith("(usage)")
    assert "--help" in hint


def test_an_error_is_one_line_with_its_code_and_what_to_do(cli: Cli, tmp_path: Path) -> None:
    told = cli("conversation", "list", "--data", str(tmp_path / "nothing"))
    assert told.code == 1
    first, hint = told.err.splitlines()
    assert first == f"stateroom: There is no store at {tmp_path / 'nothing'}. (store_missing)"
    assert "stateroom serve" in hint
    assert not (tmp_path / "nothing").exists(), "looking makes nothing"


def test_a_file_that_cannot_be_read_is_no_traceback(cli: Cli, tmp_path: Path) -> None:
    told = cli("replay", str(tmp_path / "nothing.jsonl"))
    assert told.code == 1
    assert told.err.splitlines()[0].endswith("(os_error)")


@pytest.mark.parametrize("url", ["mysql://x", "sqlite://relative", "nothing"])
def test_a_store_url_that_is_none_is_told(cli: Cli, url: str) -> None:
    told = cli("conversation", "list", "--store", url)
    assert told.code == 1
    assert "(store_url_invalid)" in told.err


def test_a_reader_who_has_seen_enough_is_no_failure(kept: Kept) -> None:
    command = f"{sys.executable} -m stateroom.cli conversation show {kept.first.conversation} --data {kept.folder} --json"
    piped = subprocess.run(["bash", "-c", f"{command} | head -c 1; echo ${{PIPESTATUS[0]}}"], capture_output=True, text=True)
    assert piped.stdout.splitlines()[-1].endswith("0")
    assert "Traceback" not in piped.stderr


def test_the_core_and_the_command_line_come_quickly() -> None:
    def modules(code: str) -> set[str]:
        listed = subprocess.run(
            [sys.executable, "-c", f"{code}; import sys; print(*sys.modules)"], capture_output=True, text=True, check=True
        )
        return set(listed.stdout.split())

    assert not {"apsw", "asyncio", "httpx", "starlette"} & modules("import stateroom")
    assert not {"httpx", "starlette", "uvicorn"} & modules("import stateroom.cli.main")
