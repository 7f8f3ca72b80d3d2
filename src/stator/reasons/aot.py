"""Reasons that belong to: aot."""

from __future__ import annotations

from stator.reasons.row import Reason

_TRACE = "import torch, stator\n\ndef example():\n    "

ROWS: tuple[Reason, ...] = (
    Reason(
        id="aot_real_tensor",
        summary="the traced function uses a real tensor that is not among its arguments: {detail}",
        explanation="A trace records operators on stand-ins of the listed arguments. A tensor from a closure "
        "or a global would be frozen into the graph with the value it has now.",
        hint="pass it as an argument, or freeze it on purpose with allow_real_inputs=True",
        example=_TRACE + "weight = torch.ones(2)\n    stator.trace(lambda x: x + weight)(torch.ones(2))\n",
    ),
    Reason(
        id="aot_data_ptr",
        summary="the traced function asks for the memory address of a tensor",
        explanation="While a function is traced its tensors have sizes and dtypes but no memory, so there is no "
        "address; one recorded now would be wrong in every later call.",
        hint="move the code that needs the address into a torch.library.custom_op, which sees real tensors",
        example=_TRACE + "stator.trace(lambda x: x.data_ptr())(torch.ones(2))\n",
    ),
    Reason(
        id="aot_value_read",
        summary="the traced function reads the value of a tensor ({detail})",
        explanation="While a function is traced its tensors have no values; what Python decides by one would be frozen "
        "into the graph.",
        hint="keep the decision in tensors (torch.where, torch.cond), or trace with mode='real' to freeze this value",
        example=_TRACE + "stator.trace(lambda x: x * x.sum().item())(torch.ones(2))\n",
    ),
    Reason(
        id="aot_dynamic_output",
        summary="the size of the result of {detail} depends on values",
        explanation="While a function is traced its tensors have no values, so the size of such a result is unknown.",
        hint="use an operator with a fixed size (masks instead of indexing by them), or trace with mode='real'",
        example=_TRACE + "stator.trace(lambda x: x.nonzero())(torch.ones(2))\n",
    ),
    Reason(
        id="aot_no_meta_kernel",
        summary="the shape of the result of {detail} is unknown: the operator has no fake (meta) implementation",
        explanation="Tracing needs to know sizes, strides and dtype of a result without computing it.",
        hint="register one with torch.library.register_fake",
        example=_TRACE
        + "library = torch.library.Library('stator_example', 'FRAGMENT')\n"
        + "    library.define('shapeless(Tensor x) -> Tensor')\n"
        + "    stator.trace(torch.ops.stator_example.shapeless)(torch.ones(2))\n",
    ),
    Reason(
        id="aot_symbolic",
        summary="a size or number that varies cannot be followed through autograd: {detail}",
        explanation="The graph of operators is made once for all sizes; each size it uses must be computed from its "
        "arguments. Where that fails the captured graph runs operator by operator.",
        hint="pass dynamic=False for this function, or mark the size with stator.mark_static",
    ),
    Reason(
        id="aot_layout",
        summary="a tensor of layout {detail} cannot be traced",
        explanation="Only strided tensors have the sizes and strides the trace reasons about; sparse, quantised and "
        "nested tensors do not.",
        hint="keep such tensors outside of the compiled region, or convert them with to_dense()",
        example=_TRACE + "stator.trace(lambda x: x + 1)(torch.ones(2, 2).to_sparse())\n",
    ),
    Reason(
        id="aot_subclass",
        summary="an argument is of the tensor subclass {detail}, which has its own dispatch",
        explanation="A subclass with __torch_dispatch__ decides itself what an operator does, so those recorded "
        "for a plain tensor would not be the ones it runs.",
        hint="pass the plain tensors the subclass is made of",
        example=_TRACE
        + "from torch.testing._internal.two_tensor import TwoTensor\n"
        + "    stator.trace(lambda x: x + 1)(TwoTensor(torch.ones(2), torch.ones(2)))\n",
    ),
    Reason(
        id="aot_escaped",
        summary="a value of another trace was used: {detail}",
        explanation="Stand-ins belong to the trace that made them; one kept from an earlier or outer trace has no "
        "meaning in this one.",
        hint="return the value from the traced function instead of storing it outside",
        example=_TRACE
        + "kept = []\n    stator.trace(lambda x: kept.append(x * 2))(torch.ones(2))\n"
        + "    stator.trace(lambda x: x + kept[0])(torch.ones(2))\n",
    ),
    Reason(
        id="aot_double_backward",
        summary="the gradient of a compiled region cannot be differentiated again",
        explanation="The backward graph of a compiled region was made ahead of time, without a graph of its own "
        "backward.",
        hint="compute the inner gradient with torch.func.grad inside of it, or put stator.disable on the function",
        example="",
    ),
    Reason(
        id="aot_aliased_inputs",
        summary="two arguments share memory, one is written in place, and they have no common base: {detail}",
        explanation="Writing one changes the other. The graph can express that when both are views of one tensor that "
        "autograd knows; here autograd does not know of the sharing.",
        hint="pass the common tensor and take the views inside the compiled function, or clone one of them",
        example="",
    ),
    Reason(
        id="aot_alias_changed",
        summary="arguments that shared no memory when the graph was made share it now: {detail}",
        explanation="The graph writes one of them in place and was made on the assumption that this leaves the other "
        "alone.",
        hint="clone one of the arguments before the call",
        example="",
    ),
    Reason(
        id="aot_higher_order",
        summary="the higher-order operator {detail}",
        explanation="The bodies of a higher-order operator become graphs of their own; what they may do is limited to "
        "what such a graph can say.",
        hint="rewrite the body so that it neither writes its inputs nor returns one of them unchanged",
        example="",
    ),
    Reason(
        id="aot_storage_change",
        summary="a tensor is given other memory in place by {detail}",
        explanation="The graph keeps track of which tensors share memory; an operator that exchanges or resizes memory "
        "under a tensor changes that in a way the graph cannot say.",
        hint="make a new tensor instead, or move the call out of the compiled function",
        example=_TRACE + "stator.trace(lambda x: (x * 2).resize_(8))(torch.ones(2))\n",
    ),
    Reason(
        id="aot_mode",
        summary="tracing mode {detail} is none of 'fake', 'real' and 'symbolic'",
        explanation="The mode says what stands for the arguments while the function runs.",
        hint="choose one of the three",
        example=_TRACE + "stator.trace(lambda x: x, mode='other')(torch.ones(2))\n",
    ),
)
