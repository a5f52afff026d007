"""tokamax's splash attention for a pair of shards, forward and backward.

Letters: B batch, N query heads, K key/value heads, T rows (queries), S columns (keys), H head_dim; M and L are B N and
B K: batch and heads are one dimension of the library's kernels, which share key/value heads in groups.

A rectangle is dead, whole or masked (`splash.rectangles`). The library makes its masks from static descriptions, but
its kernels read arrays: the live tiles of a grid, whether each is masked, and each query's position. Here these arrays
are arithmetic on the band, so one compiled kernel serves any traced diagonal. A line without a live tile gets one tile
that is not computed, so that its results are written. Where the diagonal of every pair of shards runs through the
corners of square tiles (`MaskBlock.aligned`), the library leaves out the dead parts of tiles on it, forward; its own
search does so forward alone.

The library works in base 2. It returns attention and gradients in the dtype of its arguments and the log-sum-exp in
float32; the results of rectangles are merged and summed in float32.
"""

import math
from typing import Any

import jax.numpy as jnp
from jax import Array

import stripectl.compat as compat
from stripectl.core.layout import MaskBlock, Tile
from stripectl.kernels.splash import rectangles
from stripectl.kernels.splash.kernel import keep, pad, passes_of
from stripectl.kernels.tokamax.tile_memory import DQ_SUMS, lists_live_tiles

EMPTY = rectangles.EMPTY
LN_2 = math.log(2)
MASK_VALUE = -2.4e38  # a score that the mask drops
DEAD, MASKED, WHOLE = 0, 1, 2  # the library's kinds of tiles
SKIP_GRID = 4  # parts per side of a tile on the diagonal, of which 6 of 16 are dead
MIN_SQUARE = 1024  # of a large square: by bundles, smaller tiles lose more by the size of parts than they gain

library, MaskInfo, attend_forward, attend_backward = compat.tokamax()
NO_MASK = MaskInfo(*[None] * len(MaskInfo._fields))


def kinds_of_tiles(band: MaskBlock, tile: Tile) -> Any:
    """The kind of each tile, (rows of tiles, columns of tiles), for keys j <= i + high that are not padded."""
    rows, columns = -(-band.rows // tile.block_q), -(-band.cols // tile.block_kv)
    i, j = jnp.arange(rows)[:, None], jnp.arange(columns)[None]
    first, last = i * tile.block_q + band.high, (i + 1) * tile.block_q - 1 + band.high
    live = j * tile.block_kv <= last
    whole = ((j + 1) * tile.block_kv - 1 <= first) & ((j + 1) * tile.block_kv <= band.cols)
    return jnp.where(live, jnp.where(whole, WHOLE, MASKED), DEAD)


def listed_tiles(band: MaskBlock, tile: Tile, *, by_columns: bool) -> Any:
    """The library's arrays for keys j <= i + high that are not padded: the live tiles in the order of the grid, which
    follows rows of tiles, or, with `by_columns` (dK/dV), columns of tiles."""
    kinds = kinds_of_tiles(band, tile)
    i, j = (jnp.arange(size) for size in kinds.shape)
    listed = (kinds != DEAD) | ((i == len(i) - 1)[:, None] if by_columns else j == 0)
    if by_columns:
        kinds, listed = kinds.T, listed.T
    lines, along = jnp.nonzero(listed, size=listed.size, fill_value=-1)
    return NO_MASK._replace(
        active_rows=lines.astype(jnp.int32),
        active_cols=along.astype(jnp.int32),
        block_mask=kinds[lines, along].astype(jnp.int32),
        num_active_blocks=jnp.sum(listed, dtype=jnp.int32)[None],
        q_sequence=last_keys(band, tile),
    )


def all_tiles(band: MaskBlock, tile: Tile) -> Any:
    """The library's arrays for the same keys and a grid of all tiles, by columns of tiles."""
    kinds = kinds_of_tiles(band, tile).T.reshape(-1).astype(jnp.int32)
    return NO_MASK._replace(block_mask=kinds, q_sequence=last_keys(band, tile))


def last_keys(band: MaskBlock, tile: Tile) -> Any:
    """The last key of each query, padded queries included."""
    rows = -(-band.rows // tile.block_q) * tile.block_q
    return jnp.minimum(jnp.arange(rows, dtype=jnp.int32) + band.high, band.cols - 1)


def is_large_square(tile: Tile) -> bool:
    """Whether a tile is a large square whose keys are computed at once. The winners of the library's sweep have such
    tiles without its scheduler and without the dead parts of tiles on the diagonal."""
    return MIN_SQUARE <= tile.block_q == tile.block_kv == (tile.block_kv_compute or tile.block_kv)


def skips_dead_parts(band: MaskBlock, tile: Tile) -> bool:
    """Whether masked tiles are large squares on the diagonal of a rectangle. The library then multiplies only their
    parts that hold a live score."""
    return is_large_square(tile) and band.aligned % tile.block_q == 0


def config_of(tile: Tile, interpret: bool, **own: Any) -> Any:
    sides = tile.block_q, tile.block_kv, tile.block_kv_compute or tile.block_kv
    names = ("block_q", "block_kv", "block_kv_compute"), ("block_q_dkv", "block_kv_dkv", "block_kv_dkv_compute")
    blocks = {name: side for of_pass in names for name, side in zip(of_pass, sides, strict=True)}
    return library.SplashConfig(**blocks, k_layout=library.QKVLayout.SEQ_MINOR, interpret=interpret, **own)


def settings(tile: Tile, masked: bool, interpret: bool, **own: Any) -> dict[str, object]:
    """Arguments that both passes share; `own` are options of the library's configuration."""
    function, config = keep if masked else None, config_of(tile, interpret, **own)
    return {"mask_value": MASK_VALUE, "is_mqa": False, "config": config, "mask_function": function}


def attend(
    band: MaskBlock,
    tile: Tile,
    masked: bool,
    interpret: bool,
    q_MTH: Array,
    k_LSH: Array,
    v_LSH: Array,
    *,
    soft_cap: float | None,
) -> tuple[Array, Array]:
    """(out_MTH, log-sum-exp_MT) of a rectangle."""
    info = listed_tiles(band, tile, by_columns=False) if masked else NO_MASK
    q, k, v = pad(q_MTH, tile.block_q), pad(k_LSH, tile.block_kv), pad(v_LSH, tile.block_kv)
    skip = masked and skips_dead_parts(band, tile)
    parts = {"qk_diag_skip": skip, "sv_diag_skip": skip, "qk_diag_grid": SKIP_GRID, "attn_logits_soft_cap": soft_cap}
    shared = settings(tile, masked, interpret, use_experimental_scheduler=not is_large_square(tile), **parts)
    out, found = attend_forward(info, q, k, v, None, None, save_residuals=True, fwd_mask_sparsity=1.0, **shared)
    lse = found["logsumexp"] * LN_2
    if masked:
        lse = jnp.where(info.q_sequence >= 0, lse, rectangles.NOTHING)
    return out[:, : band.rows], lse[:, : band.rows]


def differentiate(
    band: MaskBlock,
    tile: Tile,
    masked: bool,
    interpret: bool,
    q_MTH: Array,
    k_LSH: Array,
    v_LSH: Array,
    lse_MT: Array,
    dout_MTH: Array,
    delta_MT: Array,
    *,
    soft_cap: float | None,
) -> tuple[Array, Array, Array]:
    """(dq_MTH, dk_LSH, dv_LSH) of a rectangle; dq is the gradient of the scaled queries."""
    lists, info = lists_live_tiles(band.cols, tile), NO_MASK
    if masked:
        info = listed_tiles(band, tile, by_columns=True) if lists else all_tiles(band, tile)
    q, lse, dout, delta = (pad(x, tile.block_q) for x in (q_MTH, lse_MT / LN_2, dout_MTH, delta_MT))
    k, v = (pad(x, tile.block_kv) for x in (k_LSH, v_LSH))
    sides = {"bq": tile.block_q, "bkv": tile.block_kv, "bkv_compute": tile.block_kv_compute or tile.block_kv}
    own = {"use_experimental_scheduler": True, "dq_reduction_steps": DQ_SUMS if lists else None}
    own["attn_logits_soft_cap"] = soft_cap
    shared = settings(tile, masked, interpret, **own) | sides
    dq, dk, dv = attend_backward(q, k, v, None, lse, dout, delta, mask_info=info, dkv_mask_sparsity=1.0, **shared)
    return dq[:, : band.rows], dk[:, : band.cols], dv[:, : band.cols]


forward, backward, forward_once, backward_once = passes_of(attend, differentiate)
