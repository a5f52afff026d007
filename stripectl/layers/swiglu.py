"""The feed-forward of a layer: a norm, and the products with gate, up and down (Shazeer 2020), added to the hidden
states."""

from stripectl.core.comm import Array
from stripectl.core.model import Model
from stripectl.core.ops import Ops, Weights
from stripectl.core.parameters import Parameter, norm_scales
from stripectl.core.scopes import FEED_FORWARD
from stripectl.layers.attention import last_deviation


def swiglu_parameters(sizes: Model) -> dict[str, Parameter]:
    """The parameters of a layer's feed-forward, by name."""
    d, f = sizes.hidden, sizes.feed_forward
    return {
        **norm_scales("feed_forward", sizes),
        "gate": Parameter((d, f), ("hidden", "tensor")),
        "up": Parameter((d, f), ("hidden", "tensor")),
        "down": Parameter((f, d), ("tensor", "hidden"), last_deviation(sizes)),
    }


def swiglu(x: Array, weights: Weights, sizes: Model, ops: Ops) -> Array:
    """Hidden states after the layer's feed-forward, for a chunk of rows at a time."""

    def of_rows(x: Array, weights: Weights) -> Array:
        own = ops.norm(x, weights["feed_forward_norm"]) if sizes.architecture.norms_before else x
        y = ops.to_tensor_parallel(own)
        gate, up = (ops.einsum("btd,df->btf", y, weights[name]) for name in ("gate", "up"))
        out = ops.from_tensor_parallel(ops.einsum("btf,fd->btd", ops.swiglu(gate, up), weights["down"]))
        return ops.norm(out, weights["feed_forward_end_norm"]) if sizes.architecture.norms_after else out

    with ops.section(FEED_FORWARD):
        return ops.add(x, ops.blockwise(of_rows, weights, x))
