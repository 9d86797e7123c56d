"""The vocabulary is kept, and nothing committed names a machine or a registry."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, read
from tools import lock

WORDS = """
memory, conversation, branch, item, turn, inbox, session, state, slot, workspace, checkpoint, version, run, step, approval,
event, pending action, connection, cursor, tail, lease, fence, home, tenant, principal, subject, blob, manifest, hold,
retention, residency, copy class, receipt,
expire, evict, archive, cull, forget, delete, erase, redact, hydrate, append, accept, claim, finish
"""
NOT_USED = {"thread", "threads", "chat", "chats", "history", "manager", "helper", "helpers", "util", "utils", "data", "info"}
FOREIGN = {"in_threads", "THREAD_BYTES", "data_received"}  # threads of the operating system; asyncio's own name


def names(path: Path) -> Iterator[tuple[int, str]]:
    """Public names a module defines: itself, classes, functions, fields and constants."""
    yield 1, path.stem
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("test_"):
            yield node.lineno, node.name
        if isinstance(node, ast.Module | ast.ClassDef):
            for statement in node.body:
                if isinstance(statement, ast.Assign | ast.AnnAssign):
                    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                    yield from ((statement.lineno, target.id) for target in targets if isinstance(target, ast.Name))


def words(name: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)}


def committed() -> list[Path]:
    """What is or would be committed; without git, everything but what is made."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, check=True, timeout=30
        ).stdout.decode()
        found = [ROOT / name for name in listed.split("\0") if name]
    except (OSError, subprocess.SubprocessError):
        made = {".git", ".venv", ".venv-bench", "__pycache__", ".hypothesis", "stateroom-data", "dist"}
        found = [
            path
            for path in ROOT.rglob("*")
            if not made & set(path.parts) and not any(part.endswith("_cache") for part in path.parts)
        ]
    return [path for path in found if path.is_file()]


@pytest.mark.parametrize("word", [*re.split(r",\s+", WORDS.strip()), "save, restore", "attach, resume, detach"])
def test_every_word_is_in_the_glossary(word: str) -> None:
    assert f"| **{word}** |" in read("docs/glossary.md")


def test_public_names_use_no_word_that_means_two_things() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in sorted((ROOT / "src").rglob("*.py"))
        for line, name in names(path)
        if not name.startswith("_") and name not in FOREIGN and words(name) & NOT_USED
    ]
    assert found == []


def test_the_check_of_names_sees_a_bad_one(tmp_path: Path) -> None:
    bad = tmp_path / "room_utils.py"
    bad.write_text("class SessionManager:\n    user_info: str\n\n    def chatHistory(self): ...\n")
    assert {name for _, name in names(bad) if words(name) & NOT_USED} == {
        "room_utils", "SessionManager", "user_info", "chatHistory",
    }  # fmt: skip


# Put together here, so that this file does not name them itself.
PLACES = ["/" + "work/", "/" + "root/", "/home" + "/", "pypi" + ".org", "python" + "hosted", "--index" + "-url =", "farm" + "-"]


@pytest.mark.parametrize("place", PLACES)
def test_nothing_committed_names_a_machine_or_a_registry(place: str) -> None:
    found = [path for path in committed() if place.encode() in path.read_bytes()]
    assert [path.relative_to(ROOT).as_posix() for path in found] == []


def test_lock_files_name_no_address() -> None:
    locks = [path for path in committed() if path.suffix == ".lock"]
    assert {path.name for path in locks} == set(lock.WANTED)
    assert [path.name for path in locks if "://" in path.read_text(encoding="utf-8")] == []


@pytest.mark.parametrize("page", [*PAGES, ROOT / "tests" / "README.md"], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8"))
    lost = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert lost == []
