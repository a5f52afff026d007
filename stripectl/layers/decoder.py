"""The parts of a decoder like LLaMA (Touvron et al. 2023), and their parameters."""

from stripectl.core.model import Model
from stripectl.core.parameters import Parameter
from stripectl.layers.attention import convolution_parameters, gate_parameters, projection_parameters
from stripectl.layers.swiglu import swiglu_parameters

ALIKE = "every"  # the name of the only stack of layers


def layer_parameters(sizes: Model) -> dict[str, Parameter]:
    """The parameters of a layer, by name, in the order in which their initial values are drawn."""
    matrices = projection_parameters(sizes) | swiglu_parameters(sizes)
    return matrices | gate_parameters(sizes) | convolution_parameters(sizes)


def layer_stacks(model: Model) -> dict[str, tuple[int, dict[str, Parameter]]]:
    """(number of layers, parameters of each) by stack: one stack, or one per kind of layer where a recurrence or other
    heads give their parameters other shapes."""
    apart = model.linear_heads is not None or model.of_kind("linear").gated is not None
    if apart and len(model.kinds) > 1:
        return {own.attention: (count, layer_parameters(own)) for count, own in model.kinds}
    return {ALIKE: (model.layers, layer_parameters(model))}
