"""The core imports in under 150 ms, or, on a slow machine, in little more than what it stands on."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from pathlib import Path

MS_MAX = 150
RATIO_MAX = 2.5
TRIES = 5

MEASURE = "import time; start = time.perf_counter(); import {}; print((time.perf_counter() - start) * 1000)"


def ms(modules: str, cache: Path) -> float:
    """Time of the import in a fresh process, from compiled files as on any machine where it ran before."""
    compiled = {**os.environ, "PYTHONPYCACHEPREFIX": str(cache)}
    compiled.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-c", MEASURE.format(modules)]
    return float(subprocess.run(command, capture_output=True, check=True, timeout=60, env=compiled).stdout)


def test_the_core_imports_quickly(tmp_path: Path) -> None:
    """Measured by turns, so that a busy machine slows both; the first pair compiles."""
    pairs = [(ms("stateroom.face", tmp_path), ms("msgspec, anyio, apsw, asyncio", tmp_path)) for _ in range(TRIES + 1)][1:]
    ours, ratio = statistics.median(pair[0] for pair in pairs), statistics.median(pair[0] / pair[1] for pair in pairs)
    assert ours < MS_MAX or ratio < RATIO_MAX, f"stateroom.face takes {ours:.0f} ms, {ratio:.1f} x what it stands on"


def test_the_package_itself_loads_no_store_and_no_server() -> None:
    code = "import sys, stateroom; print(*{'apsw', 'starlette', 'uvicorn', 'httpx2', 'stateroom.stack'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=60, text=True)
    assert found.stdout.split() == []


def test_the_core_needs_no_extra() -> None:
    """Embedding works where only the core dependencies are installed."""
    block = "import sys; sys.modules.update(dict.fromkeys(['starlette', 'uvicorn', 'httpx2', 'uvloop', 'httptools']))"
    code = f"{block}; import stateroom.face, stateroom.blocking, stateroom.cli.main"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
