"""The kernels of `pallas_tpu`, with a forward pass for bounded scores.

A score in base 2 is at most the product of the norms of its query, which is scaled, and its key (Cauchy-Schwarz); a
soft cap makes no score larger. With scores of at most MAX_SCORE = 48 a row's powers lie between 2^-48 and 2^48, and the
sum of 2^20 of them is below 2^68; float32 goes from 2^-126 to 2^128. A row whose state has a larger maximum, from a
call with larger scores, keeps it.
"""

from collections.abc import Callable
from functools import partial

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl

from stripectl.core.layout import Bands, Tile
from stripectl.kernels.pallas_bounded import FORWARD
from stripectl.kernels.pallas_tpu import kernel as unbounded
from stripectl.kernels.pallas_tpu import tiles
from stripectl.kernels.pallas_tpu.grid import Step
from stripectl.kernels.pallas_tpu.kernel import EMPTY, backward
from stripectl.kernels.pallas_tpu.tile_memory import keys_at_once
from stripectl.kernels.xla.kernel import Arrays

__all__ = ["EMPTY", "backward", "forward"]

MAX_SCORE = 48.0  # in base 2


def bounded_kernel(step: Step, *, soft_cap: float | None) -> None:
    """As `pallas_tpu.tiles.forward_kernel`, but the maximum of a row is at least 0 and does not change."""
    row, tile, (q, k, v) = tiles.ForwardRow.of(step), step.tile, step.blocks

    @pl.when(row.begins)
    def begin() -> None:
        row.arrive()
        before_TC = row.arrived_top()
        row.top[...] = jnp.maximum(before_TC, 0)
        decay_TC = jnp.exp2(before_TC - row.top[...])
        row.total[...] = row.arrived_total() * decay_TC
        row.out[...] *= tiles.broadcast_lanes(decay_TC, row.out.shape[1])

    def compute(mask: Callable, live: Callable) -> None:
        at_once = keys_at_once(tile)
        for at in range(0, tile.block_kv, at_once):
            keys, queries = slice(at, at + at_once), slice(live(at), None)
            s_TS, _ = tiles.cap_scores(tiles.dot(q[step.g, queries], k[keys], tiles.ABT), soft_cap)
            s_TS = mask(s_TS, (live(at), at))
            p_TS = jnp.exp2(s_TS - tiles.broadcast_lanes(row.top[queries], at_once))
            row.total[queries] = tiles.sum_lanes(p_TS, row.total[queries])
            row.out[queries] += tiles.dot(p_TS.astype(v.dtype), v[keys], tiles.AB)

    tiles.by_case(step, compute)
    row.end(q.shape[0])


def largest_norm(x: Array) -> Array:
    """(B, N): the largest norm of a row, in float32."""
    return jnp.sqrt(jnp.square(x.astype(jnp.float32)).sum(-1).max(-1))


def largest_score(q_BNTH: Array, k_BKSH: Array) -> Array:
    """A bound on the scores of all heads, in base 2."""
    q_BN, k_BK = largest_norm(unbounded.scaled_queries(q_BNTH)), largest_norm(k_BKSH)
    return (q_BN * jnp.repeat(k_BK, q_BN.shape[1] // k_BK.shape[1], axis=1)).max()


def forward(
    q_BNTH: Array,
    k_BKSH: Array,
    v_BKSH: Array,
    state: Arrays,
    bands: Bands,
    tile: Tile,
    soft_cap: float | None = None,
) -> Arrays:
    def bounded(state: Arrays) -> Arrays:
        kernel = partial(bounded_kernel, soft_cap=soft_cap)
        return unbounded.visit(kernel, FORWARD, q_BNTH, k_BKSH, v_BKSH, state, bands, tile)

    def others(state: Arrays) -> Arrays:
        return unbounded.forward(q_BNTH, k_BKSH, v_BKSH, state, bands, tile, soft_cap=soft_cap)

    return lax.cond(largest_score(q_BNTH, k_BKSH) <= MAX_SCORE, bounded, others, tuple(state))
