"""Which local slots a frame still needs, per instruction: what a snapshot has to carry.

Contract. `liveness(decoded)[i]` is the set of slots ("localsplus" indexes) whose content before instruction i can still
be observed from there, through jumps, exceptions and handlers included. A slot that must be bound counts as observed
(`del x`), and so does a cell that is stored into: the cell itself is what lives. Two things observe behind the code's
back, and keep slots alive throughout: zero-argument `super()` reads the first argument, and a function that names one
of `OBSERVERS` may look at all of its locals.
"""

from __future__ import annotations

from stator.bytecode.cache import CodeCache
from stator.bytecode.decode import LOCAL, DecodedCode
from stator.bytecode.stack import NO_FALL_THROUGH

# Names whose mention means that somebody may look at the frame's locals as a whole.
OBSERVERS = frozenset(
    {
        "locals",
        "vars",
        "dir",
        "eval",
        "exec",
        "breakpoint",
        "_getframe",
        "currentframe",
        "stack",
        "f_locals",
        "set_trace",
    }
)

# name -> slots read ("u") and overwritten ("d") by the argument, or by its two nibbles.
_EFFECTS: dict[str, tuple[str, ...]] = {
    "STORE_FAST": ("d",),
    "DELETE_FAST": ("u",),
    "LOAD_FAST_LOAD_FAST": ("u", "u"),
    "LOAD_FAST_BORROW_LOAD_FAST_BORROW": ("u", "u"),
    "STORE_FAST_LOAD_FAST": ("d", "u"),
    "STORE_FAST_STORE_FAST": ("d", "d"),
    **dict.fromkeys(
        (
            "LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_AND_CLEAR", "LOAD_FAST_BORROW", "MAKE_CELL", "LOAD_CLOSURE",
            "LOAD_DEREF", "STORE_DEREF", "DELETE_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF",
        ),
        ("u",),
    ),
}  # fmt: skip


def _masks(name: str, arg: int) -> tuple[int, int]:
    """Slots read and slots overwritten, as bits."""
    effects = _EFFECTS.get(name)
    if effects is None:
        return 0, 0
    used = defined = 0
    for effect, slot in zip(effects, (arg,) if len(effects) == 1 else (arg >> 4, arg & 15), strict=True):
        if effect == "d":
            defined |= 1 << slot
        elif not defined >> slot & 1:
            used |= 1 << slot
    return used, defined


def _always_live(decoded: DecodedCode) -> int:
    names = {row.value for row in decoded.instructions if isinstance(row.value, str)}
    if names & OBSERVERS:
        return (1 << len(decoded.localsplus_names)) - 1
    if "__class__" in decoded.free_indexes and decoded.localsplus_kinds[0] & LOCAL:
        return 1
    return 0


def _solve(decoded: DecodedCode) -> list[int]:
    instructions = decoded.instructions
    handlers = decoded.handler_of
    effects = [_masks(row.opname, row.arg) for row in instructions]
    always = _always_live(decoded)
    live = [always] * (len(instructions) + 1)
    changed = True
    while changed:
        changed = False
        for row in reversed(instructions):
            index = row.index
            out = live[index + 1] if row.opname not in NO_FALL_THROUGH else always
            if row.target >= 0:
                out |= live[row.target]
            used, defined = effects[index]
            into = used | (out & ~defined)
            handler = handlers[index]
            if handler is not None:
                into |= live[handler.target]
            into |= always
            if into != live[index]:
                live[index] = into
                changed = True
    return live[:-1]


_solved: CodeCache[list[frozenset[int]]] = CodeCache()


def liveness(decoded: DecodedCode) -> list[frozenset[int]]:
    """Per instruction, the slots whose content may still be observed."""
    known = _solved.get(decoded.code)
    if known is not None:
        return known
    sets: dict[int, frozenset[int]] = {}
    result = []
    for mask in _solve(decoded):
        if mask not in sets:
            sets[mask] = frozenset(slot for slot in range(mask.bit_length()) if mask >> slot & 1)
        result.append(sets[mask])
    return _solved.put(decoded.code, result)
