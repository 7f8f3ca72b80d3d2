"""Reasons of the capture stage: why a graph ends, and why code runs as it is.

`example` defines `example()`: it compiles something with the `eager` backend and calls it, so that the reason is met.
"""

from __future__ import annotations

from stator.reasons.row import Reason


def _example(body: str, arguments: str = "x", call: str = "torch.ones(3)", before: str = "") -> str:
    """A program that compiles `f` and calls it."""
    lines = "\n".join(f"        {line}" for line in body.strip().splitlines())
    first = "".join(f"    {line}\n" for line in before.strip().splitlines())
    return (
        f"def example():\n    import torch, stator\n{first}\n    def f({arguments}):\n{lines}\n\n"
        f'    return stator.compile(f, backend="eager")({call})\n'
    )


ROWS: tuple[Reason, ...] = (
    Reason(
        "data_dependent_branch",
        "The program branches on the value of a tensor: {detail}.",
        "Which way it goes is known only when the graph has run.",
        "Use torch.where or torch.cond, or branch on sizes and Python values instead",
        _example("if x.sum() > 0:\n    return x + 1\nreturn x"),
    ),
    Reason(
        "tensor_to_python",
        "A tensor's values are taken into Python: {detail}.",
        "Python can go on with the number only when the graph has run.",
        "Keep the value a tensor, or set stator.config.capture_scalar_outputs",
        _example("return x.sum().item()"),
    ),
    Reason(
        "data_dependent_operator",
        "The shape or value of a result hangs on the data: {detail}.",
        "What follows needs to know the shape, and only the run time does.",
        "Use a form with a fixed shape (a mask, torch.where), or set capture_dynamic_output_shape_ops",
        _example("return x.nonzero() + 1"),
    ),
    Reason(
        "operator_error",
        "The operation is refused by torch, so the code itself looks wrong: {detail}.",
        "The operation runs as it is, so that the exception is the one torch raises.",
        "Correct the call; the same line fails without a compiler too",
        _example("try:\n    return torch.sin(x, x)\nexcept TypeError:\n    return x"),
    ),
    Reason(
        "operator_without_shape_rule",
        "Nothing says what shape the operator gives: {detail}.",
        "The operator has no meta kernel, so its result cannot be described without running it.",
        "Register one with torch.library.register_fake",
        _example(
            "return op(x)",
            before='lib = torch.library.Library("stator_reasons", "FRAGMENT")\n'
            'lib.define("plain(Tensor x) -> Tensor")\n'
            'lib.impl("plain", lambda x: x.clone(), "CPU")\n'
            "op = torch.ops.stator_reasons.plain",
        ),
    ),
    Reason(
        "operator_result",
        "An operation gives something that is neither tensor nor constant: {detail}.",
        "Such a value cannot be computed by a graph, nor known before it runs.",
        "Move the call out of the compiled function",
    ),
    Reason(
        "opaque_callable",
        "A C function is called whose effects are unknown: {detail}.",
        "C code may read and change anything; it runs as it is, on real values.",
        "Move the call out of the compiled function, or describe it as a custom operator",
        _example("import time\ny = x + 1\ntime.sleep(0)\nreturn y + 1"),
    ),
    Reason(
        "c_reads_object",
        "C code would read an object of the program: {detail}.",
        "What it reads could not be guarded, and pending changes to the object are not there yet.",
        "Pass the values that are needed instead of the object",
        _example("return x + len(dir(o))", "x, o", "torch.ones(3), type('T', (), {})()"),
    ),
    Reason(
        "c_writes_object",
        "C code would change an object of the program: {detail}.",
        "The change could not be replayed.",
        "Change the object before or after the compiled function",
        _example("e.__traceback__ = None\nreturn x + 1", "x, e", "torch.ones(3), ValueError()"),
    ),
    Reason(
        "cannot_rebuild",
        "Something that lives across this point cannot be rebuilt: {detail}.",
        "The compiled code would have to make it anew, and there is no way to.",
        "Make the object before the compiled function is called, or finish with it before this line",
        _example("import re\nreturn x + 1, re.finditer('a', 'aa')"),
    ),
    Reason(
        "cell_without_origin",
        "A closure variable is used whose function is not known: {detail}.",
        "There is no way to reach the variable again on the next call.",
        "Pass the value as an argument",
    ),
    Reason(
        "class_definition",
        "A class is defined in a way that cannot be traced: {detail}.",
        "Its bases compute the class when it is made.",
        "Define the class outside of the compiled function",
        _example(
            "class B(A()):\n    pass\nreturn x + 1",
            before="class A:\n    def __mro_entries__(self, bases):\n        return (object,)",
        ),
    ),
    Reason(
        "class_escapes",
        "A class made in the compiled function outlives it: {detail}.",
        "Every call would have to make the class anew, with all its methods.",
        "Define the class outside of the compiled function",
        _example("class B:\n    pass\nreturn B, x + 1"),
    ),
    Reason(
        "class_mutation",
        "A class of the program is changed: {detail}.",
        "Guards on that class, of this and other compiled code, would have to be redone half way.",
        "Change the class before the compiled function is called",
        _example("A.n = 2\nreturn x + A.n", before="class A:\n    n = 1"),
    ),
    Reason(
        "disabled_function",
        "A function that is never compiled is called: {detail}.",
        "It was marked with `disable`.",
        "Take the mark away, or call the function outside of the compiled code",
        _example("return g(x) + 1", before="g = stator.disable(lambda y: y * 2)"),
    ),
    Reason(
        "autograd_state",
        "The program changes how autograd treats a tensor: {detail}.",
        "Whether gradients are computed or kept for it belongs to the tensor object, which no operator changes.",
        "Call it before the compiled function, or make the tensor with requires_grad=True",
        _example("y = x * 2\ny.requires_grad_()\nreturn y * 3"),
    ),
    Reason(
        "gradient_call",
        "Gradients are computed inside of the compiled function: {detail}.",
        "Torch's engine does that on real tensors; what comes before and after is in graphs.",
        "Nothing need be done; where one graph is wanted, compile the part before it",
        _example(
            "y = (x * x.detach()).sum()\ntorch.autograd.grad(y + w, w)\nreturn y + 1",
            before="w = torch.ones((), requires_grad=True)",
        ),
    ),
    Reason(
        "forbidden_function",
        "A function that must not be captured is called: {detail}.",
        "It was marked with `disallow_in_graph` or `forbid_in_graph`.",
        "Take the mark away, or call the function outside of the compiled code",
        _example("return g(x) + 1", before="def g(y):\n    return y * 2\nstator.disallow_in_graph(g)"),
    ),
    Reason(
        "explicit_graph_break",
        "The program asked for a graph break. {detail}",
        "`graph_break()` was called.",
        "Remove the call if one graph is wanted",
        _example("y = x + 1\nstator.graph_break()\nreturn y * 2"),
    ),
    Reason(
        "skipped_frame",
        "A function that asked not to be compiled is called: {detail}.",
        "It calls `skip_frame()`.",
        "Remove the call if the function can be compiled",
        _example("return g(x) + 1", before="def g(y):\n    stator.skip_frame()\n    return y * 2"),
    ),
    Reason(
        "skip_frame",
        "The function asked not to be compiled.",
        "It calls `skip_frame()`; functions it calls are compiled on their own.",
        "Remove the call if the function can be compiled",
        _example("stator.skip_frame()\nreturn x + 1"),
    ),
    Reason(
        "first_import",
        "A module is imported for the first time: {detail}.",
        "Its code runs when it is imported, with whatever effects it has.",
        "Import it at the top of the file",
        _example("import this_is_not_here\nreturn x", call="torch.ones(3)").replace(
            "    return stator", "    import contextlib\n    with contextlib.suppress(ImportError):\n     return stator"
        ),
    ),
    Reason(
        "foreign_iterator",
        "An iterator that was made outside is advanced: {detail}.",
        "Each step changes it, and what it gives is known only when the step is made.",
        "Pass a list, or make the iterator inside of the compiled function",
        _example("return x + next(it)", "x, it", "torch.ones(3), iter([1, 2])"),
    ),
    Reason(
        "graph_argument",
        "A torch operation is given something a graph cannot hold: {detail}.",
        "Graphs hold tensors, numbers, text, types and containers of these.",
        "Pass the operation plain values",
    ),
    Reason(
        "higher_order_body",
        "A function that an operation of the graph runs does more than compute: {detail}.",
        "The operation decides how often it runs, so an effect of it can be neither replayed nor left out.",
        "Return what is needed, and act on it after the call",
        _example(
            "return checkpoint(lambda a: (seen.append(1), a + 1)[1], x, use_reentrant=False)",
            "x, seen",
            "torch.ones(3), []",
            before="from torch.utils.checkpoint import checkpoint",
        ),
    ),
    Reason(
        "higher_order_results",
        "Functions of a higher-order operator do not give results of one kind: {detail}.",
        "One operation gives tensors of one shape, type and structure, whichever way it goes.",
        "Make the functions return the same shapes, types and structure",
        """
def example():
    import contextlib, torch, stator

    def f(x):
        return torch.cond(x.sum() > 0, lambda a: a + 1, lambda a: a.sum(), (x,))

    with contextlib.suppress(Exception):  # torch refuses it, too
        stator.compile(f, backend="eager")(torch.ones(3))
""",
    ),
    Reason(
        "higher_order_operator",
        "A higher-order operator is used in a way that is not captured: {detail}.",
        "What it does with the functions it is given is not known here.",
        "Call it outside of the compiled function",
        _example(
            "return checkpoint(torch.sin, x, use_reentrant=False, context_fn=lambda: (nullcontext(), nullcontext()))",
            before="from contextlib import nullcontext\nfrom torch.utils.checkpoint import checkpoint",
        ),
    ),
    Reason(
        "reentrant_checkpoint",
        "A checkpointed call runs its function again inside of the backward pass, as a backward pass of its own.",
        "Such a backward writes gradients directly, where a graph would return them.",
        "Pass use_reentrant=False to torch.utils.checkpoint.checkpoint",
        _example(
            "return checkpoint(torch.sin, x, use_reentrant=True)",
            call="torch.ones(3, requires_grad=True)",
            before="from torch.utils.checkpoint import checkpoint",
        ),
    ),
    Reason(
        "instance_dict",
        "A whole namespace is looked at or changed: {detail}.",
        "Everything in it would have to be guarded.",
        "Use attributes by name",
        _example("return x + len(globals())"),
    ),
    Reason(
        "nonstrict_call_failed",
        "A function captured without looking inside failed on stand-ins: {detail}.",
        "Its result could not be described without its data.",
        "Make it a custom operator with register_fake",
        _example("return g(x) + 1", before="@stator.nonstrict_trace\ndef g(y):\n    return y * y.sum().item()"),
    ),
    Reason(
        "output",
        "Something is shown whose text is known only later: {detail}.",
        "The call is made as it is, so that what it shows is right and in order.",
        "Show sizes and Python values, or move the call out of the compiled function",
        _example("print(x.shape[0], file=out)\nreturn x", "x, out", "torch.ones(3), __import__('io').StringIO()"),
    ),
    Reason(
        "program_raises",
        "The program raises an exception that leaves the compiled function: {detail}.",
        "It is raised by the original code, so that the traceback is the one it always had.",
        "Nothing needs to be done if the exception is meant",
        _example("raise KeyError('k')").replace(
            "    return stator", "    import contextlib\n    with contextlib.suppress(KeyError):\n     return stator"
        ),
    ),
    Reason(
        "traceback_needed",
        "The program looks at the traceback of an exception: {detail}.",
        "The exception is raised by the original code, so that the traceback shows real frames.",
        "Use the exception's type and text only",
        _example("try:\n    raise KeyError('k')\nexcept KeyError as e:\n    return x, e.__traceback__ is None"),
    ),
    Reason(
        "recursion_limit",
        "The program recurses too deeply to be traced.",
        "Python's own limit was reached; the original code runs and meets it, or does not.",
        "Raise the limit with sys.setrecursionlimit, or write a loop",
        _example("return g(0)", before="def g(n):\n    return g(n + 1)").replace(
            "    return stator",
            "    import contextlib\n    with contextlib.suppress(RecursionError):\n     return stator",
        ),
    ),
    Reason(
        "tensor_attribute",
        "An attribute of a tensor that no graph can carry is used: {detail}.",
        "It belongs to the tensor object itself (its autograd history, its storage).",
        "Use it outside of the compiled function",
        _example("x.data = x.data + 1\nreturn x"),
    ),
    Reason(
        "tensor_creation",
        "A tensor or parameter is made by its class: {detail}.",
        "What the class does with its data is not an operation of torch.",
        "Use torch.tensor, torch.empty or another factory function",
        _example("return x + torch.nn.Parameter(x)"),
    ),
    Reason(
        "tensor_without_origin",
        "A tensor is used that no operation of this graph gave: {detail}.",
        "It was left over by another trace.",
        "Report this with the program that shows it",
    ),
    Reason(
        "asynchronous_code",
        "Asynchronous code is called: {detail}.",
        "A coroutine runs when the event loop says so, not here.",
        "Compile the synchronous functions it calls",
        _example("return x + 1, g()", before="async def g():\n    return 1").replace(
            "    return stator", "    import warnings\n    warnings.simplefilter('ignore')\n    return stator"
        ),
    ),
    Reason(
        "unsupported_instruction",
        "An instruction of Python has no meaning here: {detail}.",
        "It belongs to modules and interactive input, not to functions.",
        "Report this with the program that shows it",
    ),
    Reason(
        "recompile_limit",
        "A function was compiled as often as is allowed: {detail}",
        "Some value changes with every call, and each value needs a graph of its own.",
        "Make the value a tensor or an input that may vary (mark_dynamic), or raise recompile_limit",
        """
def example():
    import torch, stator, warnings

    warnings.simplefilter("ignore")
    compiled = stator.compile(lambda x, name: x + len(name), backend="eager", recompile_limit=2)
    for name in ("a", "b", "c", "d"):
        compiled(torch.ones(3), name)
""",
    ),
    Reason(
        "error_suppressed",
        "Compiling failed, and the original code runs: {detail}.",
        "suppress_errors is set.",
        "Unset it to see the error",
        """
def example():
    import torch, stator

    def broken(graph_module, example_inputs):
        raise ValueError("broken")

    with stator.config.patch(suppress_errors=True):
        stator.compile(lambda x: x + 1, backend=broken)(torch.ones(3))
""",
    ),
    Reason(
        "tensor_subclass",
        "An operation on a tensor subclass with a dispatch of its own: {detail}.",
        "Its `__torch_dispatch__` decides below autograd what an operation does, on tensors of its own.",
        "Pass the plain tensors the subclass is made of",
        _example(
            "return x + 1",
            call="S(torch.ones(3))",
            before="class S(torch.Tensor):\n    @staticmethod\n    def __new__(cls, held):\n"
            "        return torch.Tensor._make_wrapper_subclass(cls, held.shape)\n"
            "    def __init__(self, held):\n        self.held = held\n    @classmethod\n"
            "    def __torch_dispatch__(cls, f, t, a=(), k=None):\n"
            "        return f(*[x.held if type(x) is S else x for x in a], **(k or {}))",
        ),
    ),
    Reason(
        "numpy_operation",
        "An operation of NumPy's does not map onto torch: {detail}.",
        "Arrays are traced as tensors as far as torch has the operation.",
        "Use the torch operation of the same purpose, or call NumPy outside of the compiled function",
        _example("return x.numpy().tobytes()"),
    ),
    Reason(
        "new_leaf",
        "A tensor that gradients are collected in is made inside of the compiled function: {detail}.",
        "Gradients of a graph's inputs are all that leaves it.",
        "Make the tensor outside and pass it",
        _example("leaf = torch.ones(3, requires_grad=True)\nreturn leaf, leaf * x"),
    ),
    Reason(
        "lazy_module",
        "A lazy module has no parameters before its first call, so the original code runs once: {detail}.",
        "The shapes of its parameters are those of its first input.",
        "Nothing, or call the module once before it is compiled",
        """
def example():
    import torch, stator

    compiled = stator.compile(torch.nn.LazyLinear(4), backend="eager", fullgraph=True)
    compiled(torch.ones(2, 3))
""",
    ),
    Reason(
        "backward_hook",
        "A module has backward hooks, which torch hangs on the autograd graph of real tensors: {detail}.",
        "Which gradients pass the module is found out from its inputs and outputs at run time.",
        "Use hooks of tensors that are returned, or leave the module out of the graph",
        _example(
            "return m(x)",
            arguments="x, m",
            call="torch.ones(2, 3, requires_grad=True), m",
            before="m = torch.nn.Linear(3, 3)\nm.register_full_backward_hook(lambda m, given, got: None)",
        ),
    ),
    Reason(
        "inference_mode",
        "Inference mode is entered for a part of what is compiled: {detail}.",
        "Tensors made under it are of another kind, and a graph runs under one mode.",
        "Put all of the compiled function under inference mode, or use torch.no_grad",
        _example("y = x + 1\nwith torch.inference_mode():\n    return y * 2"),
    ),
    Reason(
        "dispatch_mode",
        "A torch dispatch mode is active, so the original code runs: {detail}.",
        "The mode is to see each operation (to count, to log, to replace it), and compiled code has none of them.",
        "Nothing, or leave the mode before calling compiled code",
        """
def example():
    import torch, stator
    from torch.utils.flop_counter import FlopCounterMode

    compiled = stator.compile(lambda x: x @ x, backend="eager")
    with FlopCounterMode(display=False):
        compiled(torch.ones(3, 3))
""",
    ),
    Reason(
        "guards_fail_at_birth",
        "The guards of a new entry do not hold for the call it was made from: {detail}.",
        "Something the trace read changed while it was compiled, by another thread perhaps.",
        "Report this with the program that shows it, unless another thread changes what the function reads",
    ),
    Reason(
        "exception_not_raised",
        "The trace met an exception that the program did not raise: {detail}.",
        "The original code ran and went on, so the result is right; the trace read something wrongly.",
        "Report this with the program that shows it, unless another thread changes what the function reads",
    ),
    Reason(
        "no_compiler_for_device",
        "There is no compiler for this device yet, so torch's own kernels run: {detail}.",
        "stator compiles for CPUs; graphs on other devices are captured and run operator by operator.",
        'Name another backend for this device, such as backend="inductor"',
    ),
)
