"""Which tests keep which promise. `python -m tools.promises` writes the links into docs/promises.md; the words, and the
stage that a promise waits for, are written by hand. A test of a promise carries its number: `test_P14_…`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
PAGE: Final = ROOT / "docs" / "promises.md"
FOLDERS: Final = ("tests", "src/stateroom/conformance")
ROW: Final = re.compile(r"^(\| P(\d+) \|.*\| )([^|]*)( \|)$", re.MULTILINE)
STAGE: Final = re.compile(r"\*\*.+?\*\*")


def sources() -> dict[str, str]:
    """Path -> text of every file that may hold tests of promises."""
    paths = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def keeping(number: str, found: dict[str, str]) -> list[str]:
    """The files with tests that carry the number."""
    return [path for path, source in found.items() if re.search(rf"def test_(\w+_)?P{number}_", source)]


def filled(page: str) -> str:
    """The page with today's links."""
    found = sources()
    return ROW.sub(lambda row: row[1] + status(keeping(row[2], found), STAGE.findall(row[3])) + row[4], page)


def status(kept: list[str], stages: list[str]) -> str:
    links = " ".join(f"[{Path(path).stem.removeprefix('test_')}](../{path})" for path in kept)
    waiting = " ".join(stages)
    if links and waiting:
        return f"{links}; whole with {waiting}"
    return links or f"comes with {waiting}"


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
