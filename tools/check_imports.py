"""Imports point one way: from a room to the rooms its data came from, never to the next.

Checks every module of `src/stator`. A room may import the rooms before it in `ORDER`. Departures stand in `DEPARTURES`,
each with its reason, and one that is no longer needed is an error too. The compiler stator replaces may be imported
nowhere; a backend that a user names is the one exception. Imports inside functions hide cycles and are refused.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "stator"

# The shared base, then the rooms in the order data walks through them.
BASE = ("config", "events", "exc", "reasons", "values.source", "_native")
ORDER = (
    *BASE, "bytecode", "sizes", "tensors", "values", "capture", "resume", "guards", "aot", "lower", "loops", "emit",
    "runtime", "observe", "api", "debug", "__main__",
)  # fmt: skip
RANK = {room: -1 if room in BASE else place for place, room in enumerate(ORDER)}

# (who, whom): why. What is declared here is refused the other way round.
DEPARTURES = {
    ("lower", "loops"): "rules of the table are written in the loop language, whose definition is in loops",
}
# Who may use the C core, beside its own Python half.
NATIVE_USERS = frozenset({"_native", "capture", "resume", "guards", "runtime", "api"})
# Rooms that only consume what the base defines.
BASE_ONLY = frozenset({"observe"})

BANNED = ("torch._dynamo", "torch._inductor", "torch._functorch.aot_autograd", "torch._functorch.partitioners")
# Files that may import a banned module, and why.
ALLOWED_BANNED = {"api/backends.py": "a backend of torch's own registry that a user names"}


def room_of(parts: tuple[str, ...]) -> str:
    """The room a dotted path inside the package belongs to."""
    return "values.source" if parts[:2] == ("values", "source") else parts[0]


def modules_of(node: ast.AST) -> Iterator[str]:
    """Dotted names a node imports; for `from a import b` it is `a.b`."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("importlib.import_module", "__import__"):
        if node.args and isinstance(node.args[0], ast.Constant):
            yield str(node.args[0].value)


def dotted(node: ast.AST) -> str:
    """`torch._dynamo` for an attribute chain over a name, else nothing."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(names)]) if isinstance(node, ast.Name) else ""


def is_banned(module: str) -> bool:
    return any(module == name or module.startswith(name + ".") for name in BANNED)


def check(path: Path, used: set[tuple[str, str]]) -> Iterator[str]:
    """Complaints about one file."""
    inside = path.relative_to(PACKAGE)
    room = room_of(inside.with_suffix("").parts)
    tree = ast.parse(path.read_text())
    in_functions = {
        id(inner)
        for outer in ast.walk(tree)
        if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for inner in ast.walk(outer)
    }
    for node in ast.walk(tree):
        where = f"src/stator/{inside}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.ImportFrom) and node.level:
            yield f"{where}: relative import; say where the name comes from"
            continue
        if isinstance(node, (ast.Import, ast.ImportFrom)) and id(node) in in_functions:
            yield f"{where}: import inside a function"
        for module in (*modules_of(node), dotted(node)):
            if is_banned(module) and str(inside) not in ALLOWED_BANNED:
                yield f"{where}: {module} is the compiler this one stands in for"
        if room == "__init__":
            continue
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for module in modules_of(node):
                parts = tuple(module.split("."))
                if parts[0] == "stator" and len(parts) > 1:
                    yield from direction(where, room, room_of(parts[1:]), used)


def direction(where: str, room: str, target: str, used: set[tuple[str, str]]) -> Iterator[str]:
    """Complaints about `room` importing `target`."""
    if target == room:
        return
    if target not in RANK or room not in RANK:
        yield f"{where}: {room} or {target} has no place in the order of rooms (tools/check_imports.py)"
    elif (room, target) in DEPARTURES:
        used.add((room, target))
    elif target == "_native" and room not in NATIVE_USERS:
        yield f"{where}: {room} may not use the C core"
    elif room in BASE_ONLY and target not in BASE:
        yield f"{where}: {room} only consumes what the base defines, and {target} is not in it"
    elif RANK[target] > RANK[room] or (target, room) in DEPARTURES:
        yield f"{where}: {room} comes before {target} and may not know it"


def main() -> int:
    used: set[tuple[str, str]] = set()
    files = sorted(PACKAGE.rglob("*.py"))
    complaints = [complaint for path in files for complaint in check(path, used)]
    complaints += [f"{who} -> {whom}: declared departure that nothing needs" for who, whom in set(DEPARTURES) - used]
    print("\n".join(complaints) or f"imports: {len(files)} files, all in order, {len(used)} declared departure")
    return bool(complaints)


if __name__ == "__main__":
    sys.exit(main())
