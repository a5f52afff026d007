"""Parameters of layers, and how a plan shards them.

Tokens are sharded over the batch's and the sequence's axes; a layer's heads, feed-forward and vocabulary over `tensor`.
A parameter is *stored* in shards over `fsdp` and the sequence's axes as well (ZeRO-3, Rajbhandari et al. 2020); it is
gathered where a layer uses it, in the dtype of the step, and its gradient is reduce-scattered in float32. With ZeRO-1
only its optimizer state is stored so: gradients are reduce-scattered, and updated parameters are gathered; with
`zero=0` everything is stored as it is used.
"""

import math
from typing import NamedTuple

from stripectl.core.mesh import BATCH_AXES, HEAD_AXES, SEQUENCE_AXES, STORED_AXES
from stripectl.core.plan import Plan
from stripectl.core.scheme import schemes

INITIAL = 0.02  # standard deviation of initial parameters; divided by sqrt(2 layers) at the end of a branch (GPT-2)
Dims = tuple[str | None, ...]
# A dimension's name -> the mesh axes that shard it where it is used, and where it is stored.
USED = {"batch": BATCH_AXES, "sequence": SEQUENCE_AXES, "tensor": HEAD_AXES, "features": HEAD_AXES, "hidden": ()}
STORED = USED | {"hidden": STORED_AXES, "features": (*HEAD_AXES, *STORED_AXES)}


class Parameter(NamedTuple):
    """A parameter of a layer: its shape, the names of its dimensions, by which it is sharded, and its initial values:
    normal with a standard deviation, or all `equal`. The devices of `tensor` use a `partial` parameter in a
    tensor-parallel region, where it is whole, so that its gradient is a sum over them. Gradients need an `added`
    parameter only where they need its sum."""

    shape: tuple[int, ...]
    dims: Dims
    deviation: float = INITIAL
    equal: float | None = None
    partial: bool = False
    added: bool = False

    @property
    def divided(self) -> bool:
        """Whether the devices of `tensor` use different parts."""
        return any(dim and USED[dim] == HEAD_AXES for dim in self.dims)


def scale_of(hidden: int) -> Parameter:
    """The scale of a norm of hidden states."""
    return Parameter((hidden,), ("hidden",), equal=1.0)


def bias_of(size: int, dim: str) -> Parameter:
    """The bias of a projection to so many elements."""
    return Parameter((size,), (dim,), equal=0.0, added=True)


class ParameterGather(NamedTuple):
    """How a device gathers a parameter, and returns its gradient: the number of elements that it uses, the dimension
    and the axes whose devices store shards, the axes whose devices update shards, and those over which shards of the
    gradient are summed."""

    elements: int
    dimension: int
    stored: tuple[str, ...]
    updated: tuple[str, ...]
    summed: tuple[str, ...]


def parameter_gather(parameter: Parameter, plan: Plan) -> ParameterGather:
    """How the devices of a plan gather a parameter."""
    sharded = [at for at, dim in enumerate(parameter.dims) if dim and set(STORED[dim]) > set(USED[dim])]
    stored, updated = (wide_axes(plan, axes) if sharded else () for axes in (plan.parameter_axes, plan.optimizer_axes))
    summed = tuple(axis for axis in wide_axes(plan, (*BATCH_AXES, *SEQUENCE_AXES)) if axis not in updated)
    if parameter.partial or (schemes[plan.scheme].row_axes and not parameter.divided):
        summed += wide_axes(plan, HEAD_AXES)
    elements = math.prod(parameter.shape) // (plan.product(HEAD_AXES) if parameter.divided else 1)
    return ParameterGather(elements, next(iter(sharded), 0), stored, updated, summed)


def wide_axes(plan: Plan, axes: tuple[str, ...]) -> tuple[str, ...]:
    """The axes of several devices."""
    return tuple(axis for axis in axes if plan.size(axis) > 1)
