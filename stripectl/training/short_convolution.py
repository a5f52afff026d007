"""The short convolution of a layer with a recurrence: each element of queries, keys and values becomes a weighted sum
of its values in the last d_conv tokens, followed by SiLU (Gu and Dao 2023, arXiv:2312.00752, section 3.4).

The first rows of a run of tokens need a halo: rows at the end of the run before, one fewer than d_conv. One shift
brings the halo of queries, keys and values together; the gradient of the halo travels back.

Letters: B batch, N heads, T rows, H elements of a head, D tokens of the convolution; P and S copies of parameters, as
in `sharding`.
"""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp

from stripectl.core.layout import layouts
from stripectl.core.layout_switch import BASE
from stripectl.core.plan import SEQUENCE_AXES
from stripectl.execute.comm import JaxComm
from stripectl.training.sharding import ParameterSharding


def short_convolution(
    arrays_BNTH: Sequence[jax.Array], weights_PSNHD: Sequence[jax.Array], place: ParameterSharding
) -> Sequence[jax.Array]:
    """The arrays after their convolutions."""
    arrays = (place.spec(("batch", "tensor", "sequence", None)),) * len(arrays_BNTH)
    weights = (place.spec(("batch", "sequence", "tensor", None, None)),) * len(weights_PSNHD)
    own = partial(convolve_shards, JaxComm(place.plan))
    return jax.shard_map(own, mesh=place.mesh, in_specs=(arrays, weights), out_specs=arrays, check_vma=False)(
        tuple(arrays_BNTH), tuple(weights_PSNHD)
    )


def convolve_shards(comm: JaxComm, arrays_BNTH: Sequence[jax.Array], weights_11NHD: Sequence[jax.Array]) -> tuple:
    """One shard of each array after its convolution."""
    halo, runs = weights_11NHD[0].shape[-1] - 1, layouts[comm.plan.layout].pieces if comm.plan.shards > 1 else 1
    parts = [jnp.split(x, runs, axis=2) for x in arrays_BNTH]
    ends = [
        jnp.concatenate([x[run][:, :, -halo:].reshape(x[run].shape[0], -1) for x in parts], 1) for run in range(runs)
    ]
    found = []
    for run, before in enumerate(halos(comm, ends)):
        at = 0
        for x, weight in zip(parts, weights_11NHD, strict=True):
            batch, heads, _, size = x[run].shape
            own = before[:, at : at + heads * halo * size].reshape(batch, heads, halo, size)
            found.append(convolved(x[run], own, weight[0, 0]))
            at += heads * halo * size
    each = len(parts)
    return tuple(jnp.concatenate(found[i::each], 2) for i in range(each))


def halos(comm: JaxComm, ends: Sequence[jax.Array]) -> list[jax.Array]:
    """The ends of the runs of tokens before each run of this shard; zeros before the first token."""
    axis = next((axis for axis in SEQUENCE_AXES if comm.size(axis) > 1), None)
    if axis is None:
        return [jnp.zeros_like(ends[0])]
    layout = layouts[comm.plan.layout if len(ends) > 1 else BASE]
    return [halo(comm, axis, ends, layout.runs_before(run, comm.size(axis))) for run in range(len(ends))]


def halo(comm: JaxComm, axis: str, ends: Sequence[jax.Array], before: Sequence[tuple[int, int] | None]) -> jax.Array:
    """The end of the run `before` a run, which each device has or gets from a neighbour, all from the same side."""
    ((by, run),) = {(me - source[0], source[1]) for me, source in enumerate(before) if source and source[0] != me}
    found = comm.shift(ends[run], axis, "halo", by, lambda i: (i, run) in before and before.index((i, run)) != i)
    for me, source in enumerate(before):
        if source and source[0] == me:
            found = jnp.where(comm.index(axis) == me, ends[source[1]], found)
    return found


def convolved(x_BNTH: jax.Array, before: jax.Array, weight_NHD: jax.Array) -> jax.Array:
    """SiLU of the sums over the last tokens, in float32; `before` holds the rows before the first."""
    rows, tokens = x_BNTH.shape[2], weight_NHD.shape[-1]
    wide = jnp.concatenate([before, x_BNTH], 2).astype(jnp.float32)
    total = sum(wide[:, :, at : at + rows] * weight_NHD[:, None, :, at] for at in range(tokens))
    return jax.nn.silu(total).astype(x_BNTH.dtype)
