from __future__ import annotations

import gc
import sys
import threading
import weakref

import pytest
import torch
from runtime_helpers import build_native, kernel
from torch import nn

from stator.runtime import native
from stator.runtime.program import IntExpr, ProgramBuilder

aten = torch.ops.aten
f32 = torch.float32


def pointwise(name="pointwise", arena=True):
    """relu(x * 2) + x over any number of floats, by three kernels and two scratch buffers."""
    b = ProgramBuilder(name)
    x = b.input_tensor()
    n = b.size(x, 0)
    first, second = b.empty([n], [1], f32, arena=arena), b.empty([n], [1], f32, arena=arena)
    out = b.empty([n], [1], f32)
    b.kernel(*kernel("double"), [x, first], [], n, 1 << 14, "model.py:3")
    b.kernel(*kernel("relu"), [first, second], [], n, 1 << 14, "model.py:4")
    b.kernel(*kernel("add"), [second, x, out], [], n, 1 << 14, "model.py:4")
    b.outputs([out])
    return b


def expected(x):
    return torch.relu(x * 2) + x


# kernels and memory


@pytest.mark.parametrize("arena", [True, False])
def test_kernels_run_over_every_size(build, arena):
    program = build(pointwise(arena=arena))
    for size in (0, 1, 7, 1000, 100_000, 3, 100_000, 0, 5):
        x = torch.randn(size)
        (result,) = program(x)
        assert torch.equal(result, expected(x)) and result.shape == (size,)
        assert type(result) is torch.Tensor and result.device == torch.device("cpu") and not result.requires_grad


def test_kernels_get_integers_and_storage_offsets(build):
    b = ProgramBuilder("t")
    x, n = b.input_tensor(), b.input_int()
    i = b.integer(n)
    out = b.empty([b.size(x, 0)], [1], f32)
    ints = [IntExpr.minimum(i * 3 - 1, 100) % 7, -(-i // 2)]
    b.kernel(*kernel("shift"), [x, out], ints, b.size(x, 0))
    b.outputs([out, i + b.storage_offset(x), b.stride(x, 0), 7, None, x, n])
    program = build(b)
    base = torch.arange(20.0)
    for k in (5, -3, 0, 1000):
        x = base[3:9]
        out, offset, stride, seven, none, same, again = program(x, k)
        shift = (min(k * 3 - 1, 100) % 7) * 10 - (-k // 2)
        assert torch.equal(out, x + shift)
        assert (offset, stride, seven, none, again) == (k + 3, 1, 7, None, k)
        assert same is x


def test_kernel_integers_that_are_all_constants(build):
    b = ProgramBuilder("t")
    x = b.input_tensor()
    out = b.empty([4], [1], f32)
    b.kernel(*kernel("shift"), [x, out], [2, 3], 4)
    b.outputs([out])
    assert torch.equal(build(b)(torch.zeros(4))[0], torch.full((4,), 23.0))


def test_integer_errors_are_python_errors(build):
    b = ProgramBuilder("t")
    n = b.input_int()
    b.outputs([10 // b.integer(n)])
    program = build(b)
    assert program(3) == (3,) and program(-3) == (-4,)
    with pytest.raises(ZeroDivisionError, match="division or modulo by zero"):
        program(0)


def test_integers_outside_64_bits_are_errors():
    b = ProgramBuilder("t")
    n = b.input_int()
    b.outputs([b.integer(n) * b.integer(n), b.integer(n) // -1])
    program = build_native(b)
    assert program(-5) == (25, 5)
    for value in (1 << 40, -(1 << 63)):
        with pytest.raises(OverflowError, match="64 bits"):
            program(value)
    with pytest.raises(OverflowError):
        program(1 << 70)


def test_views_of_inputs_arena_and_fresh_tensors(build):
    b = ProgramBuilder("t")
    x = b.input_tensor()
    column = b.view(x, [3], [4], 1)  # x[:, 1]
    inner = b.view(column, [2], [4], 4)  # x[1:, 1]
    [picked] = b.extern(aten.clone.default, [inner])
    scratch = b.empty([12], [1], f32, arena=True)
    b.kernel(*kernel("double"), [x, scratch], [], 12)
    tail = b.view(scratch, [4], [1], 8)
    [copied] = b.extern(aten.clone.default, [tail])
    out = b.empty([4], [1], f32)
    b.kernel(*kernel("relu"), [b.view(x, [4], [1], 4), out], [], 4)
    b.outputs([picked, copied, out, column])
    program = build(b)
    x = torch.randn(3, 4)
    for _ in range(3):
        picked, copied, out, column = program(x)
        assert torch.equal(picked, x[1:, 1]) and torch.equal(copied, x[2] * 2) and torch.equal(out, x[1].relu())
        assert torch.equal(column, x[:, 1]) and column.data_ptr() == x[:, 1].data_ptr()
    double = torch.randn(3, 4, dtype=torch.float64)  # element sizes are asked for when running
    b = ProgramBuilder("t")
    y = b.input_tensor()
    b.outputs(b.extern(aten.clone.default, [b.view(y, [2], [1], 5)]))
    assert torch.equal(build(b)(double)[0], double.flatten()[5:7])


def test_scratch_that_an_output_may_share_leaves_the_arena(build):
    b = ProgramBuilder("t")
    x = b.input_tensor()
    scratch = b.empty([4], [1], f32, arena=True)
    b.kernel(*kernel("double"), [x, scratch], [], 4)
    [reshaped] = b.extern(aten.reshape.default, [scratch, [2, 2]])
    [marked] = b.extern(aten.transpose.int, [reshaped, 0, 1])
    b.outputs([marked, b.view(scratch, [2], [1], 1)])
    program = build(b)
    first = program(torch.ones(4))
    second = program(torch.zeros(4))
    assert first[0].sum() == 8 and second[0].sum() == 0 and first[1].sum() == 4


def test_an_operator_that_hides_an_alias_of_scratch_is_copied():
    library = torch.library.Library("stator_test_hidden", "FRAGMENT")
    library.define("same(Tensor x) -> Tensor")
    library.impl("same", lambda x: x.view_as(x), "CompositeExplicitAutograd")
    b = ProgramBuilder("t")
    x = b.input_tensor()
    scratch = b.empty([4], [1], f32, arena=True)
    b.kernel(*kernel("double"), [x, scratch], [], 4)
    [same] = b.extern(torch.ops.stator_test_hidden.same.default, [scratch])
    b.outputs([same])
    program = build_native(b)
    first = program(torch.ones(4))[0]
    program(torch.zeros(4))
    assert first.sum() == 8


def test_arena_slots_overlap_only_when_their_lives_do_not(native_runtime):
    for size in (10, 1000, 70_000, 300_000):  # small, large, and allocated apart
        b = ProgramBuilder("t")
        x = b.input_tensor()
        slots = []
        value = x
        for turn in range(12):
            scratch = b.empty([size], [1], f32, arena=True)
            b.kernel(*kernel("double" if turn % 3 else "relu"), [value, scratch], [], size)
            if turn % 4 == 1:
                slots.append(scratch)
            value = scratch
        total = value
        for slot in slots:
            out = b.empty([size], [1], f32, arena=slot is not slots[-1])
            b.kernel(*kernel("add"), [total, slot, out], [], size)
            total = out
        b.outputs([total])
        program = build_native(b)
        x = torch.rand(size) + 0.5
        want, saved = x, []
        for turn in range(12):
            want = want * 2 if turn % 3 else want.relu()
            if turn % 4 == 1:
                saved.append(want)
        for value in saved:
            want = want + value
        for _ in range(3):
            assert torch.equal(program(x)[0], want)


def test_freed_intermediates_return_their_memory_at_once():
    """A chain of large temporaries needs two of them at a time, whoever allocates."""
    b = ProgramBuilder("t")
    value = b.input_tensor()
    for _ in range(8):
        [value] = b.extern(aten.exp.default, [value])
    b.outputs([value])
    program = build_native(b)
    x = torch.zeros(1 << 18)
    with torch.profiler.profile(profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        program(x)
    alive = most = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            alive += event.nbytes()
            most = max(most, alive)
    assert most <= 2 * x.nbytes


def test_threads_split_large_kernels_only(build):
    b = ProgramBuilder("t")
    x = b.input_tensor()
    out = b.empty([b.size(x, 0)], [1], f32)
    b.kernel(*kernel("share"), [x, out], [], b.size(x, 0), 1000)
    b.outputs([out])
    program = build_native(b)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        shares = program(torch.zeros(100_000))[0].unique()
        assert shares.tolist() == [50_000]
        assert program(torch.zeros(1000))[0].unique().tolist() == [1000]
        torch.set_num_threads(1)
        assert program(torch.zeros(100_000))[0].unique().tolist() == [100_000]
    finally:
        torch.set_num_threads(threads)


# inputs and outputs


def test_inputs_are_checked(build):
    b = ProgramBuilder("pair")
    x, n = b.input_tensor(), b.input_int()
    b.outputs([x, n])
    program = build(b)
    for wrong in ((), (torch.ones(1),), (torch.ones(1), 1, 2), ("x", 1), (torch.ones(1), "1"), (None, 1)):
        with pytest.raises(TypeError):
            program(*wrong)
    with pytest.raises(TypeError):
        program(torch.ones(1), n=1)


def test_parameters_and_plain_subclasses_are_inputs(build):
    class Plain(torch.Tensor):
        pass

    class Wrapped(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
            raise AssertionError("never")

    b = ProgramBuilder("t")
    x = b.input_tensor()
    out = b.empty([4], [1], f32)
    b.kernel(*kernel("double"), [x, out], [], 4)
    [added] = b.extern(aten.add.Tensor, [x, x])
    [product] = b.extern(aten.mul.Tensor, [x, x])
    b.outputs([out, x, added, product])
    program = build(b)
    for value in (nn.Parameter(torch.ones(4)), torch.ones(4).as_subclass(Plain), torch.ones(4, requires_grad=True)):
        with torch.enable_grad():
            out, same, added, product = program(value)
        assert same is value and torch.equal(out, torch.full((4,), 2.0))
        for result in (out, added, product):
            assert type(result) is torch.Tensor and not result.requires_grad and result.grad_fn is None
    if program.__class__.__name__ == "Program":
        with pytest.raises(TypeError, match="Wrapped"):
            program(torch.ones(4).as_subclass(Wrapped))


def test_one_slot_returned_twice_is_one_object(build):
    b = ProgramBuilder("t")
    x = b.input_tensor()
    [y] = b.extern(aten.exp.default, [x])
    b.outputs([y, y, x, x])
    y, again, x, other = build(b)(torch.ones(2))
    assert y is again and x is other


def test_results_do_not_keep_anything_alive():
    program = build_native(pointwise())
    x = torch.randn(10)
    before = sys.getrefcount(x)
    results = [program(x) for _ in range(100)]
    assert sys.getrefcount(x) == before
    reference = weakref.ref(results[0][0])
    del results
    assert reference() is None


def test_repeated_calls_do_not_leak():
    b = ProgramBuilder("t")
    x = b.input_tensor()
    [parts] = b.extern(aten.split.Tensor, [x, 1])
    [joined] = b.extern(aten.cat.default, [[b.item(parts, 1), b.item(parts, 0)]])
    [stacked] = b.extern(aten.stack.default, [parts])
    values, indices = b.extern(aten.sort.default, [joined])
    [added] = b.extern(aten.add.Tensor, [values, 2])
    b.outputs([added, indices, stacked, parts])
    program = build_native(b)
    x = torch.randn(2, 3)
    program(x)
    gc.collect()
    tensors = sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects())
    blocks = sys.getallocatedblocks()
    for _ in range(200):
        program(x)
    gc.collect()
    assert sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects()) == tensors
    assert sys.getallocatedblocks() - blocks < 50
    assert torch.equal(program(x)[3][1], x[1:])


def test_mutated_inputs_move_their_version(build):
    b = ProgramBuilder("t")
    x = b.input_tensor()
    b.kernel(*kernel("double"), [x, x], [], 4)
    b.mutated(x)
    b.outputs([])
    program = build(b)
    x = torch.ones(4)
    assert program(x) == () and x.sum() == 8 and x._version == 1
    b = ProgramBuilder("t")
    x, y = b.input_tensor(), b.input_tensor()
    b.extern(aten.copy_.default, [x, y])
    b.outputs([x])
    x = torch.zeros(4)
    assert build(b)(x, torch.ones(4))[0] is x and x.sum() == 4 and x._version == 1


def test_parameters_are_written_in_place_below_autograd(build):
    b = ProgramBuilder("t")
    x = b.input_tensor()
    b.extern(aten.mul_.Tensor, [x, b.constant(torch.tensor(3.0))])
    b.outputs([])
    parameter = nn.Parameter(torch.ones(4))
    build(b)(parameter)
    assert parameter.sum() == 12 and parameter._version == 1


def test_inference_mode_and_outside_share_a_program():
    b = ProgramBuilder("t")
    x = b.input_tensor()
    scratch = b.empty([2, 2], [2, 1], f32, arena=True)
    b.extern(aten.mm.out, [x, x], {"out": scratch})
    [y] = b.extern(aten.exp.out, [scratch], {"out": b.empty([2, 2], [2, 1], f32, arena=True)})
    b.outputs(b.extern(aten.clone.default, [y]))
    program = build_native(b)
    x = torch.eye(2)
    for _ in range(2):
        with torch.inference_mode():
            inside = program(x)[0]
        outside = program(x)[0]
        assert torch.equal(inside, outside) and inside.is_inference() and not outside.is_inference()


def test_autocast_does_not_reach_inside(build):
    b = ProgramBuilder("t")
    x = b.input_tensor()
    b.outputs([*b.extern(aten.mm.default, [x, x]), *b.extern(aten.matmul.default, [x, x])])
    program = build(b)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert all(result.dtype == f32 for result in program(torch.eye(3)))


# programs as objects


def test_many_threads_run_one_program():
    b = ProgramBuilder("t")
    x, w = b.input_tensor(), b.input_tensor()
    value = x
    for _ in range(6):
        product = b.empty([16, 16], [16, 1], f32, arena=True)
        b.extern(aten.mm.out, [value, w], {"out": product})
        b.kernel(*kernel("relu"), [product, product], [], 256)
        value = product
    [total] = b.extern(aten.add.Tensor, [value, 1])  # from Python, in the middle of other threads' native steps
    b.outputs([total])
    program = build_native(b)
    w = torch.randn(16, 16) / 4
    inputs = [torch.randn(16, 16) for _ in range(6)]
    wants = [program(x, w)[0] for x in inputs]
    wrong = []

    def run(turn):
        for _ in range(300):
            if not torch.equal(program(inputs[turn], w)[0], wants[turn]):
                wrong.append(turn)

    threads = [threading.Thread(target=run, args=(turn,)) for turn in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_program_may_die_and_call_itself_while_it_runs():
    holder = []
    depth = []

    def again(x):
        depth.append(1)
        if len(depth) < 3:
            return holder[0](x)[0] + 1
        holder.clear()
        gc.collect()
        return x * 1

    b = ProgramBuilder("t")
    x = b.input_tensor()
    scratch = b.empty([4], [1], f32, arena=True)
    b.kernel(*kernel("double"), [x, scratch], [], 4)
    [y] = b.python(again, [scratch])
    out = b.empty([4], [1], f32)
    b.kernel(*kernel("add"), [scratch, y, out], [], 4)
    b.outputs([out])
    holder.append(build_native(b))
    del b
    gc.collect()
    result = holder[0](torch.ones(4))[0]
    # doubled three times; the innermost adds 8 + 8, then 4 + 17, then 2 + 22
    assert result.tolist() == [24.0] * 4 and not holder


def test_programs_are_collected():
    class Owner:
        pass

    owner = Owner()
    b = ProgramBuilder("t")
    x = b.input_tensor()
    out = b.empty([4], [1], f32)
    b.kernel(kernel("double")[0], owner, "double", [x, out], [], 4)
    constant = b.constant(torch.ones(3))
    b.outputs([out, constant])
    program = build_native(b)
    owner.program = program  # a cycle through the program
    program(torch.ones(4))
    gone = weakref.ref(owner)
    del owner, b, program
    gc.collect()
    assert gone() is None


# errors


def test_errors_are_eagers_and_name_the_line(build):
    cases = [
        (aten.mm.default, [torch.ones(2, 3), torch.ones(2, 3)]),
        (aten.mm.default, [torch.ones(2, 3), torch.ones(3)]),
        (aten.mm.default, [torch.ones(2, 3), torch.ones(3, 2, dtype=torch.float64)]),
        (aten.index_select.default, [torch.ones(2, 3), 5, torch.tensor([0])]),
        (aten.index.Tensor, [torch.ones(2, 3), [torch.tensor([9])]]),
        (aten.cat.default, [[torch.ones(2, 3), torch.ones(3, 4)]]),
        (aten.convolution.default, [torch.ones(1, 3, 4, 4), torch.ones(2, 5, 3, 3), None, [1, 1], [0, 0], [1, 1], False,
                                    [0, 0], 1]),
    ]  # fmt: skip
    for op, args in cases:
        b = ProgramBuilder("t")
        inputs = []

        def declare(value):
            if isinstance(value, torch.Tensor):
                inputs.append(value)
                return b.input_tensor()
            return [declare(entry) for entry in value] if isinstance(value, list) else value

        results = b.extern(op, [declare(value) for value in args], {}, "model.py:42")
        b.outputs(results)
        program = build(b)
        with pytest.raises(Exception) as eager:
            op(*args)
        with pytest.raises(type(eager.value)) as found:
            program(*inputs)
        assert str(found.value) == str(eager.value)
        assert type(found.value) is type(eager.value)
        assert "model.py:42" in found.value.__notes__[-1] and str(op) in found.value.__notes__[-1]


def test_an_error_leaves_the_program_usable(build):
    b = ProgramBuilder("t")
    x, y = b.input_tensor(), b.input_tensor()
    scratch = b.empty([2, 2], [2, 1], f32, arena=True)
    b.extern(aten.mm.out, [x, x], {"out": scratch})
    b.outputs(b.extern(aten.mm.default, [scratch, y]))
    program = build(b)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="cannot be multiplied"):
            program(torch.eye(2), torch.ones(3, 3))
        assert torch.equal(program(torch.eye(2), torch.ones(2, 2))[0], torch.ones(2, 2))


def test_exceptions_of_python_functions_pass_through(build):
    class Mine(Exception):
        pass

    def fails(x):
        raise Mine("no")

    b = ProgramBuilder("t")
    x = b.input_tensor()
    b.outputs(b.python(fails, [x], user_line="model.py:9"))
    with pytest.raises(Mine) as found:
        build(b)(torch.ones(2))
    assert "model.py:9" in found.value.__notes__[-1]


def test_python_custom_operators_run_from_python_once_and_are_named(build):
    calls = []

    @torch.library.custom_op("stator_test::noisy", mutates_args=())
    def noisy(x: torch.Tensor, times: int) -> torch.Tensor:
        calls.append(times)
        if times < 0:
            raise ValueError("negative")
        return x * times

    b = ProgramBuilder("t")
    x, n = b.input_tensor(), b.input_int()
    b.outputs(b.extern(torch.ops.stator_test.noisy.default, [x, b.integer(n)], {}, "model.py:7"))
    plan_text = build_native_text(b)
    assert "its kernel is written in Python" in plan_text and "model.py:7" in plan_text
    b._built = False
    program = build(b)
    assert program(torch.ones(2), 3)[0].tolist() == [3, 3] and calls == [3]
    with pytest.raises(ValueError, match="negative"):
        program(torch.ones(2), -1)
    assert calls == [3, -1]


def build_native_text(builder):
    return builder.build().describe()


def test_data_dependent_sizes(build):
    b = ProgramBuilder("t")
    x = b.input_tensor()
    [found] = b.extern(aten.nonzero.default, [x])
    n = b.size(found, 0)
    [picked] = b.extern(aten.masked_select.default, [x, *b.extern(aten.gt.Scalar, [x, 0])])
    out = b.empty([n], [1], f32, arena=True)
    b.kernel(*kernel("double"), [picked, out], [], n)
    result = b.empty([n * 2], [1], f32)
    b.kernel(*kernel("double"), [out, b.view(result, [n], [1], n)], [], n)
    b.kernel(*kernel("relu"), [out, result], [], n)
    b.outputs([result, n])
    program = build(b)
    for x in (torch.tensor([0.0, 1, 0, 2]), torch.zeros(3), torch.ones(1000)):
        result, n = program(x)
        values = x[x > 0] * 2
        assert n == values.numel() and torch.equal(result, torch.cat([values, values * 2]))


def test_integers_that_operators_return(build):
    b = ProgramBuilder("t")
    x = b.input_tensor()
    [n] = b.extern(aten.sym_size.int, [x, 0])
    [same] = b.extern(aten.is_same_size.default, [x, x])
    [value] = b.extern(aten._local_scalar_dense.default, [b.constant(torch.tensor(2.5))])
    [out] = b.extern(aten.mul.Tensor, [x, value])
    b.outputs([b.integer(n) + 1, same, value, out])
    n, same, value, out = build(b)(torch.ones(3))
    assert (n, bool(same), value) == (4, True, 2.5) and out.sum() == 7.5


def test_object_inputs_reach_operators(build):
    b = ProgramBuilder("t")
    x, generator = b.input_tensor(), b.input_object()
    b.outputs([*b.extern(aten.rand.generator, [[3]], {"generator": generator}), generator])
    program = build(b)
    generator = torch.Generator().manual_seed(3)
    result, same = program(torch.ones(1), generator)
    assert same is generator and torch.equal(result, torch.rand(3, generator=torch.Generator().manual_seed(3)))


# the builder refuses what cannot run


def test_the_builder_checks_its_callers():
    b, other = ProgramBuilder("t"), ProgramBuilder("other")
    x, n = b.input_tensor(), b.input_int()
    foreign = other.input_tensor()
    for wrong in (
        lambda: b.extern(aten.exp.default, [foreign]),
        lambda: b.empty([2], [1, 1], f32),
        lambda: b.kernel(1, None, "k", [n], [], 1),
        lambda: b.kernel(1, None, "k", [x], [], 1, 0),
        lambda: b.integer(x),
        lambda: b.item(x, 0),
        lambda: b.mutated(n),
        lambda: b.size(x, -1),
    ):
        with pytest.raises(ValueError):
            wrong()
    for wrong in (
        lambda: b.extern(aten.mm.default, [x]),
        lambda: b.extern(aten.mm.default, [x, x, x]),
        lambda: b.extern(aten.mm.default, [x, torch.ones(2, 2)]),
        lambda: b.extern(aten.mm.default, [x, x], {"mat2": x}),
    ):
        with pytest.raises(TypeError):
            wrong()
    b.free(x)
    with pytest.raises(ValueError, match="freed"):
        b.extern(aten.exp.default, [x])
    b.outputs([])
    b.build()
    with pytest.raises(RuntimeError, match="already built"):
        b.build()


def test_the_native_module_refuses_bad_data(native_runtime):
    plan = build_native(pointwise()).plan
    encoding = native._Encoding(native_runtime, plan)
    good = {}
    module = type("Module", (), {"Program": staticmethod(lambda **fields: good.update(fields))})
    encoding.connected = native.Runtime(module, native_runtime.codes)
    encoding.program()
    assert native_runtime.module.Program(**good)(torch.ones(3))[0].shape == (3,)
    steps = good["steps"]
    for change in (
        {"inputs": (99,)},
        {"slots": ((50, 0),)},
        {"rows": ((5, 7, 7),)},
        {"rows": good["rows"][:-1] + ((77, 0, 0),)},
        {"outputs": ((1, 99),)},
        {"outputs": ((9, 0),)},
        {"first_rows": 99},
        {"constant_rows": 50},
        {"steps": (*steps[:-1], (3, 0, (), (), 0, 1, None))},
        {"steps": (*steps, (6, (99,), None))},
        {"steps": (*steps, (77, (0,), None))},
        {"steps": (*steps, (6, (0,)))},
        {"steps": (*steps, 5)},
        {"arena": ((0, 0, 5, 2, 0),)},
        {"arena": ((99, 0, 0, 1, 0),)},
        {"layout": (-1,)},
        {"constants": ((0, "no tensor"),)},
    ):
        with pytest.raises((ValueError, TypeError)):
            native_runtime.module.Program(**{**good, **change})
