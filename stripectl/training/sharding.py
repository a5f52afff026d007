"""The sharding of a training step's arrays on a plan's mesh (`core.parameters`), in JAX."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
from flax import nnx
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from stripectl.core.kept import Kept
from stripectl.core.parameters import (
    STORED,
    USED,
    Dims,
    Parameter,
    parameter_gather,
    wide_axes,
)
from stripectl.core.plan import Plan
from stripectl.execute.parameters import gathered_again, gathered_parameter

# No policy keeps these: they repeat the input in another place or form, and would keep gathered parameters.
MOVES = ("convert_element_type", "broadcast_in_dim", "reshape", "transpose")
HOST = "pinned_host"  # JAX's name of the host's memory
SCHEMES_RANK = 4  # of the arrays that schemes gather; parameters and hidden states have fewer dimensions


def save_everything(primitive: Any, x: Any = None, *_: Any, **__: Any) -> bool:
    """The policy that keeps everything that was computed."""
    return primitive.name not in MOVES and (primitive.name != "all_gather" or x.ndim >= SCHEMES_RANK)


def save_sums(primitive: Any, *_: Any, **__: Any) -> bool:
    """The policy that keeps sums over devices of the results of matrices."""
    return primitive.name in ("psum", "psum_invariant", "reduce_scatter")


POLICIES: dict[str, Callable[..., Any]] = {
    "dots": jax.checkpoint_policies.save_from_both_policies(
        jax.checkpoint_policies.save_from_both_policies(jax.checkpoint_policies.dots_saveable, save_sums),
        jax.checkpoint_policies.save_only_these_names(Kept.CONTEXT),
    ),
    "none": save_everything,
}


def policy_of(plan: Plan) -> Callable[..., Any]:
    """The policy of a plan: named values lie where the plan says, and its word for `remat` decides on all others."""
    offloaded = plan.kept_by_name & plan.offloaded
    named = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=sorted(plan.kept_by_name - offloaded),
        names_which_can_be_offloaded=sorted(offloaded),
        offload_src="device",
        offload_dst=HOST,
    )
    others = POLICIES.get(plan.remat)

    def policy(primitive: Any, *args: Any, **params: Any) -> Any:
        by_name = primitive.name == "name" and params["name"] in plan.kept_by_name
        return others(primitive, *args, **params) if others and not by_name else named(primitive, *args, **params)

    return policy


class StoredWeights(NamedTuple):
    """The parameters of a layer or of all layers, by name, on one device: the part that it stores, and the part of
    which it has the optimizer's state and gets the gradient. `stored` is None where both are the same part."""

    stored: Any
    updated: Any


@dataclass(frozen=True)
class ParameterSharding:
    """A plan on its mesh, with the dtype in which layers compute."""

    plan: Plan
    mesh: Mesh
    dtype: str

    def spec(self, dims: Dims, axes: Mapping[str, tuple[str, ...]] = USED) -> PartitionSpec:
        """The mesh axes that shard dimensions, by their names."""
        return PartitionSpec(*((wide_axes(self.plan, axes[dim]) if dim else ()) or None for dim in dims))

    def stored(self, dims: Dims) -> NamedSharding:
        """The sharding of a parameter where it is stored."""
        return NamedSharding(self.mesh, self.spec(dims, STORED if self.plan.parameter_axes else USED))

    def updated(self, dims: Dims) -> NamedSharding:
        """The sharding of a parameter's optimizer state, and of the parameter and gradient during the update."""
        return NamedSharding(self.mesh, self.spec(dims, STORED if self.plan.optimizer_axes else USED))

    @cached_property
    def alike(self) -> bool:
        """Whether a device updates the part of a parameter that it stores."""
        return self.plan.parameter_axes == self.plan.optimizer_axes

    def gathered(
        self, table: Mapping[str, Parameter], weights: StoredWeights, used: Mapping[str, jax.Array] | None = None
    ) -> "GatheredWeights":
        """The whole parameters that a part of the model uses, by name; `used` are parameters of an earlier part."""
        return GatheredWeights(self, table, weights, used or {})

    def remat(self, layer: Callable) -> Callable:
        """A layer that keeps the values of the plan's policy for its backward pass."""
        return jax.checkpoint(layer, policy=policy_of(self.plan))


@dataclass(frozen=True)
class GatheredWeights(Mapping[str, jax.Array]):
    """Whole parameters, float32 with values of the dtype of the step. Each is gathered where the program reads it, so
    that its gradient is scattered as soon as the backward pass has computed it. Gradients are summed in float32: first
    on each device, also through a loop over chunks, then over all devices, once. A parameter that an earlier part of
    the model `used` is gathered again, so that no copy stays in memory between, and its gradient joins the gradient
    there, before their sum over devices."""

    place: ParameterSharding
    table: Mapping[str, Parameter]
    weights: StoredWeights
    used: Mapping[str, jax.Array]

    def __getitem__(self, name: str) -> jax.Array:
        own = self.weights.updated[name]
        stored = lax.stop_gradient(own) if self.weights.stored is None else self.weights.stored[name]
        how = parameter_gather(self.table[name], self.place.plan)
        if name in self.used:
            return gathered_again(how, self.place.dtype, stored, self.used[name])
        return gathered_parameter(how, self.place.dtype, stored, own)

    def __iter__(self) -> Iterator[str]:
        return iter(self.table)

    def __len__(self) -> int:
        return len(self.table)


def shardings(lies: Callable[[Dims], NamedSharding], state: nnx.State, stacked: str) -> nnx.State:
    """The sharding of every parameter of a state; parameters below `stacked` have a leading dimension of layers."""

    def one(path: Any, variable: Any) -> Any:
        dims = variable.get_metadata("dims")
        return variable.replace(lies((None, *dims) if stacked in path else dims))

    return nnx.map_state(one, state)
