"""The short convolution of a layer with a recurrence: each element of queries, keys and values becomes a weighted sum
of its values in the last d_conv tokens, followed by SiLU (Gu and Dao 2023, arXiv:2312.00752, section 3.4).

The first rows of a shard need a halo: rows at the end of the shard before, one fewer than d_conv. One shift brings the halo of
queries, keys and values together; the gradient of the halo travels back.

Letters: B batch, N heads, T rows, H elements of a head, D tokens of the convolution; P and S copies of parameters, as
in `sharding`.
"""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp

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
    halo = weights_11NHD[0].shape[-1] - 1
    ends = [x[:, :, -halo:] for x in arrays_BNTH]
    packed = jnp.concatenate([x.reshape(x.shape[0], -1) for x in ends], 1)
    axis = next((axis for axis in SEQUENCE_AXES if comm.size(axis) > 1), None)
    if axis:
        last = comm.size(axis) - 1
        packed = comm.shift(packed, axis, "halo", senders=lambda i: i < last)
    else:
        packed = jnp.zeros_like(packed)
    sizes = [x[0].size for x in ends]
    parts = jnp.split(packed, [sum(sizes[:at]) for at in range(1, len(sizes))], 1)
    return tuple(
        convolved(x, part.reshape(end.shape), weight[0, 0])
        for x, part, end, weight in zip(arrays_BNTH, parts, ends, weights_11NHD, strict=True)
    )


def convolved(x_BNTH: jax.Array, before: jax.Array, weight_NHD: jax.Array) -> jax.Array:
    """SiLU of the sums over the last tokens, in float32; `before` holds the rows before the first."""
    rows, tokens = x_BNTH.shape[2], weight_NHD.shape[-1]
    wide = jnp.concatenate([before, x_BNTH], 2).astype(jnp.float32)
    total = sum(wide[:, :, at : at + rows] * weight_NHD[:, None, :, at] for at in range(tokens))
    return jax.nn.silu(total).astype(x_BNTH.dtype)
