"""Guards: the conditions a compiled entry assumed, checked natively and explained from the same data.

`reference` says in Python what each guard means, `compile_guards` turns a tree into a native program.
"""

from stator.guards.compile import compile_guards
from stator.guards.filters import drop_unwanted
from stator.guards.reference import Miss, all_misses, evaluate, explain_miss
from stator.guards.size_program import SizeProgram
from stator.guards.weak import weaken

__all__ = ["Miss", "SizeProgram", "all_misses", "compile_guards", "drop_unwanted", "evaluate", "explain_miss", "weaken"]
