"""The reference is complete: the list of things comes from the code, the words from the pages; both ways."""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import stateroom
from stateroom import errors, face, limits
from stateroom.backends.postgres.settings import Settings
from stateroom.backends.sql import sound
from stateroom.backends.sqlite import ephemeral, schema
from stateroom.cli.main import parser
from stateroom.flows import failpoint
from stateroom.server import problems
from stateroom.server.app import ENDPOINTS, SOCKETS
from stateroom.wire import rows as log_rows
from tests.docs.pages import ROOT, read, rows
from tools import codes, promises

SOURCES = {path: path.read_text(encoding="utf-8") for path in sorted((ROOT / "src").rglob("*.py"))}


def test_every_error_code_is_explained_and_nothing_else() -> None:
    known = set(codes.found()) | set(problems._UNKNOWN_PATH.values())
    assert set(rows("docs/reference/errors.md")) == known


def test_every_error_has_the_status_that_the_server_gives_it() -> None:
    found = codes.found()
    for code, (status, *_) in rows("docs/reference/errors.md").items():
        given = {
            str(problems.status_of(error))
            for place in found.get(code, ())
            if "/cli/" not in place.where and (error := error_of(place.callee, code))
        }
        assert status == "–" or not given or set(status.split(", ")) == given, code


def error_of(name: str, code: str) -> errors.StateroomError | None:
    cls = getattr(errors, name, None)
    if cls is errors.Known:
        return errors.Known(ref=b"", fingerprint=b"")
    return None if cls is None else cls("", code=code)


def test_every_limit_is_explained_with_its_value() -> None:
    values = {name: f"{value:,}" for name, value in vars(limits).items() if name.isupper()}
    assert {name: cells[0] for name, cells in rows("docs/reference/limits.md").items()} == values


@pytest.mark.parametrize("name", [name for name in vars(limits) if name.isupper()])
def test_every_limit_is_held_somewhere(name: str) -> None:
    assert [path for path, source in SOURCES.items() if path.name != "limits.py" and re.search(rf"\b{name}\b", source)]


def commands(at: argparse.ArgumentParser, name: str) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    inner = [action for action in at._actions if isinstance(action, argparse._SubParsersAction)]
    if not inner:
        yield name, at
    for action in inner:
        for word, below in action.choices.items():
            yield from commands(below, f"{name} {word}")


COMMANDS = dict(commands(parser(), "stateroom"))


def test_every_command_is_explained_and_nothing_else() -> None:
    named = {name for name in rows("docs/reference/cli.md") if name.startswith("stateroom ")}
    assert named == set(COMMANDS)


def test_every_option_is_explained_and_nothing_else() -> None:
    options = {
        option for command in COMMANDS.values() for action in command._actions for option in action.option_strings
        if option.startswith("--") and option != "--help"
    }  # fmt: skip
    named = set(re.findall(r"`(--[a-z-]+)", read("docs/reference/cli.md")))
    assert named - {"--help"} == options


def test_commands_shown_in_the_documentation_exist() -> None:
    words = {name.removeprefix("stateroom ") for name in COMMANDS}
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for line in re.findall(r"^(?:\S+=\S+ )?(?:\S*/)?stateroom ([a-z]+(?: [a-z]+)?)", page.read_text(encoding="utf-8"), re.M):
            assert line in words or line.split()[0] in words, f"{page}: {line}"


def test_every_route_is_explained_and_nothing_else() -> None:
    open_ones = {"/healthz", "/readyz", "/openapi.json"}
    routes = {f"{end.method} {end.path if end.path in open_ones else '/v1' + end.path}" for end in ENDPOINTS}
    routes |= {f"WS /v1{socket.path}" for socket in SOCKETS}
    named = {name for name in rows("docs/reference/http.md") if re.match(r"[A-Z]+ /", name)}
    assert named == routes


def test_every_query_of_a_route_is_explained() -> None:
    page = rows("docs/reference/http.md")
    missing = [
        (path, name) for path, query in [
            *((f"{end.method} /v1{end.path}", end.query) for end in ENDPOINTS),
            *((f"WS /v1{socket.path}", socket.query) for socket in SOCKETS),
        ]
        for name in query if not re.search(rf"`{name}[`=]", " ".join(page[path]))
    ]  # fmt: skip
    assert missing == []


def findings(path: Path) -> Iterator[str]:
    """The codes of every finding that a module can make: literals given to `Finding`, and those in its tables."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Finding":
            code = node.args[1] if path.parent.name == "doctor" else node.args[0]
            if isinstance(code, ast.Constant):
                yield code.value
        elif isinstance(node, ast.Tuple) and len(node.elts) == 3 and isinstance(node.elts[1], ast.Constant):
            yield node.elts[1].value if re.fullmatch(r"[a-z]+(_[a-z]+)+", str(node.elts[1].value)) else ""


def test_every_finding_of_the_doctor_is_explained_and_nothing_else() -> None:
    modules = [*(ROOT / "src/stateroom/cli/doctor").glob("*.py"), ROOT / "src/stateroom/backends/postgres/check.py"]
    found = {code for module in modules for code in findings(module)} - {""} | set(sound.INVARIANTS)
    assert set(rows("docs/reference/doctor.md")) == found


def test_every_word_of_a_postgresql_url_is_explained_with_its_default() -> None:
    fields = {field.name: field.default for field in msgspec.structs.fields(Settings) if "conninfo" not in field.name}
    page = {name: cells[0] for name, cells in rows("docs/reference/settings.md").items() if name in fields}
    assert page == {name: {False: "off", True: "on"}.get(value, str(value)) for name, value in fields.items()}


def test_every_setting_is_explained_and_nothing_else() -> None:
    read_ones = {name for source in SOURCES.values() for name in re.findall(r"\bSTATEROOM_[A-Z_]+", source)}
    assert {name for name in rows("docs/reference/settings.md") if name.isupper()} == read_ones


@pytest.mark.parametrize("name", failpoint.NAMES)
def test_every_failpoint_is_named(name: str) -> None:
    assert f"`{name}`" in read("docs/reference/settings.md")


@pytest.mark.parametrize("name", stateroom.__all__)
def test_every_name_of_the_package_is_explained(name: str) -> None:
    assert name in rows("docs/reference/python.md")


@pytest.mark.parametrize("cls", [face.Room, face.Desk], ids=lambda cls: cls.__name__)
def test_every_method_is_explained(cls: type) -> None:
    words = re.findall(r"`([a-z_]+)`", read("docs/reference/python.md"))
    assert [name for name in vars(cls) if not name.startswith("_") and name not in words] == []


def test_every_table_is_explained_with_its_copy_class() -> None:
    tables = {
        name for migration in schema.MIGRATIONS for step in migration.steps
        for name in re.findall(r"create table (?:if not exists )?(\w+)", step.sql)
    } | set(re.findall(r"create table (?:if not exists )?(\w+)", schema.BASE + ephemeral.TABLES))  # fmt: skip
    page = {name: cells[-1] for name, cells in rows("docs/reference/store.md").items() if "/" not in name}
    assert set(page) == tables
    assert page == {name: schema.COPIES[name].name for name in tables}


def test_every_kind_of_log_entry_is_explained() -> None:
    source = (ROOT / "src/stateroom/wire/rows.py").read_text(encoding="utf-8")
    kinds = set(re.findall(r'NewRow\("(\w+)"', source))
    assert {name for name in rows("docs/reference/wire.md")} == kinds
    assert all(f"`{kind}`" in (log_rows.__doc__ or "") for kind in kinds)


def test_every_promise_has_a_line() -> None:
    assert re.findall(r"^\| P(\d+) \|", read("docs/promises.md"), re.M) == [str(number) for number in range(1, 33)]


def test_every_promise_names_the_tests_that_keep_it() -> None:
    """`python -m tools.promises` writes them."""
    assert read("docs/promises.md") == promises.filled(read("docs/promises.md"))


def test_every_promise_is_kept_or_says_what_it_waits_for() -> None:
    roadmap = read("docs/roadmap.md")
    for row in promises.ROW.finditer(read("docs/promises.md")):
        stages = promises.STAGE.findall(row[3])
        assert stages or "](../" in row[3], row[0]
        assert all(stage in roadmap for stage in stages), row[0]
