"""The feed-forward of a layer: a norm, and the products with gate, up and down (Shazeer 2020), or with up and down
alone, added to the hidden states."""

from stripectl.core.comm import Array
from stripectl.core.kept import Kept
from stripectl.core.model import Model
from stripectl.core.ops import Ops, Weights
from stripectl.core.parameters import Parameter, bias_of
from stripectl.core.scopes import FEED_FORWARD
from stripectl.layers.attention import last_deviation
from stripectl.layers.norm import norm_parameters, normed


def feed_forward_parameters(sizes: Model) -> dict[str, Parameter]:
    """The parameters of a layer's feed-forward, by name."""
    d, f, architecture = sizes.hidden, sizes.feed_forward, sizes.architecture
    wide = ("gate", "up") if architecture.gated else ("up",)
    return {
        **(norm_parameters("feed_forward_norm", sizes) if architecture.norms_before else {}),
        **({f"{name}_bias": bias_of(f, "tensor") for name in wide} if architecture.feed_forward_bias else {}),
        **{name: Parameter((d, f), ("hidden", "tensor")) for name in wide},
        "down": Parameter((f, d), ("tensor", "hidden"), last_deviation(sizes)),
    }


def end_parameters(sizes: Model) -> dict[str, Parameter]:
    """The bias and the norm of a feed-forward's result."""
    found = {"down_bias": bias_of(sizes.hidden, "hidden")} if sizes.architecture.feed_forward_bias else {}
    return found | (norm_parameters("feed_forward_end_norm", sizes) if sizes.architecture.norms_after else {})


def feed_forward(x: Array, weights: Weights, end: Weights, sizes: Model, ops: Ops) -> Array:
    """Hidden states after the layer's feed-forward, for a chunk of rows at a time; `end` are the parameters of its
    result, which belong to no chunk, so that the backward pass of a chunk does not sum its result again."""

    architecture = sizes.architecture
    names = ("gate", "up") if architecture.gated else ("up",)

    def of_rows(x: Array, weights: Weights) -> Array:
        own = normed(x, "feed_forward_norm", weights, sizes, ops) if architecture.norms_before else x
        y = ops.to_tensor_parallel(own)
        wide = [ops.einsum("btd,df->btf", y, weights[name]) for name in names]
        if architecture.feed_forward_bias:
            wide = [ops.add_bias(x, weights[f"{name}_bias"]) for x, name in zip(wide, names, strict=True)]
        active = ops.activate(architecture.activation, *wide)
        return ops.from_tensor_parallel(ops.einsum("btf,fd->btd", active, weights["down"]))

    with ops.section(FEED_FORWARD):
        out = ops.blockwise(of_rows, weights, x)
        out = ops.add_bias(out, end["down_bias"]) if architecture.feed_forward_bias else out
        out = ops.keep(out, Kept.FEED_FORWARD)
        return ops.add(x, normed(out, "feed_forward_end_norm", end, sizes, ops) if architecture.norms_after else out)
