"""The parts of a decoder like LLaMA (Touvron et al. 2023), and their parameters."""

from collections.abc import Callable, Mapping

from stripectl.core.comm import Array, Shifts
from stripectl.core.model import Model
from stripectl.core.ops import Ops, Weights
from stripectl.core.parameters import Parameter
from stripectl.layers.attention import (
    AttentionLayer,
    attention,
    attention_parameters,
    branch_parameters,
    projection_parameters,
)
from stripectl.layers.feed_forward import end_parameters, feed_forward, feed_forward_parameters

ALIKE = "every"  # the name of the only stack of layers


def layer_parameters(sizes: Model) -> dict[str, Parameter]:
    """The parameters of a layer, by name, in the order in which their initial values are drawn."""
    absent = sizes.architecture.no_feed_forward
    wide = {} if absent else feed_forward_parameters(sizes) | end_parameters(sizes)
    return projection_parameters(sizes) | wide | branch_parameters(sizes)


def layer_stacks(model: Model) -> dict[str, tuple[int, dict[str, Parameter]]]:
    """(number of layers, parameters of each) by stack: one stack, or one per kind of layer where parameters differ."""
    tables = {own.attention: (count, layer_parameters(own)) for count, own in model.kinds}
    (_, first), *others = tables.values()
    return tables if any(table != first for _, table in others) else {ALIKE: (model.layers, first)}


def decoder_layer(
    x: Array, gathered: Callable[[Mapping[str, Parameter]], Weights], layer: AttentionLayer, ops: Ops, comm: Shifts
) -> Array:
    """Hidden states after a layer; `gathered` gives the parameters of a table."""
    x = attention(x, gathered(attention_parameters(layer.sizes)), layer, ops, comm)
    if layer.sizes.architecture.no_feed_forward:
        return x
    own = gathered(feed_forward_parameters(layer.sizes))
    return feed_forward(x, own, gathered(end_parameters(layer.sizes)), layer.sizes, ops)
