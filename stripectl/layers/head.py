"""The head: a norm, the product with the vocabulary, and the loss. Devices of `tensor` have parts of the vocabulary."""

from stripectl.core.comm import Array
from stripectl.core.model import Model
from stripectl.core.ops import Ops, Weights
from stripectl.core.parameters import Parameter, scale_of
from stripectl.core.scopes import HEAD


def head_parameters(sizes: Model) -> dict[str, Parameter]:
    """The parameters of the head, by name."""
    return {
        "norm": scale_of(sizes.hidden),
        "head": Parameter((sizes.hidden, sizes.vocabulary), ("hidden", "tensor")),
    }


def loss(x: Array, targets: Array, weights: Weights, ops: Ops) -> Array:
    """float32: the sum of the cross-entropy of targets (b, t); only the logits of a chunk of rows are in memory."""

    def of_rows(x: Array, targets: Array, weights: Weights) -> Array:
        y = ops.to_tensor_parallel(ops.norm(x, weights["norm"]))
        return ops.cross_entropy(ops.einsum("btd,dv->btv", y, weights["head"], "float32"), targets)

    with ops.section(HEAD):
        return ops.blockwise(of_rows, weights, x, targets)
