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
from jax import lax

from stripectl.core.layout import layouts
from stripectl.core.layout_switch import BASE
from stripectl.core.mesh import SEQUENCE_AXES
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


def sums_of_tokens(wide_BNTH: jax.Array, weight_NHD: jax.Array, rows: int) -> jax.Array:
    """The weighted sums of each row and the rows before it."""
    first, *others = (
        wide_BNTH[:, :, at : at + rows] * weight_NHD[:, None, :, at] for at in range(weight_NHD.shape[-1])
    )
    return sum(others, first)


@jax.custom_vjp
def convolved(x_BNTH: jax.Array, before: jax.Array, weight_NHD: jax.Array) -> jax.Array:
    """SiLU of the sums over the last tokens, in float32; `before` holds the rows before the first."""
    wide = jnp.concatenate([before, x_BNTH], 2).astype(jnp.float32)
    return jax.nn.silu(sums_of_tokens(wide, weight_NHD, x_BNTH.shape[2])).astype(x_BNTH.dtype)


def convolved_forward(x_BNTH: jax.Array, before: jax.Array, weight_NHD: jax.Array) -> tuple:
    return convolved(x_BNTH, before, weight_NHD), (x_BNTH, before, weight_NHD)


def convolved_backward(saved: tuple, dout_BNTH: jax.Array) -> tuple:
    """The gradient of a row is a sum over the next tokens. JAX's transpose would hold a float32 array per token, and
    without the barrier the compiler would keep the float32 arrays of the forward pass."""
    (x_BNTH, before, weight_NHD), dout_BNTH = lax.optimization_barrier((saved, dout_BNTH))
    rows, halo = x_BNTH.shape[2], before.shape[2]
    wide = jnp.concatenate([before, x_BNTH], 2).astype(jnp.float32)
    _, through_silu = jax.vjp(jax.nn.silu, sums_of_tokens(wide, weight_NHD, rows))
    (dtotal,) = through_silu(dout_BNTH.astype(jnp.float32))
    padded = jnp.pad(dtotal, ((0, 0), (0, 0), (halo, halo), (0, 0)))
    dwide = sums_of_tokens(padded, weight_NHD[:, :, ::-1], rows + halo)
    dweight = [jnp.sum(wide[:, :, at : at + rows] * dtotal, (0, 2)) for at in range(halo + 1)]
    return dwide[:, :, halo:].astype(x_BNTH.dtype), dwide[:, :, :halo].astype(before.dtype), jnp.stack(dweight, -1)


convolved.defvjp(convolved_forward, convolved_backward)
