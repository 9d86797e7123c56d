"""The pages of the documentation, and the code blocks in them.

A block stands alone unless the comment before it says otherwise: `<!-- needs: server -->` runs it against a server on
port 8700 (another port here), `<!-- needs: postgres -->` beside a PostgreSQL database ($ADMIN, and $STORE for workers),
`<!-- fragment -->` is only read as Python, `<!-- shown -->` is not looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))]
_BLOCK = re.compile(r"(?:<!-- ([a-z: ]+) -->\n)?^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    name: str  # page:line
    language: str
    mark: str
    code: str


def blocks(*languages: str) -> list[Block]:
    return [block for page in PAGES for block in _of(page) if block.language in languages]


def _of(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for found in _BLOCK.finditer(text):
        line = text.count("\n", 0, found.start(3)) + 1
        yield Block(f"{page.relative_to(ROOT)}:{line}", found[2], found[1] or "", found[3])


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def rows(page: str) -> dict[str, list[str]]:
    """Every table row of a page that begins with `code`: what is in the backticks -> the other cells."""
    found = re.findall(r"^\| `([^`]+)` \|(.*)\|$", read(page), re.MULTILINE)
    return {name: [cell.strip() for cell in rest.split(" | ")] for name, rest in found}
