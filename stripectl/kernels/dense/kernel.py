"""Scores of a pair of shards, and the weighted sum of values; JAX differentiates it.

Letters: B batch, K key/value heads, G query heads per key/value head, T rows (queries), S columns (keys), H head_dim.
"""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax

from stripectl.core.layout import Bands, MaskBlock, Tile
from stripectl.core.mask_tiles import column_tiles, is_live, row_tiles

EMPTY = -1e30  # a dropped score: finite, because -inf minus -inf is NaN


def mask(bands: Bands, rows: int, cols: int) -> Array:
    """bool (T, S), or (B, T, S) where each row has its own limits: the scores that the mask keeps."""
    keep = jnp.zeros((rows, cols), bool)
    for band in bands:
        query, key = (lax.broadcasted_iota(jnp.int32, (band.rows, band.cols), axis) for axis in (0, 1))
        live = is_live(band, query, key, band.limits and [limit[..., None] for limit in band.limits])
        keep = jnp.broadcast_to(keep, (*live.shape[:-2], rows, cols))
        keep = keep.at[..., band.row : band.row + band.rows, band.col : band.col + band.cols].set(live)
    return keep


def alive(bands: Bands) -> Array:
    """Whether the bands can keep a score of any sequence, that is, whether each is a live tile."""

    def live(band: MaskBlock) -> Array:
        tile = Tile(band.rows, band.cols)
        band = band._replace(low=jnp.asarray(band.low), high=jnp.asarray(band.high))
        first, last = row_tiles(band, tile)
        ends = band.limits and [limit[..., at] for limit in band.limits for at in (0, -1)]
        a, _, _, d = column_tiles(band, tile, 0, ends)
        return jnp.any((first < last) & (a < d))

    return jnp.any(jnp.stack([live(band) for band in bands]))


def group_heads(q_BNTH: Array, heads: int) -> Array:
    batch, n, *rest = q_BNTH.shape
    return q_BNTH.reshape(batch, heads, n // heads, *rest)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def narrowed_product(spec: str, wide: Array, narrow: Array) -> Array:
    """float32 einsum of two arrays, the first rounded to the dtype of the second. The gradient of the first is not
    rounded, because softmax subtracts a sum of nearly the same size from it."""
    return jnp.einsum(spec, wide.astype(narrow.dtype), narrow, preferred_element_type=jnp.float32)


def _narrowed_product_forward(spec: str, wide: Array, narrow: Array) -> tuple[Array, tuple[Array, Array]]:
    return narrowed_product(spec, wide, narrow), (wide, narrow)


def _narrowed_product_backward(spec: str, operands: tuple[Array, Array], given: Array) -> tuple[Array, Array]:
    wide, narrow = operands
    first, second, out = spec.replace("->", ",").split(",")
    to_wide = jnp.einsum(f"{out},{second}->{first}", given, narrow, preferred_element_type=jnp.float32)
    to_narrow = jnp.einsum(
        f"{out},{first}->{second}", given, wide.astype(narrow.dtype), preferred_element_type=jnp.float32
    )
    return to_wide.astype(wide.dtype), to_narrow.astype(narrow.dtype)


narrowed_product.defvjp(_narrowed_product_forward, _narrowed_product_backward)


def scores(q_BNTH: Array, k_BKSH: Array, bands: Bands, soft_cap: float | None = None) -> Array:
    """float32 (B, K, G, T, S)."""
    rows, cols = q_BNTH.shape[2], k_BKSH.shape[2]
    q_BKGTH = group_heads(q_BNTH, k_BKSH.shape[1])

    def compute() -> Array:
        found = narrowed_product("bkgth,bksh->bkgts", q_BKGTH, k_BKSH) * q_BNTH.shape[3] ** -0.5
        found = found if soft_cap is None else soft_cap * jnp.tanh(found / soft_cap)
        keep = mask(bands, rows, cols)
        keep = keep[:, None, None] if keep.ndim == 3 else keep
        return jnp.where(keep, found, EMPTY)

    return lax.cond(
        alive(bands), compute, lambda: jnp.full_like(q_BKGTH, EMPTY, jnp.float32, (*q_BKGTH.shape[:4], cols))
    )


def weights(scores_BKGTS: Sequence[Array]) -> tuple[list[Array], Array, Array]:
    """(weights as a list of (B, K, G, T, S), maximum (B, N, T), sum (B, N, T)) from the scores of all blocks."""
    most = jnp.stack([block.max(-1) for block in scores_BKGTS]).max(0)
    most = lax.stop_gradient(jnp.maximum(most, EMPTY / 2))  # a row without keys has weight 0, not equal weights
    found = [jnp.exp(block - most[..., None]) for block in scores_BKGTS]
    total = sum(block.sum(-1) for block in found)
    batch, heads, group, rows = most.shape
    return found, most.reshape(batch, heads * group, rows), jnp.reshape(total, (batch, heads * group, rows))


def weigh(weights_BKGTS: Array, v_BKSH: Array, bands: Bands) -> Array:
    """float32 (B, N, T, H): the weighted sum of values, not divided by the sum of the weights."""
    batch, heads, group, rows, _ = weights_BKGTS.shape

    def compute() -> Array:
        return narrowed_product("bkgts,bksh->bkgth", weights_BKGTS, v_BKSH)

    shape = batch, heads, group, rows, v_BKSH.shape[3]
    out = lax.cond(alive(bands), compute, lambda: jnp.zeros_like(v_BKSH, jnp.float32, shape))
    return out.reshape(batch, heads * group, rows, shape[4])
