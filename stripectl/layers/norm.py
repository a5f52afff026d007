"""The norms of hidden states: by the root mean square (Zhang and Sennrich 2019), or layer norms (Ba et al. 2016)."""

from stripectl.core.comm import Array
from stripectl.core.model import Model
from stripectl.core.ops import Ops, Weights
from stripectl.core.parameters import Parameter, bias_of, scale_of


def norm_parameters(name: str, sizes: Model) -> dict[str, Parameter]:
    """The scale and the bias of a norm of this name, where the model's norms have them."""
    found = {name: scale_of(sizes.hidden)} if sizes.architecture.norm_scales else {}
    return found | ({f"{name}_bias": bias_of(sizes.hidden, "hidden")} if sizes.architecture.norm_biases else {})


def normed(x: Array, name: str, weights: Weights, sizes: Model, ops: Ops) -> Array:
    """Hidden states after the norm of this name."""
    scale, epsilon = weights.get(name), sizes.architecture.norm_epsilon
    if sizes.architecture.layer_norms:
        return ops.layer_norm(x, scale, weights.get(f"{name}_bias"), epsilon)
    return ops.norm(x, scale, epsilon=epsilon)
