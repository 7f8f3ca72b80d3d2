from collections.abc import Callable, Mapping
from types import CodeType, FunctionType
from typing import Any

OPCODES: dict[str, int]
tensor_layout: object

class GuardProgram:
    facts: int
    dead: bool
    instruction_count: int
    def __init__(
        self,
        registers: int,
        integers: int,
        instructions: list[tuple[Any, ...]],
        groups: list[tuple[int, ...]],
        fetches: list[int],
        tensors: list[Any],
        modes: list[Any],
        sizes: list[Any],
        ranges: list[Any],
    ) -> None: ...
    def check(self, function: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...] | None: ...
    def listing(self) -> list[tuple[str, int, int, int, int]]: ...

class Entry:
    program: GuardProgram
    residual: Callable[..., Any]
    owner: Any
    hits: int
    passes_function: bool
    in_table: bool
    def __init__(
        self, program: GuardProgram, residual: Callable[..., Any], passes_function: bool = False, owner: Any = None
    ) -> None: ...

class EntryTable:
    lock: Any
    entries: tuple[Entry, ...]
    def __init__(self) -> None: ...
    def insert(self, entry: Entry) -> bool: ...
    def remove(self, entry: Entry) -> bool: ...
    def clear(self) -> None: ...

class TailCall:
    callable: Callable[..., Any]
    args: tuple[Any, ...]
    def __init__(self, callable: Callable[..., Any], *args: Any) -> None: ...

class Dispatcher:
    __wrapped__: Any
    __stator_function__: FunctionType
    __code__: CodeType
    __name__: str
    __qualname__: str
    __stator_table__: EntryTable
    __stator_on_miss__: Callable[[Any, Any, tuple[Any, ...]], Any]
    def __init__(
        self,
        function: Callable[..., Any],
        table: EntryTable,
        on_miss: Callable[[Any, Any, tuple[Any, ...]], Any],
    ) -> None: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __get__(self, instance: Any, owner: Any = None) -> Any: ...

class Continuation:
    names: tuple[str, ...]
    __stator_table__: EntryTable
    __stator_on_miss__: Callable[[Any, Any, tuple[Any, ...]], Any]
    def __init__(
        self, table: EntryTable, on_miss: Callable[[Any, Any, tuple[Any, ...]], Any], names: tuple[str, ...]
    ) -> None: ...
    def __call__(self, *args: Any) -> Any: ...

def set_mode(mode: int) -> int: ...
def get_mode() -> int: ...
def is_field(kind: type, name: str) -> bool: ...
def read_mode_codes(device_type: int) -> dict[str, int]: ...
def read_tensor(tensor: Any) -> dict[str, Any] | None: ...
def set_device_type(kind: type) -> None: ...
def set_mode_readers(addresses: Mapping[str, int]) -> None: ...
def set_slow_ways(
    follow: Callable[[str, Any, Any], Any], tensor_matches: Callable[[Any, Any], bool], modes: Callable[[Any], bool]
) -> None: ...
def set_tensor_layout(
    level: int, offsets: Mapping[str, int], masks: Mapping[str, int], addresses: Mapping[str, int], keys: Any
) -> None: ...
