"""Twenty programs somebody asked "why" about, each with the line and the action a good answer names.

A program's text defines `run(compile)`, which makes the calls; `# here` marks the line the answer must name. `says` are
words of the cause, `do` the actions of which one must be named: the first line of the tool's answer holds all this.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Why:
    name: str
    question: str  # break, recompile, fuse, slow, specialise
    text: str
    says: tuple[str, ...]
    do: tuple[str, ...]
    dynamic_line: bool = True


PROGRAMS = (
    Why(
        "item",
        "break",
        """
        def f(x):
            n = x.sum().item()  # here
            return x + n

        def run(compile):
            compile(f)(torch.ones(3))
        """,
        ("graph break", "item"),
        ("capture_scalar_outputs", "tensor"),
    ),
    Why(
        "branch_on_a_tensor",
        "break",
        """
        def f(x):
            if x.sum() > 0:  # here
                return x + 1
            return x - 1

        def run(compile):
            compile(f)(torch.ones(3))
        """,
        ("graph break",),
        ("torch.where", "torch.cond", "capture_branches"),
    ),
    Why(
        "tolist",
        "break",
        """
        def f(x):
            a, b = x.tolist()  # here
            return x * a + b

        def run(compile):
            compile(f)(torch.ones(2))
        """,
        ("graph break", "tolist"),
        ("capture_scalar_outputs", "tensor"),
    ),
    Why(
        "explicit",
        "break",
        """
        import stator

        def f(x):
            x = x + 1
            stator.graph_break("on purpose")  # here
            return x * 2

        def run(compile):
            compile(f)(torch.ones(2))
        """,
        ("graph break",),
        ("graph_break", "emove"),
    ),
    Why(
        "disabled_function",
        "break",
        """
        import stator

        @stator.disable
        def helper(x):
            return x + 1

        def f(x):
            return helper(x * 2) * 3  # here

        def run(compile):
            compile(f)(torch.ones(2))
        """,
        ("graph break", "helper"),
        ("disable",),
    ),
    Why(
        "file_in_the_middle",
        "break",
        """
        import os

        def f(x):
            x = x * 2
            names = os.listdir("/")  # here
            return x + len(names) * 0

        def run(compile):
            compile(f)(torch.ones(2))
        """,
        ("graph break", "listdir"),
        ("outside", "before", "disable", "custom_op", "substitute", "out of"),
    ),
    Why(
        "sizes_from_data",
        "break",
        """
        def f(x):
            picked = torch.nonzero(x)  # here
            return picked * 2

        def run(compile):
            compile(f)(torch.ones(3))
        """,
        ("graph break", "nonzero"),
        ("capture_dynamic_output_shape_ops", "torch.where"),
    ),
    Why(
        "deep_in_a_callee",
        "break",
        """
        def deepest(x):
            return x + x.max().item()  # here

        def deeper(x):
            return deepest(x.relu()) * 2

        def f(x):
            return deeper(x + 1) - 1

        def run(compile):
            compile(f)(torch.ones(3))
        """,
        ("graph break", "item"),
        ("capture_scalar_outputs", "tensor"),
    ),
    Why(
        "another_size",
        "recompile",
        """
        def f(x):
            return (x * 2).sum(0)  # here

        def run(compile):
            g = compile(f, dynamic=False)
            for rows in (3, 5):
                g(torch.ones(rows, 4))
        """,
        ("recompiled because x", "3", "5"),
        ("mark_dynamic(x, 0)",),
    ),
    Why(
        "another_number",
        "recompile",
        """
        def f(x, scale):
            return x * scale  # here

        def run(compile):
            g = compile(f)
            for scale in (0.5, 0.25):
                g(torch.ones(4), scale)
        """,
        ("recompiled because scale was 0.5 and is 0.25",),
        ("torch.tensor",),
    ),
    Why(
        "another_word",
        "recompile",
        """
        def f(x, how):
            if how == "relu":  # here
                return x.relu()
            return x.sigmoid()

        def run(compile):
            g = compile(f)
            for how in ("relu", "sigmoid"):
                g(torch.ones(4), how)
        """,
        ("recompiled because how was 'relu' and is 'sigmoid'",),
        ("keep it the same",),
    ),
    Why(
        "a_growing_list",
        "recompile",
        """
        def f(xs):
            total = xs[0]
            for x in xs:  # here
                total = total + x
            return total

        def run(compile):
            g = compile(f)
            for count in (2, 3):
                g([torch.ones(4) for _ in range(count)])
        """,
        ("recompiled because", "xs", "2", "3"),
        ("stack the items",),
    ),
    Why(
        "another_dtype",
        "recompile",
        """
        def f(x):
            return x * 2  # here

        def run(compile):
            g = compile(f)
            for dtype in (torch.float32, torch.float64):
                g(torch.ones(4, dtype=dtype))
        """,
        ("recompiled because x", "float32", "float64"),
        ("one dtype",),
    ),
    Why(
        "grad_mode",
        "recompile",
        """
        def f(x):
            return x * 2

        def run(compile):
            g = compile(f)
            g(torch.ones(4))
            with torch.no_grad():
                g(torch.ones(4))
        """,
        ("recompiled because", "grad"),
        ("same torch modes",),
        dynamic_line=False,
    ),
    Why(
        "a_flag_of_the_module",
        "recompile",
        """
        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.scaled = False

            def forward(self, x):
                if self.scaled:  # here
                    x = x * 3
                return x + 1

        def run(compile):
            model = Model()
            g = compile(model)
            g(torch.ones(4))
            model.scaled = True
            g(torch.ones(4))
        """,
        ("recompiled because", "scaled", "False", "True"),
        ("same",),
    ),
    Why(
        "a_new_lambda_each_call",
        "recompile",
        """
        def f(x, function):
            return function(x) + 1  # here

        def run(compile):
            g = compile(f)
            g(torch.ones(4), lambda x: x * 2)
            g(torch.ones(4), lambda x: x * 3)
        """,
        ("recompiled because", "function"),
        ("same object",),
    ),
    Why(
        "a_sort_between_pointwise",
        "fuse",
        """
        def f(x):
            y = x * 2 + 1
            z = torch.sort(y).values  # here
            return z.relu() * 3

        def run(compile):
            compile(f)(torch.randn(64))
        """,
        ("sort",),
        ("before or all after",),
    ),
    Why(
        "slow_python_between_graphs",
        "slow",
        """
        import time

        def f(x):
            x = x + 1
            time.sleep(0.3)  # here
            x = x * 2
            y = x.sum().item()
            return x + y

        def run(compile):
            g = compile(f)
            for _ in range(3):
                g(torch.ones(4))
        """,
        ("graph break", "sleep"),
        ("outside", "before", "disable", "custom_op", "substitute", "out of"),
    ),
    Why(
        "specialised_by_a_comparison",
        "specialise",
        """
        import stator

        def f(x):
            if x.size(0) == 8:  # here
                return x + 1
            return x * 2

        def run(compile):
            x = torch.ones(8, 3)
            stator.maybe_mark_dynamic(x, 0)
            compile(f, dynamic=True)(x)
        """,
        ("8",),
        ("comparison",),
    ),
    Why(
        "specialised_although_marked",
        "specialise",
        """
        import stator

        def f(x):
            return x.view(2, 4) + 1  # here

        def run(compile):
            x = torch.ones(8)
            stator.mark_dynamic(x, 0)
            try:
                compile(f)(x)
            except Exception as error:
                print(error)
        """,
        ("x",),
        ("mark_dynamic", "maybe_mark_dynamic", "comparison", "keep"),
    ),
)
