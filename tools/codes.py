"""Every error code the sources can answer with, and where. Codes are stable: clients branch on them.

A code is a constant: the `code` of an error class, what is given to a parameter named `code`, the `"code"` of a literal
object, the reason of an `End`. `python -m tools.codes` lists them.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

SRC: Final = Path(__file__).parent.parent / "src"


class Place(NamedTuple):
    """Where a code is given, and to what: an error class, a function, or nothing."""

    where: str
    callee: str


def found(src: Path = SRC) -> Mapping[str, list[Place]]:
    """Code -> the places that answer with it."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(src.rglob("*.py"))}
    everywhere = {"End": 1} | {name: place for tree in trees.values() for name, place in by_position(tree).items()}
    places: defaultdict[str, list[Place]] = defaultdict(list)
    for path, tree in trees.items():
        for line, callee, code in in_tree(tree, {**everywhere, **by_position(tree)}):
            places[code].append(Place(f"{path.relative_to(src).as_posix()}:{line}", callee))
    return dict(places)


def in_tree(tree: ast.Module, takers: Mapping[str, int]) -> Iterator[tuple[int, str, str]]:
    """Line, callee and code. `takers` has, per function, which positional argument is a code."""
    for node in ast.walk(tree):
        for value in filter(None, given(node, takers)):
            yield from ((value.lineno, callee_of(node), code) for code in constants(value))


def callee_of(node: ast.AST) -> str:
    if isinstance(node, ast.ClassDef):
        return node.name
    function = getattr(node, "func", None)
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def by_position(tree: ast.Module) -> dict[str, int]:
    """The module's functions that take a code by position, and as which argument."""
    takers = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names = [arg.arg for arg in node.args.args if arg.arg not in ("self", "cls")]
            if "code" in names:
                takers[node.name] = names.index("code")
    return takers


def given(node: ast.AST, takers: Mapping[str, int]) -> Iterator[ast.expr | None]:
    """The expressions of a node that are error codes."""
    if isinstance(node, ast.Call):
        yield from (word.value for word in node.keywords if word.arg == "code")
        if (name := callee_of(node)) in takers:
            yield from node.args[takers[name] : takers[name] + 1]
    elif isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        yield from (value for key, value in pairs if isinstance(key, ast.Constant) and key.value == "code")
    elif isinstance(node, ast.ClassDef):
        yield from (part.value for part in node.body if isinstance(part, ast.Assign | ast.AnnAssign) and named_code(part))
    elif isinstance(node, ast.Assign) and named_code(node):
        yield node.value


def named_code(node: ast.Assign | ast.AnnAssign) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return any(isinstance(target, ast.Name) and target.id == "code" for target in targets)


def constants(value: ast.expr) -> Iterator[str]:
    """The texts an expression can be, as far as they are written there."""
    if isinstance(value, ast.Constant) and isinstance(value.value, str) and value.value:
        yield value.value
    elif isinstance(value, ast.IfExp):
        yield from constants(value.body)
        yield from constants(value.orelse)
    elif isinstance(value, ast.BoolOp):
        for part in value.values:
            yield from constants(part)
    elif isinstance(value, ast.Call):  # table.get(key, "otherwise")
        for part in value.args[1:]:
            yield from constants(part)


if __name__ == "__main__":
    for code, places in sorted(found().items()):
        print(f"{code:32} {places[0].callee:20} {places[0].where}")
