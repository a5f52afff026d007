"""The head: a norm, the product with the vocabulary, and the loss. Devices of `tensor` have parts of the vocabulary."""

from stripectl.core.comm import Array
from stripectl.core.model import Model
from stripectl.core.ops import Ops, Weights
from stripectl.core.parameters import Parameter
from stripectl.core.scopes import HEAD
from stripectl.layers.embedding import embedding_parameters
from stripectl.layers.norm import norm_parameters, normed


def head_parameters(sizes: Model) -> dict[str, Parameter]:
    """The parameters that only the head has, by name."""
    found = norm_parameters("norm", sizes)
    if not sizes.architecture.tied:
        found["head"] = Parameter((sizes.hidden, sizes.vocabulary), ("hidden", "tensor"))
    return found


def head_weights(sizes: Model) -> dict[str, Parameter]:
    """The parameters that the head reads: its own, and the embedding where it makes the logits."""
    return head_parameters(sizes) | (embedding_parameters(sizes) if sizes.architecture.tied else {})


def loss(x: Array, targets: Array, weights: Weights, sizes: Model, ops: Ops) -> Array:
    """float32: the sum of the cross-entropy of targets (b, t); only the logits of a chunk of rows are in memory."""

    def of_rows(x: Array, targets: Array, weights: Weights) -> Array:
        y = ops.to_tensor_parallel(normed(x, "norm", weights, sizes, ops))
        if sizes.architecture.tied:
            logits = ops.einsum("btd,vd->btv", y, weights["embedding"], "float32")
        else:
            logits = ops.einsum("btd,dv->btv", y, weights["head"], "float32")
        cap = sizes.architecture.logit_cap
        return ops.cross_entropy(ops.soft_cap(logits, cap) if cap else logits, targets)

    with ops.section(HEAD):
        return ops.blockwise(of_rows, weights, x, targets)
