"""The verifier refuses what would be wrong memory, and the cache's text tells kernels apart."""

import pytest

from stator.loops.build import apply, convert
from stator.loops.integers import single_atom, variable
from stator.loops.ir import Buffer, Definition, Kernel, Nest, Stage, Store, constant, load, make
from stator.loops.schedule import schedule
from stator.loops.show import show_kernel
from stator.loops.verify import InvalidKernel, verify_kernel

row, element = variable("o0", 4), variable("r0", 8)
ROW, ELEMENT = single_atom(row), single_atom(element)


def buffer(name, type_="f32"):
    return Buffer(name, type_, (4, 8), (8, 1), "temporary")


def kernel(stage, outer=(ROW,), inner=(ELEMENT,)):
    return Kernel("k", outer, inner, [stage], [], [], [])


def test_accepts_a_store():
    x, y = buffer("x"), buffer("y")
    place = row * 8 + element
    verify_kernel(kernel(Stage(stores=[Store(y, place, apply("add", load(x, place), constant(1, "f32")))])))


def test_refuses_a_type_mismatch():
    x, y = buffer("x"), buffer("y", "f64")
    with pytest.raises(InvalidKernel, match="f32 stored in memory of f64"):
        verify_kernel(kernel(Stage(stores=[Store(y, element, load(x, element))])))


def test_refuses_arithmetic_on_half_precision():
    x = buffer("x", "bf16")
    value = make("add", "bf16", (load(x, element), load(x, element)))
    with pytest.raises(InvalidKernel, match="add of bf16"):
        verify_kernel(kernel(Stage(stores=[Store(buffer("y", "bf16"), element, value)])))


def test_refuses_a_variable_out_of_scope():
    x, y = buffer("x"), buffer("y")
    with pytest.raises(InvalidKernel, match="outside its loop"):
        verify_kernel(kernel(Stage(row_stores=[Store(y, row, load(x, element))])))


def test_refuses_a_value_before_it_is_computed():
    y = buffer("y")
    with pytest.raises(InvalidKernel, match="before it is computed"):
        verify_kernel(kernel(Stage(stores=[Store(y, element, make("local", "f32", (), "later"))])))


def test_simplifications_keep_signed_zeros():
    x = load(buffer("x"), element)
    assert apply("mul", x, constant(1, "f32")) is x
    assert apply("add", x, constant(-0.0, "f32")) is x
    assert apply("add", x, constant(0.0, "f32")) is not x
    assert constant(0.0, "f32") is not constant(-0.0, "f32")


def test_rounding_is_not_simplified_away():
    x = load(buffer("x"), element)
    assert convert(convert(x, "bf16"), "f32") is not x
    small = load(buffer("h", "bf16"), element)
    assert convert(convert(small, "f32"), "bf16") is small


def test_equal_kernels_have_equal_text_whatever_their_names():
    def one(source, target, number):
        x, y = buffer(source), buffer(target)
        value = apply("mul", load(x, row * 8 + element), constant(number, "f32"))
        nest = Nest((ROW, ELEMENT), (), [Definition(y, (ROW, ELEMENT), row * 8 + element, value)])
        nest.stage = {nest.definitions[0]: 0}
        nest.kept = {y}
        return show_kernel(schedule(nest, source), canonical=True)

    assert one("a", "b", 2.0) == one("c", "d", 2.0)
    assert one("a", "b", 2.0) != one("a", "b", 2.5)
