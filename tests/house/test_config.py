"""What a type checker is told about `stator.config` is what its table says."""

import ast
import os
import pathlib
import subprocess
import sys

from stator.config import SETTINGS


def declarations():
    """name -> annotation, as written for type checkers."""
    tree = ast.parse((pathlib.Path(sys.modules["stator.config"].__file__)).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    return {node.target.id: ast.unparse(node.annotation) for node in block.body if isinstance(node, ast.AnnAssign)}


def annotation_of(row):
    if row.choices is not None:
        return f"Literal[{', '.join(repr(choice) for choice in row.choices)}]"
    kinds = row.types or (type(row.default),)
    return " | ".join(
        {"set": "set[Any]", "frozenset": "frozenset[Any]"}.get(one.__name__, one.__name__) for one in kinds
    )


def test_every_setting_is_declared_with_its_type():
    assert declarations() == {name: annotation_of(row) for name, row in SETTINGS.items()}


def test_a_bad_environment_variable_is_an_error_that_names_it():
    done = subprocess.run(
        [sys.executable, "-c", "import stator.config"],
        env={**os.environ, "STATOR_RECOMPILE_LIMIT": "many"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode and "STATOR_RECOMPILE_LIMIT" in done.stderr
