"""Symbols, decisions and what they record."""

from __future__ import annotations

import math

import pytest
import torch
from torch.fx.experimental.sym_node import SymNode

from stator.events import Location
from stator.exc import ConstraintViolationError, DataDependentError
from stator.sizes import SizeContext, SizeNode
from stator.values.source import SourceTree


class Line:
    """A stand-in for the capture's idea of where the user is."""

    number = 1

    def __call__(self):
        return Location("user.py", self.number, "forward")


@pytest.fixture
def line():
    return Line()


@pytest.fixture
def sizes(line):
    return SizeContext(line)


@pytest.fixture
def tensor():
    return SourceTree(("x", "y", "n")).local(0)


def texts(sizes):
    return [sizes.text(guard.expr) for guard in sizes.guards]


def test_every_public_method_of_torchs_node_is_replaced():
    inherited = [
        name
        for name in dir(SymNode)
        if not name.startswith("_") and callable(getattr(SymNode, name)) and name not in vars(SizeNode)
    ]
    assert inherited == []


def test_arithmetic_decides_nothing(sizes, tensor):
    size = sizes.symbol(tensor.child("SIZE", 0), 8)
    assert str(size * 2 + 1) == "2*s0 + 1"
    assert type(size - size) is int and size - size == 0
    assert str(-size) == "-s0"
    assert str(size // 4) == "s0 // 4"
    assert str(size % 4) == "s0 % 4"
    assert str(torch.sym_max(size, 3)) == "max(s0, 3)"
    assert str(torch.sym_sum([size, 1, size])) == "2*s0 + 1"
    assert str(size**3) == "s0*s0*s0"
    assert isinstance(size / 2, torch.SymFloat)
    assert str(torch.sym_ite(size == 3, size, size + 1)) == "(s0 if (s0 == 3) else (s0 + 1))"
    assert sizes.guards == []


def test_a_decision_records_a_guard_with_the_users_line_once(sizes, tensor, line):
    size = sizes.symbol(tensor.child("SIZE", 0), 8)
    line.number = 7
    assert size > 3
    line.number = 8
    assert size >= 4
    assert not size == 2
    (guard,) = sizes.guards
    assert sizes.text(guard.expr) == "x.size(0) >= 4"
    assert guard.location == Location("user.py", 7, "forward")


def test_equal_sizes_share_a_symbol_but_zero_and_one_do_not(sizes, tensor):
    first, second, third = (sizes.symbol(tensor.child("SIZE", dim), 8, duck=dim != 2) for dim in range(3))
    assert first == second and sizes.guards == []
    assert first == third and len(sizes.guards) == 1
    one, other = (sizes.symbol(tensor.child("SIZE", dim), 1) for dim in (3, 4))
    assert str(one) != str(other)
    assert sizes.specialisations == {}


def test_an_equality_guard_makes_views_of_either_size_known(sizes, tensor):
    first = sizes.symbol(tensor.child("SIZE", 0), 8, duck=False)
    second = sizes.symbol(tensor.child("SIZE", 1), 4, duck=False)
    assert first == 2 * second
    count = len(sizes.guards)
    assert first % 2 == 0 and first // 2 == second
    assert len(sizes.guards) == count


def test_plain_int_uses_specialise_with_their_line(sizes, tensor, line):
    size = sizes.symbol(tensor.child("SIZE", 0), 5)
    line.number = 12
    assert list(range(size)) == [0, 1, 2, 3, 4]
    (specialisation,) = sizes.specialisations.values()
    assert specialisation.value == 5 and specialisation.location.line == 12
    assert int(size) == 5 and len(sizes.guards) == 1
    assert sizes.concrete(size * 2) == 10


def test_zero_divisors_raise_as_python_does(sizes, tensor):
    size = sizes.symbol(tensor.child("SIZE", 0), 0)
    for divide in (lambda: 3 // size, lambda: 3 % size, lambda: 3 / size):
        with pytest.raises(ZeroDivisionError):
            divide()
    other = sizes.symbol(tensor.child("SIZE", 1), 2)
    assert str(7 // other) == "7 // s1"
    assert texts(sizes)[-1] == "x.size(1) >= 1"


def test_unbacked_decisions_name_the_line_and_the_check(sizes, line):
    count = sizes.unbacked("mask.sum().item()")
    line.number = 33
    with pytest.raises(DataDependentError) as caught:
        bool(count > 3)
    message = str(caught.value)
    assert message.startswith("user.py:33, in forward")
    assert "torch._check(u0 >= 4)" in message and "mask.sum().item()" in message
    assert caught.value.reason == "data_dependent_size"
    with pytest.raises(DataDependentError):
        int(count)


def test_checks_teach_and_become_runtime_asserts(sizes):
    count = sizes.unbacked("k.item()")
    torch._check(count >= 4)
    torch._check(count <= 4096)
    assert count > 3 and not count == 5000
    assert [sizes.text(each.expr) for each in sizes.asserts] == ["k.item() >= 4", "k.item() <= 4096"]
    assert sizes.guards == []
    with pytest.raises(RuntimeError, match="too many"):
        torch._check(count < 4, lambda: "too many")
    torch._check(count == 16)
    assert int(count) == 16


def test_an_unbacked_size_equal_to_a_backed_one_can_be_decided(sizes, tensor):
    size = sizes.symbol(tensor.child("SIZE", 0), 8)
    count = sizes.unbacked("k.item()")
    torch._check(count == size)
    assert count > 2
    assert texts(sizes) == ["x.size(0) >= 3"]


def test_guard_or_false_answers_false_only_without_a_hint(sizes, tensor):
    from torch.fx.experimental.symbolic_shapes import guard_or_false, guard_or_true, statically_known_true

    size, count = sizes.symbol(tensor.child("SIZE", 0), 8), sizes.unbacked("k.item()")
    assert guard_or_false(count == 3) is False
    assert guard_or_true(count == 3) is True
    assert guard_or_false(size == 8) is True
    assert sizes.specialisations
    assert statically_known_true(count >= 0) is True
    assert statically_known_true(count >= 2) is False


def test_a_strict_mark_that_cannot_hold_names_the_line(sizes, tensor, line):
    batch = sizes.symbol(tensor.child("SIZE", 0), 8)
    sizes.constrain(batch, None, None, strict=True, mark="mark_dynamic(x, 0)")
    assert batch > 2  # narrows, but stays dynamic
    line.number = 41
    with pytest.raises(ConstraintViolationError, match=r"user.py:41.*x.size\(0\).*mark_dynamic\(x, 0\).*constant 8"):
        range(batch)


def test_a_strict_range_must_hold_in_full(sizes, tensor, line):
    batch = sizes.symbol(tensor.child("SIZE", 0), 8)
    sizes.constrain(batch, 1, 4096, strict=True, mark="mark_dynamic(x, 0, min=1, max=4096)")
    assert batch >= 1 and not batch > 4096 and sizes.guards == []
    with pytest.raises(ConstraintViolationError, match=r"needs x.size\(0\) >= 3"):
        bool(batch > 2)


def test_a_wish_gives_way(sizes, tensor):
    batch = sizes.symbol(tensor.child("SIZE", 0), 8)
    sizes.constrain(batch, None, None, strict=False, mark="dynamic=True")
    assert int(batch) == 8


def test_floats_compute_and_specialise_when_used_plainly(sizes, tensor):
    scale = sizes.symbol_float(tensor.child("ATTR", "scale"), 0.5)
    size = sizes.symbol(tensor.child("SIZE", 0), 8)
    product = scale * size
    assert sizes.hint(sizes.expr_of(product)) == 4.0
    assert float(scale) == 0.5
    assert next(iter(sizes.specialisations.values())).value == 0.5


@pytest.mark.parametrize(
    "program",
    [
        lambda n: math.ceil(n / 4),
        lambda n: math.floor(n * 1.5),
        lambda n: math.trunc(n / 3),
        lambda n: torch.sym_int(n / 2),
        lambda n: math.floor(n / 7) + math.ceil(n * 0.25),
        lambda n: math.floor(n / 0.5),
    ],
)
def test_rounding_a_ratio_of_sizes_stays_dynamic(program, sizes, tensor):
    size = sizes.symbol(tensor.child("SIZE", 0), 9)
    expr = sizes.expr_of(program(size))
    assert sizes.specialisations == {} and len(sizes.guards) <= 1  # the size fits a float's digits
    assert not any(atom.kind in ("floor", "ceil", "trunc") for atom in sizes.algebra.atoms)
    for value in (0, 1, 2, 3, 8, 9, 10, 63, 64, 10**6 + 1, 2**40 + 5):
        assert sizes.algebra.evaluate(expr, {sizes.expr_of(size): value}) == program(value)


def test_meta_kernels_compute_with_symbolic_sizes(sizes, tensor):
    batch = sizes.symbol(tensor.child("SIZE", 0), 8)
    x = torch.empty_strided((batch, 4), (4, 1), device="meta")
    weight = torch.empty(4, 5, device="meta")
    assert x.is_contiguous()
    results = {
        "mm": x @ weight,
        "add": x + x,
        "softmax": x.softmax(-1),
        "cat": torch.cat([x, x]),
        "sum": x.sum(1),
        "transposed": x.t() + x.t(),
    }
    assert {name: str(tuple(result.shape)) for name, result in results.items()} == {
        "mm": "(s0, 5)",
        "add": "(s0, 4)",
        "softmax": "(s0, 4)",
        "cat": "(2*s0, 4)",
        "sum": "(s0,)",
        "transposed": "(4, s0)",
    }
    assert results["transposed"].stride() == (1, 4)
    assert sizes.specialisations == {}


def test_values_of_another_trace_are_refused(sizes, tensor):
    foreign = SizeContext().symbol(tensor.child("SIZE", 0), 3)
    with pytest.raises(ValueError, match="another trace"):
        sizes.expr_of(foreign)


def test_an_input_marked_unbacked_uses_no_example_value(sizes, tensor):
    from stator.sizes import lower_guards

    source = tensor.child("SIZE", 0)
    batch = sizes.unbacked("x.size(0)", low=2, source=source)
    assert sizes.unbacked("x.size(0)", low=2, source=source) is batch
    assert batch >= 2
    with pytest.raises(DataDependentError):
        bool(batch > 5)
    assert [guard.text for guard in lower_guards(sizes).programs] == ["x.size(0) >= 2"]


def test_a_size_beyond_its_declared_range_is_refused(sizes, tensor):
    with pytest.raises(ValueError, match=r"x.size\(0\) is 8, outside"):
        sizes.symbol(tensor.child("SIZE", 0), 8, high=4)


def test_a_guard_after_the_trace_is_a_defect(sizes, tensor):
    size = sizes.symbol(tensor.child("SIZE", 0), 8)
    with sizes.frozen():
        assert size >= 0
        with pytest.raises(RuntimeError, match="after the trace"):
            bool(size > 3)


def test_presumptions_record_nothing_and_give_way_to_the_example(sizes, tensor):
    size, one = sizes.symbol(tensor.child("SIZE", 0), 8), sizes.symbol(tensor.child("SIZE", 1), 1)
    question = sizes.expr_of(size == 1)
    assert sizes.presume(question) is False and sizes.guards == []
    assert sizes.presume(sizes.expr_of(one == 1)) is True and len(sizes.guards) == 1


def test_contradicting_promises_are_refused(sizes):
    count = sizes.unbacked("k.item()")
    torch._check(count >= 4)
    with pytest.raises(RuntimeError):
        torch._check(count < 4)


def test_torchs_module_of_helpers_serves_our_sizes_without_sympy(tmp_path):
    import subprocess
    import sys

    program = """
import sys
import torch
from stator.sizes import SizeContext

count = SizeContext().unbacked("n")
torch._check(count >= 2)
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols, guard_or_false, sym_and
assert guard_or_false(count == 3) is False and bool(sym_and(count >= 1, count >= 2))
assert len(free_unbacked_symbols(count)) == 1 and not free_unbacked_symbols(torch.empty(2))
assert not any(name.startswith(("torch._dynamo", "torch._inductor")) for name in sys.modules)
assert "sympy" not in sys.modules
import torch.fx.experimental.symbolic_shapes as helpers
shape_env = helpers.ShapeEnv()  # not ours: the real module is loaded
real = sys.modules["torch.fx.experimental.symbolic_shapes"]
assert real.ShapeEnv is helpers.ShapeEnv and "sympy" in sys.modules
theirs = shape_env.create_unbacked_symint()
assert real.guard_or_false(theirs == 3) is False and helpers.guard_or_false(count == 3) is False
assert len(real.free_unbacked_symbols(theirs)) == 1 and real.free_unbacked_symbols([count, 3])
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=200)


def test_torchs_type_promotion_runs_without_sympy():
    import subprocess
    import sys

    program = """
import sys
import torch, stator
compiled = stator.compile(lambda x: torch.nn.functional.gelu(torch.softmax(x, -1)))
compiled(torch.ones(2, 3))
assert "sympy" not in sys.modules
import sympy
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as KIND, elementwise_dtypes
symbol = sympy.Symbol("n", integer=True)
assert elementwise_dtypes(torch.ones(2), symbol, type_promotion_kind=KIND.DEFAULT)[1] is torch.float32
assert elementwise_dtypes(torch.ones(2).int(), sympy.Float(2.5), type_promotion_kind=KIND.DEFAULT)[1] is torch.float32
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=200)
