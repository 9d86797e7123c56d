"""The house rules that no linter knows, held by the syntax tree. `python -m tools.house_rules [FILE…]` prints file:line
and exits 1 when one is broken; without files it reads src and tools.

What they say, exactly:
- a function has at most 50 lines, from `def` to its last line, docstring included; a file 400;
- a function takes at most 6 parameters beside self; a public one at most 3 of them by position, not counting the scope or
  transaction that comes first everywhere; the rest is keyword-only. Fields of records do not count;
- blocks are nested at most 4 deep inside a function; an `elif` is no deeper than its `if`, a nested function starts anew;
- nobody catches everything but the faces and the supervisor; a handler that raises again has caught nothing;
- nobody asks for the time or for random numbers but clock.py and ids.py (an event loop's time() is a stopwatch, and fine);
- nobody imports inside a function, except what an optional extra brings;
- no module keeps mutable state: lists, dicts and sets at the top are UPPER_CASE tables or annotated Final, Mapping,
  Sequence or frozenset, and the module never changes them; `global` is not used.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypeVar

FUNCTION_LINES_MAX: Final = 50
FILE_LINES_MAX: Final = 400
PARAMETERS_MAX: Final = 6
POSITIONAL_MAX: Final = 3
NESTING_MAX: Final = 4

ROOT: Final = Path(__file__).parent.parent
FACES: Final = ("stateroom/server/", "stateroom/cli/", "stateroom/flows/work.py", "stateroom/flows/perform.py")
BROAD_EXCEPT: Final[dict[str, str]] = {  # file -> why it may catch everything; at most five
    "session/doc.py": "Loro raises bare BaseException, which nobody above would catch",
    "backends/writer.py": "a fault while committing for others must reach them, not leave them waiting for ever",
}
TIME_AND_CHANCE: Final = ("stateroom/clock.py", "stateroom/ids.py")
CHANCE_MODULES: Final = frozenset({"time", "uuid", "random", "secrets"})
CHANCE_CALLS: Final = frozenset(
    {"os.urandom", "os.getrandom", "datetime.now", "datetime.utcnow", "datetime.today", "date.today", "uuid4", "uuid1"}
)
# What an optional extra brings, and what of ours needs it: the core imports without them.
OPTIONAL: Final = (
    "starlette", "uvicorn", "uvloop", "httptools", "httpx2",
    "stateroom.server", "stateroom.hosting.model", "stateroom.backends.postgres",
)  # fmt: skip

BLOCKS: Final = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.TryStar, ast.Match)
FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
MUTABLE: Final = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
MAKERS: Final = frozenset({"list", "dict", "set", "bytearray", "deque", "defaultdict", "OrderedDict", "Counter"})
SETTLED: Final = ("Final", "Mapping", "Sequence", "frozenset", "AbstractSet")
CHANGES: Final = frozenset(
    {"append", "extend", "insert", "remove", "pop", "popitem", "clear", "update", "setdefault", "add", "discard"}
)
Function = ast.FunctionDef | ast.AsyncFunctionDef
Found = tuple[int, str]
Node = TypeVar("Node", bound=ast.AST)


def check(path: str, source: str) -> list[Found]:
    """Every broken rule of a file: (line, what). `path` with slashes decides which exceptions apply."""
    tree = ast.parse(source)
    found = [*size(tree, source), *parameters(tree), *nesting(tree), *state(tree)]
    if not any(place in path for place in (*FACES, *BROAD_EXCEPT)):
        found += broad_except(tree)
    if not any(place in path for place in TIME_AND_CHANCE):
        found += time_and_chance(tree)
    return sorted([*found, *late_imports(tree)])


def size(tree: ast.Module, source: str) -> Iterator[Found]:
    if (lines := len(source.splitlines())) > FILE_LINES_MAX:
        yield 1, f"the file has {lines} lines, {FILE_LINES_MAX} are allowed"
    for function in functions(tree):
        if (lines := (function.end_lineno or 0) - function.lineno + 1) > FUNCTION_LINES_MAX:
            yield function.lineno, f"{function.name} has {lines} lines, {FUNCTION_LINES_MAX} are allowed"


def parameters(tree: ast.Module) -> Iterator[Found]:
    private = {inner for outer in of(tree, ast.ClassDef) if outer.name.startswith("_") for inner in functions(outer)}
    for function in functions(tree):
        given = function.args
        by_position = [arg.arg for arg in (*given.posonlyargs, *given.args) if arg.arg not in ("self", "cls")]
        if (count := len(by_position) + len(given.kwonlyargs)) > PARAMETERS_MAX:
            yield function.lineno, f"{function.name} takes {count} parameters, {PARAMETERS_MAX} are allowed"
        public = function not in private and (not function.name.startswith("_") or function.name == "__init__")
        if public and (count := len([name for name in by_position if name not in ("scope", "tx")])) > POSITIONAL_MAX:
            yield function.lineno, f"{function.name} takes {count} by position, {POSITIONAL_MAX} are allowed"


def nesting(tree: ast.Module) -> Iterator[Found]:
    for function in functions(tree):
        for block, depth in blocks(function.body, 1):
            if depth == NESTING_MAX + 1:
                yield block.lineno, f"a block is nested {depth} deep, {NESTING_MAX} is allowed"


def blocks(body: list[ast.stmt], depth: int) -> Iterator[tuple[ast.stmt, int]]:
    """Every block inside `body` with its depth; an elif is as deep as its if."""
    for statement in body:
        if not isinstance(statement, BLOCKS):
            continue
        yield statement, depth
        for field in ("body", "orelse", "finalbody"):
            inner = getattr(statement, field, [])
            is_elif = field == "orelse" and isinstance(statement, ast.If) and [type(part) for part in inner] == [ast.If]
            yield from blocks(inner, depth if is_elif else depth + 1)
        for part in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
            yield from blocks(part.body, depth + 1)


def broad_except(tree: ast.Module) -> Iterator[Found]:
    for handler in of(tree, ast.ExceptHandler):
        kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
        broad = any(kind is None or dotted(kind) in ("Exception", "BaseException") for kind in kinds)
        last = handler.body[-1]
        if broad and not (isinstance(last, ast.Raise) and last.exc is None):
            yield handler.lineno, "catches everything outside the faces and the supervisor"


def time_and_chance(tree: ast.Module) -> Iterator[Found]:
    for line, module in imports(tree):
        if module.split(".")[0] in CHANCE_MODULES:
            yield line, f"imports {module}; time and chance come from clock.py and ids.py"
    for call in of(tree, ast.Attribute):
        if (name := dotted(call)) and ".".join(name.split(".")[-2:]) in CHANCE_CALLS:
            yield call.lineno, f"uses {name}; time and chance come from clock.py and ids.py"


def late_imports(tree: ast.Module) -> Iterator[Found]:
    for function in functions(tree):
        for line, module in imports(function):
            if not any(module == name or module.startswith(f"{name}.") for name in OPTIONAL):
                yield line, f"{function.name} imports {module} inside"


def state(tree: ast.Module) -> Iterator[Found]:
    tables = set()
    for statement in tree.body:
        if not isinstance(statement, ast.Assign | ast.AnnAssign) or not is_mutable(statement.value):
            continue
        settled = isinstance(statement, ast.AnnAssign) and any(word in ast.unparse(statement.annotation) for word in SETTLED)
        for target in statement.targets if isinstance(statement, ast.Assign) else [statement.target]:
            name = ast.unparse(target)
            tables.add(name)
            if not (settled or name.isupper() or name == "__all__"):
                yield statement.lineno, f"{name} is mutable state of the module"
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            yield node.lineno, f"global {', '.join(node.names)}"
        elif isinstance(node, ast.Subscript | ast.Attribute) and dotted(node.value) in tables and changes(node):
            yield node.lineno, f"{dotted(node.value)} is a table and is changed here"


def changes(node: ast.Subscript | ast.Attribute) -> bool:
    return node.attr in CHANGES if isinstance(node, ast.Attribute) else not isinstance(node.ctx, ast.Load)


def is_mutable(value: ast.expr | None) -> bool:
    return isinstance(value, MUTABLE) or (isinstance(value, ast.Call) and dotted(value.func).split(".")[-1] in MAKERS)


def functions(tree: ast.AST) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, FUNCTIONS))


def of(tree: ast.AST, kind: type[Node]) -> Iterator[Node]:
    return (node for node in ast.walk(tree) if isinstance(node, kind))


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, node.module or "."


def dotted(node: ast.expr | None) -> str:
    """`a.b.c` for names and attributes; "" for anything else."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}".lstrip(".")
    return node.id if isinstance(node, ast.Name) else ""


def main(given: list[str]) -> int:
    paths = [Path(name) for name in given] or [*sorted((ROOT / "src").rglob("*.py")), *sorted((ROOT / "tools").rglob("*.py"))]
    broken = [(path, *rule) for path in paths for rule in check(path.as_posix(), path.read_text(encoding="utf-8"))]
    for path, line, what in broken:
        print(f"{path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}:{line}: {what}")
    print(f"house rules: {len(paths)} files, {len(broken)} broken")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
