"""The lock files. `python -m tools.lock` writes them with uv (`make lock`), `--check` looks at them without network.

requirements.lock has what runs Stateroom and its server, requirements-dev.lock everything a developer needs,
requirements-bench.lock the peers that `make bench` runs beside us. They name versions, markers and hashes, and no address:
where packages come from is the business of the machine that installs.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from packaging.requirements import Requirement

ROOT: Final = Path(__file__).parent.parent
RUN: Final = "requirements.lock"
DEV: Final = "requirements-dev.lock"
BENCH: Final = "requirements-bench.lock"
HEAD: Final = "# Written by `make lock` from pyproject.toml; do not edit.\n"
COMPILE: Final = (
    "pip", "compile", "--quiet", "--universal", "--python-version", "3.11", "--generate-hashes", "--no-emit-index-url",
    "--no-header", "--annotation-style", "line", "pyproject.toml",
)  # fmt: skip
EXTRAS: Final = ("server",)
WANTED: Final[Mapping[str, tuple[str, ...]]] = {
    RUN: ("--extra", "server", "--group", "build"),
    DEV: ("--all-extras", "--group", "dev", "--constraint", RUN),
    BENCH: ("--extra", "server", "--group", "bench"),  # an environment of its own: peers hold some packages back
}
GROUPS: Final[Mapping[str, str]] = {RUN: "build", DEV: "dev", BENCH: "bench"}
PIN: Final = re.compile(r"^([a-z0-9._-]+)==(\S+)", re.MULTILINE)


def write(uv: str, *, upgrade: bool) -> None:
    """All of them; versions that still fit stay, unless `upgrade`."""
    for name, wanted in WANTED.items():
        subprocess.run([uv, *COMPILE, *wanted, *(["--upgrade"] if upgrade else []), "--output-file", name], cwd=ROOT, check=True)
        lock = ROOT / name
        lock.write_text(HEAD + lock.read_text(encoding="utf-8").replace(HEAD, ""), encoding="utf-8")


def faults(locks: Mapping[str, str], project: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with the locks' texts, one line each."""
    pins = {name: dict(PIN.findall(text)) for name, text in locks.items()}
    for name, text in locks.items():
        if "://" in text:
            yield f"{name} names an address"
        for entry in re.split(r"\n(?=[a-z0-9])", text.partition("\n")[2]):
            if "--hash=sha256:" not in entry:
                yield f"{name} has no hash for {entry.split()[0]}"
        for given in wanted(project, name):
            version = pins[name].get(given.name.lower())
            if version is None or not given.specifier.contains(version):
                yield f"{name} has {given.name} {version}, pyproject.toml asks for {given}"
    for package, version in pins[RUN].items():
        if pins[DEV].get(package) != version:
            yield f"{package} is {version} in {RUN} and {pins[DEV].get(package)} in {DEV}"


def wanted(project: Mapping[str, Any], lock: str) -> list[Requirement]:
    """What pyproject.toml asks for."""
    extras = project["project"]["optional-dependencies"]
    asked = [*project["project"]["dependencies"]]
    for extra in extras if lock == DEV else EXTRAS:
        asked += extras[extra]
    for group in {"build", GROUPS[lock]}:
        asked += [line for line in project["dependency-groups"][group] if isinstance(line, str)]
    return [Requirement(line) for line in asked]


def main(given: list[str]) -> int:
    if "--check" not in given:
        write(given[0], upgrade="--upgrade" in given)
    locks = {name: (ROOT / name).read_text(encoding="utf-8") for name in WANTED}
    found = list(faults(locks, tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))))
    print(*found, f"locks: {len(found)} faults", sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
