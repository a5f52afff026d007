"""The sharding of a training step's arrays on a plan's mesh, as constraints: the compiler adds the communication.

Tokens are sharded over the batch's and the sequence's axes; a layer's heads, feed-forward and vocabulary over `tensor`.
A parameter is *stored* in shards over `fsdp` and the sequence's axes as well (ZeRO-3, Rajbhandari et al. 2020); it is
gathered where a layer uses it, and its gradient is reduce-scattered. With ZeRO-1 only its optimizer state is stored so:
gradients are reduce-scattered, and updated parameters are gathered; with `zero=0` everything is stored as it is used.
Hidden states between a layer's matrices are sharded by rows over the axes that a scheme names (Megatron-SP: `tensor`).

Feed-forward and loss work *blockwise* (Liu and Abbeel 2023), on a chunk of the rows of every shard at a time, so that
chunks move no data. The intermediate results of only one chunk are in memory, in the backward pass too.

Letters: B batch, T positions in the layout's order. Inside a step both are split by their sharding: P parts of the
batch with G sequences each, and S shards of the sequence with R rows each, of which C form a chunk.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from stripectl.core.mesh import BATCH_AXES, HEAD_AXES, SEQUENCE_AXES, STORED_AXES
from stripectl.core.plan import Plan
from stripectl.core.scheme import schemes
from stripectl.execute.attend import recompute_in_backward
from stripectl.execute.attention import ATTENTION
from stripectl.execute.layout_switch import from_layout, to_layout

# A dimension's name -> the mesh axes that shard it where it is used, and where it is stored.
USED = {"batch": BATCH_AXES, "sequence": SEQUENCE_AXES, "tensor": HEAD_AXES, "features": HEAD_AXES, "hidden": ()}
STORED = USED | {"hidden": STORED_AXES, "features": (*HEAD_AXES, *STORED_AXES)}
Dims = tuple[str | None, ...]
# No policy keeps these: they repeat the input in another place or form, and would keep gathered parameters.
MOVES = ("sharding_constraint", "convert_element_type", "broadcast_in_dim", "reshape", "transpose")


def save_everything(primitive: Any, *_: Any, **__: Any) -> bool:
    """The policy that keeps everything that was computed."""
    return primitive.name not in MOVES


NAMED = jax.checkpoint_policies.save_only_these_names(ATTENTION)
POLICIES: dict[str, Callable[..., Any]] = {
    "full": jax.checkpoint_policies.nothing_saveable,
    "attention": NAMED,
    "dots": jax.checkpoint_policies.save_from_both_policies(jax.checkpoint_policies.dots_saveable, NAMED),
    "none": save_everything,
}


@dataclass(frozen=True)
class ParameterSharding:
    """A plan on its mesh, with the dtype in which layers compute."""

    plan: Plan
    mesh: Mesh
    dtype: str

    def spec(self, dims: Dims, axes: dict[str, tuple[str, ...]] = USED) -> PartitionSpec:
        """The mesh axes that shard dimensions, by their names."""
        known = axes | {"rows": schemes[self.plan.scheme].row_axes}
        used = ([axis for axis in known[dim] if self.plan.size(axis) > 1] if dim else [] for dim in dims)
        return PartitionSpec(*(tuple(each) or None for each in used))

    def stored(self, dims: Dims) -> NamedSharding:
        """The sharding of a parameter where it is stored."""
        return NamedSharding(self.mesh, self.spec(dims, STORED if self.plan.parameter_axes else USED))

    def updated(self, dims: Dims) -> NamedSharding:
        """The sharding of a parameter's optimizer state, and of the parameter and gradient during the update."""
        return NamedSharding(self.mesh, self.spec(dims, STORED if self.plan.optimizer_axes else USED))

    def laid(self, x: jax.Array, *dims: str | None) -> jax.Array:
        """x sharded over the axes of its dimensions; other dimensions are whole."""
        return lax.with_sharding_constraint(x, NamedSharding(self.mesh, self.spec(dims)))

    def copies(self, parameter: Any) -> jax.Array:
        """(P, S, ...) copies of a parameter (an nnx.Param with `dims`): a gathered copy for every device along batch
        and sequence, in the computing dtype, in which it is also sent. The copies' gradients are summed in float32: on
        each device first, also through a loop over chunks, then over all devices, once."""
        dims: Dims = parameter.dims
        whole: Any = gather_parameter(self, dims, parameter[...])
        shape = (self.plan.product(BATCH_AXES), self.plan.product(SEQUENCE_AXES), *whole.shape)
        return self.laid(jnp.broadcast_to(whole, shape), "batch", "sequence", *dims)

    def split(self, x: jax.Array, at: int = 1) -> jax.Array:
        """(P, G, ..., S, R, ...) of an array (B, ..., T, ...) whose positions are its dimension `at`."""
        parts, shards = self.plan.product(BATCH_AXES), self.plan.product(SEQUENCE_AXES)
        batch, *middle = x.shape[:at]
        return x.reshape(parts, batch // parts, *middle, shards, x.shape[at] // shards, *x.shape[at + 1 :])

    def join(self, x: jax.Array, at: int = 1) -> jax.Array:
        """The inverse of `split`."""
        parts, group, *middle = x.shape[: at + 1]
        shards, rows, *rest = x.shape[at + 1 :]
        return x.reshape(parts * group, *middle, shards * rows, *rest)

    def switch(self, layout: str) -> tuple[Callable, Callable]:
        """How hidden states (P, G, S, R, ...) move from the contiguous layout to another one, and back."""
        spec, shards = self.spec(("batch", None, "sequence", "rows")), self.plan.shards

        def mapped(move: Callable) -> Callable:
            own = partial(move, layout=layout, axis="ring", shards=shards, dim=3)
            return jax.shard_map(own, mesh=self.mesh, in_specs=spec, out_specs=spec, check_vma=False)

        return mapped(to_layout), mapped(from_layout)

    def remat(self, layer: Callable) -> Callable:
        """A layer that keeps the values of the plan's policy for its backward pass."""
        return jax.checkpoint(layer, policy=POLICIES[self.plan.remat])

    def blockwise(self, compute: Callable, copies: Sequence[jax.Array], *arrays_PGSR: jax.Array) -> jax.Array:
        """compute(copies of parameters, *blocks_PGSC...) -> block_PGSC..., for a chunk of every shard's rows at a time.

        Arrays and the result are (P, G, S, R, ...).
        """
        rows = arrays_PGSR[0].shape[3]
        chunk = self.plan.chunk_rows(rows)
        if chunk == rows:
            return compute(copies, *arrays_PGSR)

        def cut(x: jax.Array) -> jax.Array:
            x = x.reshape(*x.shape[:3], rows // chunk, chunk, *x.shape[4:])
            return jnp.moveaxis(self.laid(x, "batch", None, "sequence"), 3, 0)

        def block(copies: Sequence[jax.Array], blocks: Sequence[jax.Array]) -> jax.Array:
            return self.laid(compute(copies, *blocks), "batch", None, "sequence")

        again = recompute_in_backward(block)
        _, out = lax.scan(lambda _, blocks: (None, again(copies, blocks)), None, [cut(x) for x in arrays_PGSR])
        out = jnp.moveaxis(out, 0, 3)
        return out.reshape(*out.shape[:3], rows, *out.shape[5:])


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def gather_parameter(placement: ParameterSharding, dims: Dims, stored: jax.Array) -> jax.Array:
    """A stored parameter gathered where it is used; its gradient is scattered back."""
    narrow = lax.with_sharding_constraint(stored.astype(placement.dtype), placement.stored(dims))
    return placement.laid(narrow, *dims).astype(stored.dtype)


def _gather_forward(placement: ParameterSharding, dims: Dims, stored: jax.Array) -> tuple[jax.Array, None]:
    return gather_parameter(placement, dims, stored), None


def _gather_backward(placement: ParameterSharding, dims: Dims, _: None, gradient: jax.Array) -> tuple[jax.Array]:
    # The sum first, then the shards: in one step, the compiler might move activations to the shards.
    return (lax.with_sharding_constraint(placement.laid(gradient, *dims), placement.updated(dims)),)


gather_parameter.defvjp(_gather_forward, _gather_backward)


def shardings(lies: Callable[[Dims], NamedSharding], state: nnx.State, stacked: str) -> nnx.State:
    """The sharding of every parameter of a state; parameters below `stacked` have a leading dimension of layers."""

    def one(path: Any, variable: Any) -> Any:
        dims = variable.get_metadata("dims")
        return variable.replace(lies((None, *dims) if stacked in path else dims))

    return nnx.map_state(one, state)
