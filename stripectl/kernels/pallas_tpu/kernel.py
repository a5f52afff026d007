"""stripectl's Pallas attention for TPUs: a pair of shards, forward and backward, with bands that may be traced.

Letters: B batch, N query heads, K key/value heads, T rows (queries), S columns (keys), H head_dim; L is B K, and G the
query heads per key/value head.

A kernel visits only the live tiles of a pair of shards (`lines`); nothing is fetched for a dead tile. A row reads its
accumulators from the state and writes them back in place (`accumulators`), so a ring needs no merge. The heads of a
group use the same keys and values in succession.

Exponentials have base 2: queries are multiplied by head_dim^-0.5 log2(e) beforehand and rounded once to their dtype, in
both passes. Sums of exponentials stay separate in the 128 lanes of a row and are added at its end.

The backward pass is one kernel with five matmuls per tile. It holds dQ in VMEM for all rows, or for as many as fit.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental.pallas import tpu as pltpu

from stripectl.core.kernel import LANES, FusedHop
from stripectl.core.layout import Bands, MaskBlock, Tile
from stripectl.core.scopes import hop_kernel
from stripectl.kernels.pallas_tpu.grid import TileGrid
from stripectl.kernels.pallas_tpu.lines import in_stripes, visit_stripes
from stripectl.kernels.pallas_tpu.padding import padding_of
from stripectl.kernels.pallas_tpu.tile_memory import DQ_BYTES, FLOAT32
from stripectl.kernels.pallas_tpu.tiles import backward_kernel, forward_kernel
from stripectl.kernels.xla.kernel import LOG2_E, Arrays

EMPTY = -1e30  # the maximum of no scores: finite, because -inf minus -inf is NaN
MIN_LOG_SUM_EXP = -1e38  # of a row, so that a dropped score is far below it too


def kernel_name(kernel: str, hop: FusedHop | None, stripes: MaskBlock) -> str:
    """A kernel's name, with its hop if it has one."""
    return hop_kernel(kernel, hop.axis, len(hop.arrays), stripes.low.shape[0]) if hop else kernel


def fold_heads(x: Array, kv_heads: int) -> Array:
    """(B, N, T, H) as (L, G, T, H), and (B, N, T) as (L, G, 1, T)."""
    batch, heads, rows = x.shape[:3]
    return x.reshape(batch * kv_heads, heads // kv_heads, *((rows, x.shape[3]) if x.ndim == 4 else (1, rows)))


def scaled_queries(q: Array) -> Array:
    return (q.astype(jnp.float32) * (q.shape[-1] ** -0.5 * LOG2_E)).astype(q.dtype)


def vmem(*shape: int) -> Any:
    return pltpu.VMEM(shape, jnp.float32)


def slots_of(*shapes: tuple[int, ...]) -> tuple[list, list]:
    """Scratch for the arrays that lines hold, and semaphores for their copies."""
    return [vmem(2, *shape) for shape in shapes], [pltpu.SemaphoreType.DMA((2,))] * 2


def keep_float32(x: Array) -> Array:
    """The same float32. libtpu 0.0.42.1 makes a kernel's result bfloat16 where all its readers are bfloat16, and then
    fails, because the kernel writes the result in place of an argument that stays float32."""
    return lax.bitcast_convert_type(lax.optimization_barrier(lax.bitcast_convert_type(x, jnp.int32)), jnp.float32)


def received(hop: FusedHop | None) -> list:
    """Buffers for the arrays that a hop brings, (L, S, H)."""
    return [lax.empty((x.shape[0] * x.shape[1], *x.shape[2:]), x.dtype) for x in hop.arrays] if hop else []


def shaped(found: Sequence[Array], likes: Sequence[Array]) -> tuple:
    return tuple(x.reshape(like.shape) for x, like in zip(found, likes, strict=True))


def forward(
    q_BNTH: Array,
    k_BKSH: Array,
    v_BKSH: Array,
    state: Arrays,
    bands: Bands,
    tile: Tile,
    hop: FusedHop | None = None,
    soft_cap: float | None = None,
) -> tuple:
    """The state; with a hop (state, the arrays that arrived)."""
    kernel = partial(forward_kernel, soft_cap=soft_cap)
    return visit(kernel, "stripectl_forward", q_BNTH, k_BKSH, v_BKSH, state, bands, tile, hop)


def visit(
    kernel: Callable,
    name: str,
    q_BNTH: Array,
    k_BKSH: Array,
    v_BKSH: Array,
    state: Arrays,
    bands: Bands,
    tile: Tile,
    hop: FusedHop | None = None,
) -> tuple:
    """As `forward`, by a kernel for a row of tiles."""
    heads, stripes = k_BKSH.shape[1], in_stripes(bands, tile)
    queries, keys, hop = padding_of(bands, stripes, tile, hop)
    q, *carried = (fold_heads(queries.pad(x), heads) for x in (scaled_queries(q_BNTH), *state))
    k, v = (keys.pad(x).reshape(-1, keys.end, x.shape[3]) for x in (k_BKSH, v_BKSH))
    group, rows = q.shape[1], tile.block_q
    slots, copied = slots_of((group, rows, v.shape[2]), *[(group, 1, rows)] * 2)
    scratch = [*slots, *[vmem(group, rows, LANES)] * 2, *copied]

    def run(stripe: MaskBlock, carried: Arrays) -> Arrays:
        lines, called = TileGrid(stripe, tile, by_columns=False), kernel_name(name, hop, stripes)
        return lines.run(kernel, called, "queries keys keys", scratch, (q, k, v), carried, hop)

    after = visit_stripes(stripes, run, (*carried, *received(hop)))
    found = queries.unfolded(after[: len(state)], state)
    return (found, shaped(after[len(state) :], hop.arrays)) if hop else found


def backward(
    q_BNTH: Array,
    k_BKSH: Array,
    v_BKSH: Array,
    dout_BNTH: Array,
    lse_BNT: Array,
    delta_BNT: Array,
    dq_BNTH: Array,
    bands: Bands,
    tile: Tile,
    hop: FusedHop | None = None,
    soft_cap: float | None = None,
) -> tuple:
    """(dq, dk, dv); with a hop ((dq, dk, dv), the arrays that arrived)."""
    heads, dtype = k_BKSH.shape[1], q_BNTH.dtype
    lse = jnp.maximum(lse_BNT * LOG2_E, MIN_LOG_SUM_EXP)
    group, width = q_BNTH.shape[1] // heads, q_BNTH.shape[3]
    stripes = in_stripes(bands, tile, most=DQ_BYTES // (group * max(width, LANES) * FLOAT32))
    queries, keys, hop = padding_of(bands, stripes, tile, hop)
    of_queries = scaled_queries(q_BNTH), dout_BNTH.astype(dtype), lse, delta_BNT, dq_BNTH
    q, dout, lse, delta, dq = (fold_heads(queries.pad(x), heads) for x in of_queries)
    k, v = (keys.pad(x).reshape(-1, keys.end, x.shape[3]) for x in (k_BKSH, v_BKSH))
    slots, copied = slots_of((tile.block_kv, width), (tile.block_kv, v.shape[2]))
    scratch = [*slots, vmem(group, stripes.low.shape[1] * stripes.rows, width), pltpu.SemaphoreType.DMA, *copied]
    kernel = partial(backward_kernel, scale=width**-0.5, soft_cap=soft_cap)

    def run(stripe: MaskBlock, grads: Arrays) -> Arrays:
        lines, kinds = TileGrid(stripe, tile, by_columns=True), "queries keys keys queries numbers numbers"
        name = kernel_name("stripectl_backward", hop, stripes)
        return lines.run(kernel, name, kinds, scratch, (q, k, v, dout, lse, delta), grads, hop)

    zeros = (jnp.zeros_like(x, jnp.float32) for x in (k, v))
    grads = visit_stripes(stripes, run, (dq, *zeros, *received(hop)))
    dq, *dkv = map(keep_float32, grads[:3])
    found = *queries.unfolded([dq], [q_BNTH]), *keys.unfolded(dkv, (k_BKSH, v_BKSH))
    return (found, shaped(grads[3:], hop.arrays)) if hop else found
