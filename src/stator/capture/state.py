"""What the parts of the interpreter share: the state of one trace, and the operations they call on each other.

Contract. `TracerState` holds the data of one trace. The parts (`attributes`, `calls`, `operators`, `iteration`,
`recording`) are mixin classes over it, one concept a file; `tracer.py` joins them. The methods declared here without
a body are provided by the parts, so that each part can call the others without importing them.

Every operation of the traced program that runs natively goes through `native`, which turns what it raises into a
`UserException`: any other exception that escapes a handler is a defect of stator and never reaches user code.

State: one trace, one thread; nothing is shared.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterable
from typing import Any

from stator.capture.ahead import Ahead
from stator.capture.control import Break, Restart, TraceControl, UserException
from stator.capture.frame import UNBOUND, Frame
from stator.capture.generalising import Generaliser
from stator.capture.graph import GraphBuilder, stack_line
from stator.events import Location, is_own, is_users
from stator.exc import UserError
from stator.sizes import DynamicHistory, SizeContext
from stator.values.constants import guard_kind
from stator.values.source import SourceTree
from stator.values.world import World


class TracerState:
    """The data of one trace."""

    finished = True  # once it was released

    def __init__(self, tree: SourceTree) -> None:
        self.tree = tree
        self.frames: list[Frame] = []
        self.showing: set[int] = set()  # containers whose text is being made
        self.handled: BaseException | None = None
        self.graph = GraphBuilder(self.stack_trace, self.location)
        self.world = World(tree, self.location)
        self.own_cells: dict[int, types.CellType] = {}
        self.cell_sources: dict[int, Any] = {}
        self.trusted_cells: set[int] = set()  # of functions of Python's and torch's own
        self.step = 0  # instructions executed so far: names a point of the trace, when it is made again
        self.break_at: dict[int, Break] = {}
        self.last_raised: BaseException | None = None
        # The exception the trace starts with. Its frames are real ones that the trace does not have: it may not
        # outlive the trace.
        self.arrived: BaseException | None = None
        self.error_on_break: bool | None = None  # what `error_on_graph_break` says here, if anything
        self.raised_at: dict[int, int] = {}  # id of an exception -> the step that first raised it
        # id of an exception -> the instructions it passed, innermost first
        self.passed: dict[int, list[tuple[types.CodeType, int, dict[str, Any]]]] = {}
        # id of a stand-in for a traceback -> it, its exception, the places
        self.tracebacks: dict[int, tuple[types.TracebackType, BaseException, list[Any]]] = {}
        self.raised_step = 0  # where the exception that is under way was first raised
        self.index_walks: dict[int, Any] = {}  # id of our iterator over `__getitem__` -> it, its object, the index
        self.hashed: set[int] = set()  # own objects whose `__hash__` is known to only compute
        self.own_functions: dict[int, Any] = {}
        self.generators: dict[int, Any] = {}  # id of a generator object of ours -> its driver
        self.loaded_globals: dict[tuple[int, str], Any] = {}
        self.effects: list[Any] = []  # replayed calls (printing), in order
        self.ahead: dict[int, Ahead] = {}  # id of a live iterator -> what it gives next
        self.gathers = False  # whether a body is traced in which indices vary from element to element
        self.numbers: dict[int, Any] = {}  # tensors that stand for Python numbers, by id: they decide no dtype
        self.born: dict[int, int] = {}  # id of an object C code made -> the step that did
        self.broke_in_c = False  # whether C code was in the middle of something when the trace was left
        self.modes_read: set[str] = set()
        self.proxied: dict[int, Any] = {}  # id of a callable made for C code -> the program's own
        self.code_of_root: types.CodeType | None = None
        self.finished = False
        # The torch function modes of the program, the innermost last, and those it came with.
        self.function_modes: list[Any] = []
        self.outer_modes: tuple[Any, ...] = ()
        # Inference mode: what holds it in the trace, the step that made that, and whether operations ran under it.
        self.inference: Any = None
        self.inference_made = 0
        self.inference_over = False
        self.nesting = 0  # autocast contexts entered, less those left
        self.generaliser: Generaliser | None = None

    # Where we are

    def location(self) -> Location | None:
        """The user's current line: that of the innermost frame outside torch and stator, else of the innermost."""
        inward = [frame for frame in reversed(self.frames) if not is_own(frame.code.co_filename)]
        if not inward:
            return None
        frame = next((frame for frame in inward if is_users(frame.code.co_filename)), inward[0])
        return Location(frame.code.co_filename, frame.line(), frame.code.co_name)

    def stack_trace(self) -> str:
        """The user's frames as text, outermost first."""
        return "".join(stack_line(frame.code, frame.line()) for frame in self.frames)

    def generalise_by(self, history: DynamicHistory) -> None:
        """Let sizes and numbers that vary be symbolic in this trace."""
        context = SizeContext(self.location)
        self.graph.sizes = context
        context.on_assert = self.graph.assert_at_run_time
        self.generaliser = Generaliser(history, self.graph, context)
        self.world.generalise = self.generaliser.number
        self.world.would_vary = self.generaliser.would_vary
        self.world.generalise_tensor = self.generaliser.tensor

    def mark_symbolic(self) -> None:
        """There are symbols in this trace."""
        if self.generaliser is not None:
            self.generaliser.used = True

    def indirect(self) -> None:
        """What runs next is not the last thing the current instruction does: the trace cannot be left in there."""
        self.frames[-1].resumable = False

    def require_traceback(self, error: Any) -> None:
        """The program looks at where an exception was raised: have the original code raise it, in real frames."""
        step = self.raised_at.get(id(error))
        if step is not None:
            raise Restart(step, Break("traceback_needed", type(error).__name__))

    def traceback_of(self, error: BaseException) -> types.TracebackType | None:
        """The traceback of an exception that is being handled, to be handed on but not looked into.

        For an exception of the trace it is a stand-in: the places it passed are known, its frames never ran.
        """
        places = self.passed.get(id(error))
        if places is None:
            return error.__traceback__
        stand_in = types.TracebackType(None, sys._getframe(), 0, 1)
        self.tracebacks[id(stand_in)] = (stand_in, error, list(places))
        return stand_in

    # Running natively

    def native(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run an operation of the traced program; what it raises is the program's exception."""
        try:
            made = function(*args, **kwargs)
            self.born[id(made)] = self.frames[-1].step
            if type(made) is tuple:
                self.born.update((id(part), self.frames[-1].step) for part in made)
            return made
        except (TraceControl, UserError):
            raise
        except RecursionError:
            raise Break("recursion_limit") from None
        except BaseException as error:
            if not isinstance(error, (Exception, GeneratorExit, SystemExit)) and id(error) not in self.raised_at:
                raise  # nothing of the program's: somebody wants this thread to stop
            error.__traceback__ = None
            raised = error
        raise UserException(raised)

    # Cells

    def new_cell(self, value: Any) -> types.CellType:
        cell = types.CellType() if value is UNBOUND else types.CellType(value)
        self.own_cells[id(cell)] = cell
        return cell

    def read_cell(self, cell: types.CellType) -> Any:
        """The contents, or UNBOUND."""
        written = self.world.written(cell, "cell_contents")
        if written is not NotImplemented:
            return written
        try:
            value = cell.cell_contents
        except ValueError:
            return UNBOUND
        if id(cell) in self.own_cells:
            return value
        source = self.cell_sources.get(id(cell))
        if id(cell) in self.trusted_cells and guard_kind(value) == "IS":
            return value
        if source is None:
            raise Break("cell_without_origin", "a closure variable")
        return self.world.load(value, source)

    def write_cell(self, cell: types.CellType, value: Any) -> None:
        if id(cell) in self.own_cells:
            if value is UNBOUND:
                del cell.cell_contents
            else:
                cell.cell_contents = value
        else:
            self.world.write_attribute(cell, "cell_contents", value)

    # Provided by the parts

    def run(self, frame: Frame, error: BaseException | None = None) -> Any:
        raise NotImplementedError

    def resume_generator(self, frame: Frame, sent: Any, error: BaseException | None) -> Any:
        raise NotImplementedError

    def is_python_method(self, value: Any, name: str) -> bool:
        raise NotImplementedError

    def call(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        raise NotImplementedError

    def load_attr(self, target: Any, name: str) -> Any:
        raise NotImplementedError

    def store_attr(self, target: Any, name: str, value: Any) -> None:
        raise NotImplementedError

    def delete_attr(self, target: Any, name: str) -> None:
        raise NotImplementedError

    def special(self, value: Any, name: str) -> Any:
        raise NotImplementedError

    def binary(self, symbol: str, left: Any, right: Any) -> Any:
        raise NotImplementedError

    def unary(self, symbol: str, value: Any) -> Any:
        raise NotImplementedError

    def compare(self, symbol: str, left: Any, right: Any) -> Any:
        raise NotImplementedError

    def truth(self, value: Any, what: str = "bool") -> Any:
        raise NotImplementedError

    def identical(self, left: Any, right: Any) -> bool:
        raise NotImplementedError

    def contains(self, container: Any, item: Any) -> bool:
        raise NotImplementedError

    def length(self, value: Any) -> Any:
        raise NotImplementedError

    def get_item(self, container: Any, key: Any) -> Any:
        raise NotImplementedError

    def set_item(self, container: Any, key: Any, value: Any) -> None:
        raise NotImplementedError

    def delete_item(self, container: Any, key: Any) -> None:
        raise NotImplementedError

    def format(self, value: Any, conversion: str, specification: Any) -> str:
        raise NotImplementedError

    def iterate(self, value: Any) -> Any:
        raise NotImplementedError

    def advance(self, iterator: Any) -> tuple[bool, Any]:
        raise NotImplementedError

    def listed(self, value: Any) -> list[Any]:
        raise NotImplementedError

    def pairs_of(self, value: Any) -> dict[Any, Any]:
        raise NotImplementedError

    def check_hashable(self, value: Any) -> Any:
        raise NotImplementedError

    def is_instance(self, value: Any, kinds: Any) -> bool:
        raise NotImplementedError

    def type_of(self, value: Any) -> type:
        raise NotImplementedError

    def _guard_lookup(self, kind: type, name: str, value: Any) -> None:
        raise NotImplementedError

    def as_kind(self, tensor: Any, cls: type) -> Any:
        raise NotImplementedError

    def _interpret(self, function: types.FunctionType, args: list[Any], kwargs: dict[str, Any]) -> Any:
        raise NotImplementedError

    def operate(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        raise NotImplementedError

    def array_attr(self, array: Any, name: str) -> Any:
        raise NotImplementedError

    def tensor_attr(self, tensor: Any, name: str) -> Any:
        raise NotImplementedError

    def store_tensor_attr(self, tensor: Any, name: str, value: Any) -> None:
        raise NotImplementedError

    def callable_for_c(self, function: Any) -> Any:
        raise NotImplementedError

    def described(self, function: Any) -> str:
        raise NotImplementedError

    def for_c(self, values: Iterable[Any]) -> list[Any]:
        raise NotImplementedError
