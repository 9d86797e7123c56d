"""A process of a bench, asked line by line: JSON goes in, JSON comes out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


class Child:
    """`python -m` with what is given. What it says beside its answers goes to `log`, if there is one."""

    def __init__(self, *command: str, log: Path | None = None, env: Mapping[str, str] | None = None) -> None:
        self.log, said = log, log.open("w") if log else None
        self.process = subprocess.Popen(
            [sys.executable, "-m", *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True, cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), **(env or {})},
        )  # fmt: skip
        if said:
            said.close()

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.process.args} ended:\n{self.log.read_text()[-2000:] if self.log else ''}")
        return json.loads(line)

    def ask(self, *order: Any) -> Any:
        self.tell(json.dumps(order))
        return self.answer()

    def end(self) -> None:
        with self.process:  # closes its pipes and waits for it
            assert self.process.stdin is not None
            self.process.stdin.close()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
