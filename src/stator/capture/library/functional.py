"""`torch.func` inside of captured programs: each transformed call is one node.

Contract. What torch runs under its own interpreters cannot be interpreted here, so a transform is captured in two
steps: the user's function is interpreted on abstract tensors of the shapes it will see (unbatched ones under `vmap`)
into a graph of its own, and the node calls torch's transform of that graph. What the function uses of the enclosing
program becomes an input of the node. Rows are the five functions all of `torch.func` goes through; `jacrev`, `jacfwd`,
`hessian` and the decorators around them are interpreted.

The function must only compute (see `bodies`), since a transform runs it in ways of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch._functorch.eager_transforms as transforms
import torch._functorch.vmap as batching
import torch.fx
import torch.utils._pytree as pytree

from stator.capture.bodies import BodyBuilder, refuse, trace_body
from stator.capture.control import Break, UserException
from stator.capture.plain_operators import as_plain
from stator.capture.recording import first_line
from stator.tensors import engine
from stator.tensors.abstract import AbstractTensor
from stator.tensors.dynamo_free import settle_transforms

if TYPE_CHECKING:
    from stator.capture.tracer import Tracer

META = torch.device("meta")
RANDOM = ("rand", "dropout", "bernoulli", "normal", "multinomial", "poisson", "exponential", "uniform", "rrelu")


def is_tensor(value: Any) -> bool:
    return type(value) is AbstractTensor


class Inner:
    """The user's function as a module of flat tensors: arguments first, then what it uses of the program."""

    def __init__(self, name: str, leaves: list[Any], structure: Any) -> None:
        self.name = name
        self.leaves = leaves
        self.structure = structure
        self.positions = [place for place, leaf in enumerate(leaves) if is_tensor(leaf)]
        self.tensors: list[Any] = [leaves[place] for place in self.positions]
        self.lifted: list[Any] = []
        self.results: list[Any] = []
        self.result_structure: Any = None
        self.module: Any = None

    def operands(self) -> list[Any]:
        return [*self.tensors, *self.lifted]

    def draws(self) -> bool:
        """Whether it uses random numbers."""
        names = (str(getattr(node.target, "__name__", node.target)) for node in self.module.graph.nodes)
        return any(name.startswith(RANDOM) for name in names)

    def placed(self, value: Any) -> list[int]:
        """The numbers, among the inputs, of the tensors in a part of the arguments."""
        leaves = pytree.tree_leaves(value, is_leaf=is_tensor)
        found = [next((n for n, one in enumerate(self.tensors) if one is leaf), -1) for leaf in leaves]
        if -1 in found:
            raise Break("operator_error", f"{self.name}: an argument to differentiate by is no tensor")
        return found


def interpret(
    tracer: Tracer,
    name: str,
    function: Any,
    args: Any,
    kwargs: dict[str, Any],
    unbatched: Callable[[int, AbstractTensor], tuple[Any, Any]] | None = None,
    differentiated: bool = False,
) -> Inner:
    """Interpret the user's function; `unbatched(leaf number, tensor)` gives the sizes and strides it sees."""
    tracer.world.read_deep(args)
    leaves, structure = pytree.tree_flatten((tuple(args), dict(kwargs)), is_leaf=is_tensor)
    inner = Inner(name, leaves, structure)
    stand_ins: dict[str, Any] = {}

    def make(builder: BodyBuilder) -> list[Any]:
        placed = list(leaves)
        for place in inner.positions:
            sizes, strides = (None, None) if unbatched is None else unbatched(place, leaves[place])
            placed[place] = builder.stand_in(leaves[place], sizes, strides)
        given, named = pytree.tree_unflatten(placed, structure)
        stand_ins.update(named)
        return list(given)

    if differentiated:
        with torch.enable_grad():
            body = trace_body(tracer, function, make, name, stand_ins)
    else:
        body = trace_body(tracer, function, make, name, stand_ins)
    tracer.world.read_deep(body.result)
    inner.results, inner.result_structure = pytree.tree_flatten(body.result, is_leaf=is_tensor)
    nodes = tuple(body.builder.node_of(leaf) for leaf in inner.results if is_tensor(leaf))
    inner.lifted = body.builder.lifted_values()
    body.builder.align(inner.lifted)
    inner.module = as_plain(body.builder.finish(nodes, "Inner"))
    return inner


class Transformed:
    """A node's target: `program(module, *tensors)` gives tensors flat."""

    def __init__(self, name: str, module: Any, program: Callable[..., Any]) -> None:
        self.module = module
        self.program = program
        self.__name__ = self.__qualname__ = name
        self.__module__ = __name__  # fx writes what it takes for torch's own by name, and would not find this

    def __call__(self, *tensors: Any) -> tuple[Any, ...]:
        settle_transforms()
        return tuple(self.program(self.module, *tensors))

    def for_facts(self) -> Transformed:
        """The same on meta tensors."""
        return Transformed(self.__name__, on_meta(self.module), self.program)


def on_meta(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A module whose tensors are all made on the meta device."""
    graph = torch.fx.Graph()
    known: dict[torch.fx.Node, torch.fx.Node] = {}
    attributes: dict[str, Any] = {}
    for node in module.graph.nodes:
        copied = known[node] = graph.node_copy(node, known.__getitem__)
        copied.args = torch.fx.node.map_aggregate(copied.args, _meta_device)
        named = {key: META if key == "device" and held is not None else held for key, held in copied.kwargs.items()}
        copied.kwargs = torch.fx.node.map_aggregate(named, _meta_device)
        if isinstance(node.target, Transformed):
            copied.target = node.target.for_facts()
        if node.op in ("get_attr", "call_module"):
            value = getattr(module, node.target)
            if isinstance(value, torch.fx.GraphModule):
                value = on_meta(value)
            attributes[node.target] = value.to(META) if isinstance(value, torch.Tensor) else value
    return torch.fx.GraphModule(attributes, graph, "Facts")


def _meta_device(value: Any) -> Any:
    return META if isinstance(value, torch.device) else value


def record(tracer: Tracer, target: Transformed, operands: Sequence[Any]) -> list[Any]:
    """One node; gives its flat results."""
    given = tuple(operands)
    try:
        results = engine.compute(target.for_facts(), given, {})
    except (
        RuntimeError,
        TypeError,
        ValueError,
        IndexError,
        AttributeError,
        AssertionError,
        NotImplementedError,
    ) as error:
        raise Break("operator_error", f"{target.__name__}: {first_line(error)}") from None
    node = tracer.graph.call(target, given, {}, results)
    tracer.attach_results(node, results, {id(value) for value in given})
    return list(results)


def filled(leaves: Sequence[Any], tensors: Sequence[Any], structure: Any) -> Any:
    """A value of the user's structure, with tensors put in their places."""
    found = iter(tensors)
    return pytree.tree_unflatten([next(found) if is_tensor(leaf) else leaf for leaf in leaves], structure)


# vmap


def _spread(tracer: Tracer, dims: Any, structure: Any, name: str) -> list[Any]:
    tracer.world.read_deep(dims)
    found = pytree._broadcast_to_and_flatten(dims, structure)
    if found is None:
        raise UserException(ValueError(f"{name}: {dims!r} does not fit the structure of what it is for"))
    return list(found)


def _vmap(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    function, in_dims, out_dims, randomness, chunk_size, *given = args
    tracer.world.read_deep(given)
    structure = pytree.tree_flatten(tuple(given), is_leaf=is_tensor)[1]
    named = len(pytree.tree_leaves(kwargs, is_leaf=is_tensor))
    dims = _spread(tracer, in_dims, structure, "in_dims") + [0] * named

    def unbatched(place: int, tensor: AbstractTensor) -> tuple[Any, Any]:
        if dims[place] is None:
            return None, None
        dim = dims[place] + (len(tensor.shape) if dims[place] < 0 else 0)
        if not 0 <= dim < len(tensor.shape):
            raise Break("operator_error", f"vmap: in_dim {dims[place]} of a tensor of shape {list(tensor.shape)}")
        shape, strides = list(tensor.shape), list(tensor.strides)
        del shape[dim], strides[dim]
        return shape, strides

    inner = interpret(tracer, "vmap", function, given, kwargs, unbatched)
    if not inner.results or not all(map(is_tensor, inner.results)):
        raise refuse(tracer, "the function given to vmap returns something that is no tensor", "higher_order_results")
    options = {
        "in_dims": tuple(dims[place] for place in inner.positions) + (None,) * len(inner.lifted),
        "out_dims": tuple(_spread(tracer, out_dims, inner.result_structure, "out_dims")),
        "randomness": randomness,
        "chunk_size": chunk_size,
    }

    def program(module: Any, *tensors: Any) -> Any:
        return torch.vmap(module, **options)(*tensors)

    made = record(tracer, Transformed("vmap", inner.module, program), inner.operands())
    return filled(inner.results, made, inner.result_structure)


# grad


def _chosen(args: Sequence[Any], argnums: Any) -> Any:
    """The arguments differentiated by."""
    if argnums is None:
        return tuple(args)
    return args[argnums] if isinstance(argnums, int) else tuple(args[number] for number in argnums)


def _splits(inner: Inner, has_aux: bool) -> tuple[Any, Any]:
    """Result and auxiliary result, as numbers of flat tensors put in the user's structure."""
    numbers = iter(range(len(inner.results)))
    marked = [(next(numbers),) if is_tensor(leaf) else leaf for leaf in inner.results]
    whole = pytree.tree_unflatten(marked, inner.result_structure)
    if not has_aux:
        return whole, None
    if not isinstance(whole, tuple) or len(whole) != 2:
        raise Break("operator_error", f"{inner.name}: the function returns no (output, aux) though has_aux is set")
    return whole


def _is_mark(value: Any) -> bool:
    return type(value) is tuple and len(value) == 1 and type(value[0]) is int


def _numbers(marked: Any) -> list[int]:
    return [leaf[0] for leaf in pytree.tree_leaves(marked, is_leaf=_is_mark) if _is_mark(leaf)]


def _put(marked: Any, tensors: Sequence[Any]) -> Any:
    """The user's structure, its marks replaced by tensors in order."""
    found = iter(tensors)
    return pytree.tree_map(lambda leaf: next(found) if _is_mark(leaf) else leaf, marked, is_leaf=_is_mark)


def _grad_and_value(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    names = ("func", "argnums", "has_aux", "args", "kwargs")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    arguments = tuple(given["args"])
    tracer.world.read_deep(given["argnums"])
    inner = interpret(tracer, "grad", given["func"], arguments, given["kwargs"], differentiated=True)
    chosen = _chosen(arguments, given["argnums"])
    wanted = tuple(inner.placed(chosen))
    output, aux = _splits(inner, given["has_aux"])
    if not _is_mark(output) or inner.results[0].dim() != 0:
        raise Break("operator_error", "grad: the function returns no scalar tensor")

    def program(module: Any, *tensors: Any) -> Any:
        def scalar(*values: Any) -> Any:
            results = module(*values)
            return results[0], results[1:]

        gradients, (value, rest) = torch.func.grad_and_value(scalar, wanted, has_aux=True)(*tensors)
        return (*gradients, value, *rest)

    made = record(tracer, Transformed("grad", inner.module, program), inner.operands())
    structure = pytree.tree_flatten(chosen, is_leaf=is_tensor)[1]
    gradients = pytree.tree_unflatten(made[: len(wanted)], structure)
    value = made[len(wanted)]
    return gradients, ((value, _put(aux, made[len(wanted) + 1 :])) if given["has_aux"] else value)


def _grad(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    gradients, value = _grad_and_value(tracer, args, kwargs)
    has_aux = args[2] if len(args) > 2 else kwargs["has_aux"]
    return (gradients, value[1]) if has_aux else gradients


# jvp


def _jvp(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    names = ("func", "primals", "tangents", "argnums")
    given = {"strict": False, "has_aux": False, **dict(zip(names, args, strict=False)), **kwargs}
    primals, tangents = given["primals"], given["tangents"]
    inner = interpret(tracer, "jvp", given["func"], primals, {}, differentiated=True)
    wanted = inner.placed(_chosen(primals, given["argnums"]))
    directions = pytree.tree_leaves(tangents, is_leaf=is_tensor)
    if len(directions) != len(wanted) or not all(map(is_tensor, directions)):
        raise Break("operator_error", "jvp: primals and tangents differ in structure")
    output, aux = _splits(inner, given["has_aux"])
    primary, rest = _numbers(output), _numbers(aux)
    count, strict = len(inner.operands()), given["strict"]

    def program(module: Any, *tensors: Any) -> Any:
        values = list(tensors[:count])

        def function(*moved: Any) -> Any:
            for number, value in zip(wanted, moved, strict=True):
                values[number] = value
            results = module(*values)
            return tuple(results[number] for number in primary), tuple(results[number] for number in rest)

        moved = tuple(values[number] for number in wanted)
        found = torch.func.jvp(function, moved, tuple(tensors[count:]), strict=strict, has_aux=True)
        return (*found[0], *found[1], *found[2])  # type: ignore[misc]

    made = record(tracer, Transformed("jvp", inner.module, program), [*inner.operands(), *directions])
    width = len(primary)
    found = _put(output, made[:width]), _put(output, made[width : 2 * width])
    return (*found, _put(aux, made[2 * width :])) if given["has_aux"] else found


# vjp


class PullBack:
    """What `vjp` remembers: the function, where it was evaluated, and what its argument must look like."""

    def __init__(self, inner: Inner, wanted: list[int], chosen: Any, output: Any) -> None:
        self.inner = inner
        self.wanted = wanted
        self.structure = pytree.tree_flatten(chosen, is_leaf=is_tensor)[1]
        self.primary = _numbers(output)


def pull_back(token: PullBack, cotangents: Any, retain_graph: bool = True, create_graph: Any = None) -> Any:
    """What `vjp` gives beside the result; a row of `FUNCTIONS` stands for it."""
    raise AssertionError("called outside of a trace")


def _vjp(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    function, *primals = args
    has_aux = kwargs.get("has_aux", False)
    inner = interpret(tracer, "vjp", function, primals, {}, differentiated=True)
    if inner.draws():
        raise Break("higher_order_operator", "vjp of a function that draws random numbers")
    chosen = _chosen(primals, kwargs.get("argnums"))
    wanted = inner.placed(chosen)
    output, aux = _splits(inner, has_aux)

    def program(module: Any, *tensors: Any) -> Any:
        with torch.enable_grad():
            return module(*tensors)

    made = record(tracer, Transformed("vjp_value", inner.module, program), inner.operands())
    back = functools.partial(pull_back, PullBack(inner, wanted, chosen, output))
    found = _put(output, [made[number] for number in _numbers(output)]), back
    return (*found, _put(aux, [made[number] for number in _numbers(aux)])) if has_aux else found


def _pull_back(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    token, cotangents = args[0], (args[1] if len(args) > 1 else kwargs["cotangents"])
    inner, wanted, primary = token.inner, token.wanted, token.primary
    tracer.world.read_deep(cotangents)
    weights = pytree.tree_leaves(cotangents, is_leaf=is_tensor)
    if len(weights) != len(primary) or not all(map(is_tensor, weights)):
        raise Break("operator_error", "vjp: cotangents differ from the output in structure")
    count = len(inner.operands())

    def program(module: Any, *tensors: Any) -> Any:
        values = list(tensors[:count])

        def function(*moved: Any) -> Any:
            for number, value in zip(wanted, moved, strict=True):
                values[number] = value
            results = module(*values)
            return tuple(results[number] for number in primary)

        back = torch.func.vjp(function, *[values[number] for number in wanted])[1]
        return back(tuple(tensors[count:]))

    made = record(tracer, Transformed("vjp", inner.module, program), [*inner.operands(), *weights])
    return pytree.tree_unflatten(made, token.structure)


FUNCTIONS: dict[Any, Any] = {
    batching.vmap_impl: _vmap,
    transforms.grad_impl: _grad,
    transforms.grad_and_value_impl: _grad_and_value,
    transforms._jvp_with_argnums: _jvp,
    transforms._vjp_with_argnums: _vjp,
    pull_back: _pull_back,
}
