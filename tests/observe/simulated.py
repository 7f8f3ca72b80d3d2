"""A realistic stream of events, as the stages emit them: a small GPT with breaks, recompiles, fusion, kernels.

`emit_gpt()` sends the stream through the real bus (`breaks`, `recompiles`: how many), so logs, traces, `explain` and
metrics are tested on what they will see, before and apart from the stages. Graphs are real FX graphs of this very
file's model, with stack traces that point at its lines.
"""

from __future__ import annotations

import inspect
import time
from pathlib import Path

import torch
from torch import nn

from stator import events
from stator.events import CompileId, Location, Miss, emit
from stator.values.source import SourceTree, TensorExpectation

FILE = str(Path(__file__).resolve())


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def attention(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, -1).unbind(2)
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / width**0.5
        return self.out(torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v).reshape(x.shape))

    def forward(self, x):
        x = x + self.attention(x)
        hidden = torch.nn.functional.gelu(self.up(self.norm(x)))
        return x + self.down(hidden)


class Gpt(nn.Module):
    def __init__(self, width: int = 32, heads: int = 4, depth: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.head = nn.Linear(width, 100)
        self.steps = 0

    def forward(self, tokens, temperature=1.0):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
            if x.abs().max().item() > 1e4:  # here: a break
                x = x.clamp(-1e4, 1e4)
        self.steps += 1
        return self.head(x) / temperature


def line_of(function, text: str) -> Location:
    """The line of `function` in this file that contains `text`."""
    lines, first = inspect.getsourcelines(function)
    for offset, line in enumerate(lines):
        if text in line:
            return Location(FILE, first + offset, function.__qualname__)
    raise LookupError(text)


def frame_text(location: Location, code: str) -> str:
    return f'  File "{location.file}", line {location.line}, in {location.function}\n    {code}\n'


class _Leaf(torch.fx.Tracer):
    def is_leaf_module(self, module, name):
        return False


def block_graph(batch: int = 2, length: int = 16, width: int = 32, depth: int = 1) -> torch.fx.GraphModule:
    """`depth` blocks as one FX graph, with example values and the stack traces of this file's lines."""
    block = Block(width, 4)
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["example_value"] = torch.empty(batch, length, width, device="meta")
    functions = [(Block.attention, "self.qkv(self.norm"), (Block.attention, "scores ="), (Block.attention, "self.out")]
    functions += [(Block.forward, "hidden ="), (Block.forward, "self.down(hidden)")]
    for _ in range(depth):
        for function, text in functions:
            location = line_of(function, text)
            stack = frame_text(line_of(Gpt.forward, "block(x)"), "x = block(x)") + frame_text(location, text)
            for target in (torch.relu, torch.sin, torch.tanh):
                node = graph.call_function(target, (x,))
                node.meta["example_value"] = x.meta["example_value"]
                node.meta["stack_trace"] = stack
                x = graph.call_function(torch.add, (node, x), {"alpha": 1})
                x.meta["example_value"] = node.meta["example_value"]
                x.meta["stack_trace"] = stack
    graph.output((x,))
    return torch.fx.GraphModule(block, graph)


def guard_tree(modules: int = 8) -> SourceTree:
    """Guards as a model has them: tensors, modules, constants."""
    tree = SourceTree(("self", "tokens", "temperature"))
    at = line_of(Gpt.forward, "self.embed(tokens)")
    tokens = TensorExpectation(torch.Tensor, torch.int64, torch.device("cpu"), False, (2, 16), (16, 1), torch.strided)
    tree.local(1).guard("TENSOR", tokens, at)
    tree.local(2).guard("EQUALS", 1.0, line_of(Gpt.forward, "/ temperature"))
    tree.local(0).guard("TYPE_IS", Gpt, at)
    weight = TensorExpectation(nn.Parameter, torch.float32, torch.device("cpu"), True, (32, 32), (32, 1), torch.strided)
    for index in range(modules):
        block = tree.local(0).child("ATTR", "blocks").child("INDEX", index)
        block.guard("MODULE_CALL", None, line_of(Gpt.forward, "block(x)"))
        block.child("ATTR", "heads").guard("EQUALS", 4, line_of(Block.attention, "self.heads"))
        block.child("ATTR", "up").child("ATTR", "weight").guard("TENSOR", weight, line_of(Block.forward, "hidden ="))
    return tree


KERNEL = """define void @fused_gelu_0(ptr %up, ptr %out) {
  ; gelu over 2 x 16 x 128, 16 lanes
  %v = load <16 x float>, ptr %up
  store <16 x float> %v, ptr %out
  ret void
}"""


def _program(index: int) -> None:
    """What the backend says about one graph."""
    hidden = line_of(Block.forward, "hidden =")
    scores = line_of(Block.attention, "scores =")
    emit("cache", operation="miss" if index % 3 else "hit", key=f"{index:08x}", kind_of="object")
    emit("fusion", location=hidden, first="linear_bias", second="gelu", fused=True, why="same ranges", user_line=hidden)
    emit(
        "fusion",
        first="softmax",
        second="einsum",
        fused=False,
        why="einsum is an extern call; reads its whole input",
        user_line=scores,
    )
    emit(
        "kernel_code",
        name=f"fused_gelu_{index}",
        text=KERNEL,
        user_lines=[hidden],
        bytes_read=16384,
        bytes_written=16384,
    )
    emit("kernel_code", name=f"softmax_{index}", text=KERNEL, user_lines=[scores], bytes_read=8192, bytes_written=8192)
    emit(
        "schedule",
        text=f"extern addmm\nkernel fused_gelu_{index}\nextern addmm\nkernel softmax_{index}",
        arena_bytes=65536,
        buffer_bytes=262144,
        kernels=2,
        externs=2,
    )
    emit(
        "output_code",
        text=f"kernel fused_gelu_{index}(up, out)\n  for i in 4096: out[i] = gelu(up[i])",
        language="loops",
    )


def emit_entry(
    region: int,
    entry: int,
    name: str,
    location: Location,
    cause: str,
    *,
    parent: CompileId | None = None,
    broken: Location | None = None,
    reason: str = "tensor_item",
    seconds: float = 0.05,
    error: str | None = None,
    depth: int = 1,
) -> None:
    """One compile from start to end."""
    with events.compiling(CompileId(region, entry)):
        start = {"name": name, "file": location.file, "line": location.line, "cause": cause}
        if parent is not None:
            start["parent"] = parent
        emit("compile_start", location=location, stack=[line_of(emit_gpt, "emit_entry(0, 0")], **start)
        graph = block_graph(depth=depth)
        emit("dynamic", text="size 1 of tokens is any size from 2", symbol="s0", source="tokens.size(1)",
             user_line=line_of(Gpt.forward, "self.embed"), action="made")  # fmt: skip
        emit("graph", graph_module=graph, sizes={"x": (2, 16, 32)})
        if broken is not None:
            code = Path(broken.file).read_text().splitlines()[broken.line - 1].strip()
            emit("graph_break", location=broken, reason=reason, detail="x.abs().max().item()",
                 stack=[line_of(Gpt.forward, "for block"), broken], line=code)  # fmt: skip
            emit("residual", text=f"y = graph_{region}_{entry}(x)\n{code}\nresume at {broken}")
        emit("guards", tree=guard_tree())
        emit("stage", name="capture", seconds=seconds * 0.3)
        if error is None:
            emit("aot_joint_graph", graph_module=graph)
            emit("aot_graph", which="forward", graph_module=graph)
            emit("aot_graph", which="backward", graph_module=graph)
            emit("progress", stage="emit", done=1, total=2)
            _program(region)
        stages = {"capture": seconds * 0.3, "aot": seconds * 0.2, "lower": seconds * 0.1, "emit": seconds * 0.4}
        outcome = {"ok": error is None, "seconds": seconds, "stages": stages}
        if error is not None:
            outcome["error"] = error
        emit("compile_end", graphs=1, ops=30 * depth, guards=27, **outcome)


def emit_recompile(region: int, entry: int, old: str, new: str, miss: Miss, others: int = 0) -> None:
    misses = [miss] + [
        Miss(other, "tokens.size(0)", "TENSOR", "2", "5", line_of(Gpt.forward, "self.embed")) for other in range(others)
    ]
    with events.compiling(CompileId(region, entry)):
        emit("recompile", name="Gpt.forward", misses=misses, old=old, new=new, user_line=miss.location)


def emit_gpt(breaks: int = 3, recompiles: int = 2, *, error: bool = False, depth: int = 1, pause: float = 0.0) -> None:
    """The whole stream: a model whose forward breaks `breaks` times and is compiled again `recompiles` times."""
    forward = Location(FILE, inspect.getsourcelines(Gpt.forward)[1], "Gpt.forward")
    broken = line_of(Gpt.forward, ".item()")
    emit_entry(0, 0, "Gpt.forward", forward, "first_call", broken=broken if breaks else None, depth=depth)
    for index in range(1, breaks + 1):
        time.sleep(pause)
        parent = CompileId(index - 1, 0)
        where = Location(broken.file, broken.line + index % 3, broken.function)  # three places in all
        more = index < breaks
        reason = ("tensor_item", "builtin_print", "data_dependent_branch")[index % 3]
        emit_entry(index, 0, "Gpt.forward", Location(FILE, broken.line, "Gpt.forward"), "continuation",
                   parent=parent, broken=where if more else None, reason=reason, seconds=0.02 + 0.002 * index,
                   depth=depth)  # fmt: skip
        with events.compiling(parent):
            emit("break_run", location=broken if index == 1 else None, reason="tensor_item", seconds=0.0003)
    size = Miss(0, "tokens.size(1)", "TENSOR", "16", "24", line_of(Gpt.forward, "self.embed"))
    number = Miss(0, "temperature", "EQUALS", "1.0", "0.7", line_of(Gpt.forward, "/ temperature"))
    for index in range(1, recompiles + 1):
        time.sleep(pause)
        miss = number if index % 2 else size
        emit_recompile(0, index, miss.expected, miss.actual, miss, others=index - 1)
        emit_entry(0, index, "Gpt.forward", forward, "recompile", seconds=0.04, depth=depth)
    emit("fallback", location=line_of(Block.attention, "scores ="), reason="lowering_failed",
         detail="einsum with 5 operands runs as ATen's own kernel")  # fmt: skip
    emit("perf_hint", text="the softmax runs on one thread: call it with more than 2048 rows",
         user_line=line_of(Block.attention, "softmax"))  # fmt: skip
    emit("dynamic", text="x.size(2) == 32", symbol="s1", source="x.size(2)", action="specialised", value=32,
         user_line=line_of(Block.attention, "x.shape"))  # fmt: skip
    emit("cache", operation="store", key="00ff", kind_of="entry")
    emit("warning", text="reduce-overhead means the same as default on the CPU")
    if error:
        emit_entry(breaks + 1, 0, "loss", line_of(Block.forward, "hidden ="), "first_call",
                   error="BackendCompilerFailed: backend 'mine' raised\nValueError: no")  # fmt: skip
