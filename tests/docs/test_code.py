"""The code in the documentation runs, as a newcomer would run it."""

from __future__ import annotations

import ast
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, Block, blocks
from tests.services.postgres import Server
from tests.services.store import as_role

PATIENCE_S = 30
QUIET = {**os.environ, "PYTHONWARNINGS": "error", "PYTHONUNBUFFERED": "1"}


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A server with the demo agent, on a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder = tmp_path_factory.mktemp("served")
    command = [sys.executable, "-m", "stateroom.cli.main", "serve", "--port", str(port), "--data", str(folder / "store")]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=folder)
        try:
            wait_for_health(server, port, folder / "log")
            yield port
        finally:
            server.send_signal(signal.SIGTERM)
            try:
                server.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                server.kill()


def wait_for_health(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5) as answer:
                answer.read()
                return
        except OSError:
            time.sleep(0.05)
    raise AssertionError(f"the server did not start: {log.read_text()}")


def served(block: Block, port: int) -> str:
    return block.code.replace(":8700", f":{port}").replace("--port 8700", f"--port {port}")


def run(command: list[str], folder: Path) -> str:
    done = subprocess.run(
        command, cwd=folder, env=QUIET, timeout=PATIENCE_S, capture_output=True, text=True, encoding="utf-8", check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_examples_run(example: Path, port: int, tmp_path: Path) -> None:
    source = example.read_text(encoding="utf-8").replace(":8700", f":{port}")
    (tmp_path / example.name).write_text(source, encoding="utf-8")
    assert run([sys.executable, example.name], tmp_path)


def test_examples_are_short() -> None:
    assert EXAMPLES
    assert [path.name for path in EXAMPLES if len(path.read_text(encoding="utf-8").splitlines()) >= 150] == []


PYTHON = blocks("python")
SHELL = blocks("sh")


@pytest.mark.parametrize("block", [b for b in PYTHON if not b.mark], ids=lambda block: block.name)
def test_python_runs(block: Block, tmp_path: Path) -> None:
    (tmp_path / "block.py").write_text(block.code, encoding="utf-8")
    run([sys.executable, "block.py"], tmp_path)


@pytest.mark.parametrize("block", [b for b in PYTHON if b.mark == "needs: server"], ids=lambda block: block.name)
def test_python_runs_against_a_server(block: Block, port: int, tmp_path: Path) -> None:
    (tmp_path / "block.py").write_text(served(block, port), encoding="utf-8")
    run([sys.executable, "block.py"], tmp_path)


@pytest.mark.parametrize("block", [b for b in PYTHON if b.mark == "fragment"], ids=lambda block: block.name)
def test_fragments_are_python(block: Block) -> None:
    compile(block.code, block.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST)


@pytest.mark.parametrize("block", [b for b in SHELL if b.mark == "needs: server"], ids=lambda block: block.name)
def test_shell_runs_against_a_server(block: Block, port: int, tmp_path: Path) -> None:
    """`curl --fail`, so that an answer of 4xx or 5xx is a failure."""
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    (tmp_path / ".curlrc").write_text("fail-with-body\nsilent\nshow-error\n")
    script = f"set -euo pipefail\nexport CURL_HOME={tmp_path}\n{served(block, port)}"
    assert run(["bash", "-c", script], tmp_path).strip()


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A PostgreSQL server as an operator has one, with an empty database; its blocks run in the order of the page."""
    shim = tmp_path_factory.mktemp("bin") / "stateroom"
    shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m stateroom.cli "$@"\n')
    shim.chmod(0o755)
    with Server.start() as server:
        admin = server.create_database("shop")
        path = f"{shim.parent}{os.pathsep}{os.environ['PATH']}"
        yield {**QUIET, "ADMIN": admin, "STORE": as_role(admin), "PATH": path}


def test_blocks_about_postgresql_run_in_their_order(database: dict[str, str], tmp_path: Path) -> None:
    about = [block for block in blocks("python", "sh") if block.mark == "needs: postgres"]
    assert len(about) >= 3
    for block in about:
        line = (
            [sys.executable, "-c", block.code] if block.language == "python" else ["bash", "-euo", "pipefail", "-c", block.code]
        )
        done = subprocess.run(line, cwd=tmp_path, env=database, timeout=PATIENCE_S, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{block.name}\n{done.stdout}\n{done.stderr}"
        assert done.stdout.strip(), block.name


def test_every_block_is_looked_at() -> None:
    known = {"", "needs: server", "needs: postgres", "fragment", "shown"}
    assert {block.mark for block in blocks("python", "sh", "")} <= known
    assert {block.language for page in blocks("python", "sh", "text", "json", "http", "") for block in [page]} <= {
        "python", "sh", "text", "json", "http",
    }  # fmt: skip


def test_make_targets_named_in_the_documentation_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = {
        name for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), ROOT / "tests" / "README.md"]
        for name in re.findall(r"\bmake ([a-z]+)\b", page.read_text(encoding="utf-8"))
        if f"`make {name}" in page.read_text(encoding="utf-8") or f"\nmake {name}" in page.read_text(encoding="utf-8")
    }  # fmt: skip
    assert named <= targets
    assert {"run", "test", "check", "crash", "bench", "help"} <= targets
