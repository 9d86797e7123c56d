"""The public face as a file: names, signatures and error codes, so that a change of them is seen and meant.

`python -m tools.public --write` records tests/api/public.json; a test compares it with what the modules say today.
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from tools import codes

ROOT: Final = Path(__file__).parent.parent
RECORD: Final = ROOT / "tests" / "api" / "public.json"
# What a program may import: the package, its faces, the contract of agents, errors, and what a backend proves itself with.
MODULES: Final = (
    "stateroom", "stateroom.face", "stateroom.blocking", "stateroom.client", "stateroom.stack", "stateroom.flows.agent",
    "stateroom.hosting.callable", "stateroom.hosting.model", "stateroom.hosting.tape", "stateroom.errors", "stateroom.limits",
    "stateroom.principal", "stateroom.clock", "stateroom.batch", "stateroom.backends.base", "stateroom.conversation.store",
    "stateroom.session.store", "stateroom.run.store", "stateroom.connection.store",
)  # fmt: skip


def today() -> dict[str, Any]:
    """Module -> name -> signature, value or members; and every error code with its class."""
    return {
        "modules": {name: names(importlib.import_module(name)) for name in MODULES},
        "codes": sorted(codes.found()),
    }


def names(module: ModuleType) -> dict[str, Any]:
    """What a module gives away: its `__all__`, else everything public that it defines itself."""
    listed = getattr(module, "__all__", None)
    own = [name for name in vars(module) if not name.startswith("_") and name != "annotations" and is_own(module, name)]
    return {name: described(getattr(module, name)) for name in sorted(listed if listed is not None else own)}


def is_own(module: ModuleType, name: str) -> bool:
    value = vars(module)[name]
    if isinstance(value, ModuleType) or type(value).__name__ in ("TypeVar", "ParamSpec"):
        return False
    return getattr(value, "__module__", module.__name__) == module.__name__ or name.isupper()


def described(value: Any) -> Any:
    if inspect.isclass(value):
        return members(value)
    if callable(value) and not hasattr(value, "__args__"):
        return signature(value)
    return value if isinstance(value, int | float | str) else type(value).__name__


def members(cls: type) -> dict[str, Any]:
    """A class: what it derives from, its fields, and its public methods."""
    found: dict[str, Any] = {"bases": [base.__name__ for base in cls.__bases__ if base is not object]}
    fields = {name: str(kind) for name, kind in inspect.get_annotations(cls).items() if not name.startswith("_")}
    if fields:
        found["fields"] = fields
    if "__init__" in vars(cls):
        found["__init__"] = signature(vars(cls)["__init__"])
    for name, value in vars(cls).items():
        if name.startswith("_") or name in fields:
            continue
        inner = getattr(value, "__func__", value)
        if callable(inner):
            found[name] = signature(inner)
        elif isinstance(inner, property):
            found[name] = "property"
        elif isinstance(inner, int | float | str):
            found[name] = inner
    return found


def signature(function: Any) -> str:
    try:
        return str(inspect.signature(function))
    except ValueError:  # written in C: it says nothing of itself
        return "(…)"


def main(given: list[str]) -> int:
    text = json.dumps(today(), indent=1, ensure_ascii=False, sort_keys=True) + "\n"
    if "--write" in given:
        RECORD.write_text(text, encoding="utf-8")
    same = RECORD.exists() and RECORD.read_text(encoding="utf-8") == text
    print("the public face is as recorded" if same else "the public face differs from tests/api/public.json")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
