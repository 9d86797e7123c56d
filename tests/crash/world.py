"""What is outside of the store: a file that remembers every effect, so that nothing a crash does to the store hides one."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path


class World:
    """Effects by (kind, key). Each is one line, appended and synced before `act` returns: it happened for good."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def act(self, kind: str, key: str) -> None:
        """Do it. Whoever does it twice is seen."""
        file = os.open(self.file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, f"{kind} {key}\n".encode())
            os.fsync(file)
        finally:
            os.close(file)

    def happened(self, kind: str, key: str) -> bool:
        return self.effects()[kind, key] > 0

    def effects(self) -> Counter[tuple[str, str]]:
        """How often each was done."""
        try:
            lines = self.file.read_text().splitlines()
        except FileNotFoundError:
            return Counter()
        return Counter((kind, key) for kind, key in (line.split() for line in lines))
