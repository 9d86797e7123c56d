"""A store with something in it, and the command line over it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import anyio
import msgspec
import pytest

from stateroom import face
from stateroom.cli.main import main
from stateroom.flows.agent import Turn


class Told(msgspec.Struct, frozen=True):
    """What a command did."""

    code: int
    out: str
    err: str


Cli = Callable[..., Told]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run a command in this process."""

    def run(*argv: str) -> Told:
        capsys.readouterr()
        try:
            code = main(argv)
        except SystemExit as ended:
            code = int(ended.code or 0)
        told = capsys.readouterr()
        return Told(code, told.out, told.err)

    return run


async def counting(turn: Turn) -> str:
    """An agent that keeps something on the desk."""
    turn.set("turns", turn.slots.get("turns", 0) + 1)
    return f"heard {turn.text}"


class Kept(msgspec.Struct, frozen=True):
    """A store with one conversation of two turns."""

    folder: Path
    first: face.Reply
    second: face.Reply


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    folder = tmp_path / "store"

    async def fill() -> Kept:
        async with await face.open(f"sqlite:///{folder}", agents=[counting]) as room:
            first = await room.turn("hello\nthere")
            second = await room.turn("again", conversation=first.conversation, options={"stream": True})
        folder.chmod(0o700)
        return Kept(folder, first, second)

    return anyio.run(fill)
