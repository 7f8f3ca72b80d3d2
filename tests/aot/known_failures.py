"""Differentiable operators of torch's `op_db` that do not go through `aot_eager` as in eager, and why.

`test_sweep` fails when an operator in this table passes, so that the table cannot grow stale. Keys are OpInfo names
with their variant after a dot. "some" means that other samples of the operator pass.
"""

# What the operator (or the Python function around it) does is decided by values it reads. A frontend breaks the
# graph there, so that the operator runs eagerly between two graphs.
READS_VALUES = {
    "combinations": "masked_select inside",
    "corrcoef": "checks weights by value",
    "cov": "checks weights by value",
    "masked_select": "the result's size is a count of true values",
    "nn.functional.gaussian_nll_loss": "raises if a variance is negative",
    "nn.functional.ctc_loss": "the size of its work space depends on target lengths",
    "repeat_interleave": "some: with repeats in a tensor",
    "tensor_split": "some: with indices in a tensor",
    "narrow": "some: with a start in a tensor",
    "linalg.lstsq": "the residuals' size depends on the rank",
    "linalg.lstsq.grad_oriented": "the residuals' size depends on the rank",
    "__getitem__": "some: indices that are masks",
    "index_put": "some: indices that are masks; the gradient of the values is gathered by one",
    "index_fill": "some: counts distinct indices",
}

# Tensors that are not strided.
LAYOUTS = {
    "to_sparse": "the result is sparse",
    "sparse.sampled_addmm": "sparse arguments",
    "sparse.mm.reduce": "sparse arguments",
}

# Eager raises for some values where a graph, made without them, cannot.
CHECKS_VALUES = {
    "linalg.eig": "backward raises for losses that depend on the phase of eigenvectors",
}

KNOWN_FAILURES = {**READS_VALUES, **LAYOUTS, **CHECKS_VALUES}
