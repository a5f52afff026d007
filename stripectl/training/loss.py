"""The loss of a decoder over a mesh, with its gradients.

Both are computed inside one shard_map: outside, JAX would sum the gradients of all devices that have a copy of a
parameter. Optimizers work outside, on whole arrays with their shardings: inside, a norm of all gradients would be the
norm of a shard.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
from flax import nnx
from jax import lax
from jax.sharding import PartitionSpec

from stripectl.core.mesh import BATCH_AXES, SEQUENCE_AXES
from stripectl.core.parameters import wide_axes
from stripectl.execute.derivatives import with_backward
from stripectl.execute.parameters import sum_over
from stripectl.training.decoder import Decoder
from stripectl.training.sharding import StoredWeights


class Batch(NamedTuple):
    """A batch in the layout's order; `positions` are equal for all sequences."""

    tokens_BT: Any
    targets_BT: Any
    positions_T: Any


@dataclass(frozen=True)
class ShardedLoss:
    """The mean cross-entropy of a batch by a decoder, with the shardings of its parameters where they are stored and
    where the optimizer updates them."""

    decoder: Decoder
    stored: nnx.State
    updated: nnx.State

    @cached_property
    def batch_specs(self) -> Batch:
        """How a batch is sharded."""
        spec = self.decoder.place.spec
        rows = spec(("batch", "sequence"))
        return Batch(rows, rows, spec(("sequence",)))

    @cached_property
    def differentiable(self) -> Callable[[nnx.State, Batch], jax.Array]:
        """(parameters, batch) -> float32 (): the loss, in nats per token."""
        whole, updated = PartitionSpec(), specs_of(self.updated)

        def loss(parameters: nnx.State, batch: Batch) -> jax.Array:
            return self.on_mesh(self.on_device, whole, parameters, batch)

        def save(parameters: nnx.State, batch: Batch) -> tuple[jax.Array, nnx.State]:
            found, gradients = self.on_mesh(self.gradients_on_device, (whole, updated), parameters, batch)
            return found, jax.tree.unflatten(jax.tree.structure(parameters), jax.tree.leaves(gradients))

        def backward(gradients: nnx.State, cotangent: jax.Array) -> tuple[nnx.State, None]:
            return jax.tree.map(lambda each: each * cotangent, gradients), None

        return with_backward(loss, save, backward)

    def on_mesh(self, body: Callable[..., Any], out_specs: Any, parameters: nnx.State, batch: Batch) -> Any:
        """body(weights, batch, positions in other layouts) of one device, over the mesh."""
        place, orders = self.decoder.place, self.decoder.orders
        updated = arrays_of(lax.with_sharding_constraint(parameters, self.updated))
        given = StoredWeights(None if place.alike else arrays_of(parameters), updated)
        specs = StoredWeights(None if place.alike else specs_of(self.stored), specs_of(self.updated))
        in_specs = specs, self.batch_specs, dict.fromkeys(orders, self.batch_specs.positions_T)
        mapped = jax.shard_map(body, mesh=place.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
        return mapped(given, batch, orders)

    def on_device(self, weights: StoredWeights, batch: Batch, orders: dict[str, jax.Array]) -> jax.Array:
        """The loss, which every device has."""
        return self.summed(self.part_on_device(weights, batch, orders))

    def gradients_on_device(
        self, weights: StoredWeights, batch: Batch, orders: dict[str, jax.Array]
    ) -> tuple[jax.Array, Any]:
        """The loss, and the gradients of the parameters that this device updates."""

        def part(updated: Any) -> jax.Array:
            return self.part_on_device(weights._replace(updated=updated), batch, orders)

        found, gradients = jax.value_and_grad(part)(weights.updated)
        return self.summed(found), gradients

    def part_on_device(self, weights: StoredWeights, batch: Batch, orders: dict[str, jax.Array]) -> jax.Array:
        """The part of the loss that the targets of a device are."""
        workload = self.decoder.workload
        return self.decoder.loss(weights, *batch, orders) / (workload.batch * workload.seq_len)

    def summed(self, part: jax.Array) -> jax.Array:
        """The sum over the devices that have different targets."""
        return sum_over(part, wide_axes(self.decoder.plan, (*BATCH_AXES, *SEQUENCE_AXES)))


def specs_of(shardings: nnx.State) -> Any:
    """The specs of shardings, as nested dictionaries."""
    return jax.tree.map(lambda each: each.spec, arrays_of(shardings))


def arrays_of(state: Any) -> Any:
    """The values of a state's parameters, as nested dictionaries."""
    if isinstance(state, nnx.Variable):
        return state.get_value()
    return {name: arrays_of(each) for name, each in state.items()}
