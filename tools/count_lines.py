"""Line counts of the package, by room: all lines, and those that are neither blank, comment nor docstring."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "stator"
# From the user's call to the graph, the guards and the residual program, with the C core under them.
FRONT_END = (
    "__init__", "__main__", "config", "events", "exc", "api", "reasons", "bytecode", "sizes", "tensors", "values",
    "capture", "resume", "guards", "_native/core",
)  # fmt: skip


def docstring_lines(tree: ast.Module) -> set[int]:
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and first.end_lineno:
                lines.update(range(first.lineno, first.end_lineno + 1))
    return lines


def count(path: Path) -> tuple[int, int]:
    """All lines, and lines of code."""
    text = path.read_text().splitlines()
    marker, skipped = ("#", docstring_lines(ast.parse("\n".join(text)))) if path.suffix == ".py" else ("//", set())
    code = sum(
        bool(line.strip()) and number not in skipped and not line.strip().startswith((marker, "/*", "* ", "*/"))
        for number, line in enumerate(text, 1)
    )
    return len(text), code


def room_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    if parts[0] == "_native":
        return "_native/program" if parts[1] == "program" else "_native/core"
    return parts[0]


def main() -> None:
    rooms: dict[str, tuple[int, int]] = {}
    for path in sorted(PACKAGE.rglob("*")):
        if path.suffix in (".py", ".c", ".h") and path.is_file():
            lines, code = count(path)
            before = rooms.get(room_of(path), (0, 0))
            rooms[room_of(path)] = (before[0] + lines, before[1] + code)
    print(f"{'room':<18}{'lines':>8}{'code':>8}")
    for room, (lines, code) in sorted(rooms.items(), key=lambda row: -row[1][0]):
        print(f"{room:<18}{lines:>8}{code:>8}{'  front end' if room in FRONT_END else ''}")
    for title, chosen in (("front end", [room for room in rooms if room in FRONT_END]), ("total", list(rooms))):
        totals = [sum(rooms[room][column] for room in chosen) for column in (0, 1)]
        print(f"{title:<18}{totals[0]:>8}{totals[1]:>8}")


if __name__ == "__main__":
    main()
