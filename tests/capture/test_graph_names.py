"""Names in captured graphs: inputs after the expressions that reach them, results after their variables."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import stator

SCALE = torch.ones(3)
TABLE = {"a": torch.ones(3), 1: torch.ones(3)}


class Holder:
    def __init__(self) -> None:
        self.held = torch.ones(3)
        self.rows = {"k": [torch.ones(3)]}


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.blocks = torch.nn.ModuleList([torch.nn.Linear(3, 3)])
        self.register_buffer("shift", torch.ones(3))

    def forward(self, x: torch.Tensor, *more: torch.Tensor, scale: Any = None) -> torch.Tensor:
        return self.blocks[0](self.linear(x)) * self.shift + more[0] * scale


def closing_over() -> Any:
    held = torch.ones(3)
    return lambda x: x + held


def indexed(xs: Any, table: Any, *more: Any, **named: Any) -> Any:
    return xs[0] + table["key"] + more[0] + named["one"]


def globals_read(x: Any) -> Any:
    return x + SCALE + TABLE["a"] + TABLE[1]


def attributes(x: Any, holder: Any) -> Any:
    return x + holder.held + holder.rows["k"][0]


def variables(x: Any) -> Any:
    y = x + 1
    first, second = torch.split(y, 2)
    y = first * second
    same = y
    return same.sum()


def call_model() -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    return Model(), (torch.ones(3), torch.ones(3)), {"scale": torch.ones(3)}


def row(function: Any, *args: Any, **named: Any) -> Any:
    return lambda: (function, args, named)


X = torch.ones(3)
ROWS: dict[str, tuple[Any, str]] = {
    "items": (
        row(indexed, [X], {"key": X.clone()}, X.clone(), one=X.clone()),
        "L_xs_0_ L_table_key_ L_more_0_ L_named_one_",
    ),
    "globals": (row(globals_read, X), "L_x_ G_SCALE_ G_TABLE_a_ G_TABLE_1_"),
    "attributes": (row(attributes, X, Holder()), "L_x_ L_holder_held L_holder_rows_k_0_"),
    "cell": (row(closing_over(), X), "L_x_ L_held_"),
    "module": (
        call_model,
        "L_x_ L_self_modules_linear_parameters_weight_ L_self_modules_linear_parameters_bias_"
        " L_self_modules_blocks_modules_0_parameters_weight_ L_self_modules_blocks_modules_0_parameters_bias_"
        " L_self_buffers_shift_ L_more_0_ L_scale_",
    ),
}  # fmt: skip


def captured(function: Any, args: Any, named: Any, **options: Any) -> torch.fx.GraphModule:
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph

    stator.compile(function, backend=backend, fullgraph=True, **options)(*args, **named)
    return graphs[0]


@pytest.mark.parametrize("name", ROWS)
def test_inputs(name: str) -> None:
    make, expected = ROWS[name]
    graph = captured(*make())
    assert [node.target for node in graph.graph.nodes if node.op == "placeholder"] == expected.split()


def test_results_are_called_as_their_variables() -> None:
    graph = captured(variables, (torch.ones(4),), {})
    names = [node.name for node in graph.graph.nodes if node.op not in ("placeholder", "output")]
    assert names == ["y", "split", "first", "second", "y_1", "sum_1"]


def test_graphs_read_as_others_do() -> None:
    text = captured(variables, (torch.ones(4),), {}).print_readable(print_output=False)
    assert text.startswith("class GraphModule(torch.nn.Module):")
    assert 'y: "f32[4]" = l_x_ + 1' in text


def test_sizes_are_called_by_their_symbols() -> None:
    graph = captured(lambda x: x.reshape(x.size(0) * 2, -1), (torch.ones(4, 6),), {}, dynamic=True)
    assert [node.name for node in graph.graph.nodes if node.op == "placeholder"] == ["l_x_", "s0"]
