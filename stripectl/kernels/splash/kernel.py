"""JAX's splash attention (jax.experimental.pallas.ops.tpu) for a pair of shards, forward and backward.

Letters: B batch, N query heads, K key/value heads, T rows (queries), S columns (keys), H head_dim; M and L are B N and
B K: batch and heads are one dimension of the library's kernels, which share key/value heads in groups.

A rectangle is dead, whole (the library's kernel without a mask) or masked (`rectangles`). The library makes its masks
from static descriptions, but its kernels read arrays: which tiles run, which tile to fetch next, and each query's
position. These arrays are arithmetic on the band, so one compiled masked kernel serves any traced diagonal. It applies
the mask in every tile that it computes, whole tiles included: the kernels have no branch without a mask. Rows that the
tile does not divide are padded with zeros; then every rectangle is masked, and queries see no padded keys.

The library returns attention and gradients in the dtype of its arguments and the log-sum-exp in float32; the results of
rectangles are merged and summed in float32. Queries are scaled beforehand, because the library does not scale: a power
of two (head_dim 64 or 256) loses nothing; otherwise each scaled element is rounded once to the queries' dtype, as the
queries themselves were. Both passes read the same rounded queries, so recomputed probabilities agree with the
log-sum-exp.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

import stripectl.compat as compat
from stripectl.core.layout import Bands, MaskBlock, Tile
from stripectl.core.mask_tiles import clip
from stripectl.kernels.splash import rectangles
from stripectl.kernels.splash.rectangles import Passes, fold, unfold
from stripectl.kernels.splash.tile_memory import COMPUTE, COMPUTE_WHOLE, compute_size
from stripectl.kernels.xla.kernel import Arrays

EMPTY = rectangles.EMPTY

library, MaskInfo, backward_dq, backward_dkv = compat.splash()

WHOLE = MaskInfo(None, None, None, None, None)  # no mask: every tile runs, in order


def keep(query: Array, key: Array) -> Array:
    """The mask inside a tile, where a query's position is its row plus the band's `high`."""
    return query >= key


def mask_of(band: MaskBlock, tile: Tile, *, by_columns: bool) -> Any:
    """The library's arrays for keys j <= i + high: the tiles that run, and the next tile to fetch in the order of the
    grid, which follows rows of tiles, or, with `by_columns` (dK/dV), columns of tiles."""
    rows, columns = -(-band.rows // tile.block_q), -(-band.cols // tile.block_kv)
    i, j = jnp.arange(rows)[:, None], jnp.arange(columns)[None]
    run = j * tile.block_kv <= (i + 1) * tile.block_q - 1 + band.high
    first = clip((j * tile.block_kv - jnp.asarray(band.high)) // tile.block_q, 0, rows - 1)
    following = jnp.where(run, i, first) if by_columns else jnp.where(run, j, 0)
    small = jnp.int8 if max(rows, columns) <= 2**7 else jnp.int16 if max(rows, columns) <= 2**15 else jnp.int32
    positions = jnp.minimum(jnp.arange(rows * tile.block_q, dtype=jnp.int32) + band.high, band.cols - 1)
    return MaskInfo(following[None].astype(small), None, run[None].astype(jnp.int8), None, positions)


def settings(masked: bool, interpret: bool, soft_cap: float | None) -> dict[str, Any]:
    return {
        "is_mqa": False,
        "mask_value": library.DEFAULT_MASK_VALUE,
        "attn_logits_soft_cap": soft_cap,
        "mask_function": keep if masked else None,
        "interpret": interpret,
    }


def pad(x: Array, side: int) -> Array:
    """Rows, the second dimension, padded with zeros to a multiple of a side of a tile."""
    behind = -x.shape[1] % side
    return jnp.pad(x, [(0, 0), (0, behind), *[(0, 0)] * (x.ndim - 2)]) if behind else x


def pads_keys(bands: Bands, tile: Tile) -> bool:
    return bands[0].cols % tile.block_kv > 0


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
    info = mask_of(band, tile, by_columns=False) if masked else WHOLE
    at_once = compute_size(tile, COMPUTE if masked else COMPUTE_WHOLE)
    run = library.SplashAttentionKernel(
        info,
        None,
        None,
        block_sizes=library.BlockSizes(tile.block_q, tile.block_kv, at_once),
        save_residuals=True,
        residual_checkpoint_name=None,
        **settings(masked, interpret, soft_cap),
    )
    keys = (pad(x, tile.block_kv) for x in (k_LSH, v_LSH))
    out, (lse,) = run(pad(q_MTH, tile.block_q), *keys)
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
    q, lse, dout, delta = (pad(x, tile.block_q) for x in (q_MTH, lse_MT, dout_MTH, delta_MT))
    k, v = (pad(x, tile.block_kv) for x in (k_LSH, v_LSH))
    arrays = q, k, v, None, None, lse, dout, delta
    shared = settings(masked, interpret, soft_cap) | {"bq": tile.block_q, "bkv": tile.block_kv}
    shared |= dict.fromkeys(("q_layout", "k_layout", "v_layout"), library.QKVLayout.HEAD_DIM_MINOR)
    by_rows, by_columns = (mask_of(band, tile, by_columns=x) if masked else WHOLE for x in (False, True))
    dq = backward_dq(*arrays, mask_info=by_rows, **shared)
    _, dk, dv = backward_dkv(
        *arrays, mask_info=by_columns, bkv_compute=compute_size(tile, COMPUTE), use_fused_bwd_kernel=False, **shared
    )
    return dq[:, : band.rows], dk[:, : band.cols], dv[:, : band.cols]


def compiled_or_interpreted(
    compute: Callable, band: MaskBlock, tile: Tile, masked: bool, soft_cap: float | None
) -> Callable:
    """`compute` as a TPU runs it, or as Pallas interprets it on a CPU; the platform of the lowering decides."""

    def choose(*arrays: Array) -> Any:
        run = partial(compute, band, tile, masked, soft_cap=soft_cap)
        return lax.platform_dependent(*arrays, cpu=partial(run, True), default=partial(run, False))

    return choose


def scaled_queries(q_BNTH: Array) -> Array:
    """Folded queries times head_dim^-0.5, rounded once: a bfloat16 product would round the scale too."""
    return fold((q_BNTH.astype(jnp.float32) * q_BNTH.shape[3] ** -0.5).astype(q_BNTH.dtype))


def passes_of(attend: Callable, differentiate: Callable) -> Passes:
    """The passes of a kernel whose library computes a rectangle, as `attend` and `differentiate` do here."""

    def run_once(run: Callable, bands: Bands, tile: Tile, soft_cap: float | None, *arrays: Array) -> Arrays:
        (band,) = bands
        masked = pads_keys(bands, tile) or band.high < band.cols - 1
        return compiled_or_interpreted(run, band, tile, masked, soft_cap)(*arrays)

    def forward(
        q_BNTH: Array,
        k_BKSH: Array,
        v_BKSH: Array,
        state: Arrays,
        bands: Bands,
        tile: Tile,
        soft_cap: float | None = None,
    ) -> Arrays:
        def compute(band: MaskBlock, masked: bool, *arrays: Array) -> Arrays:
            return compiled_or_interpreted(attend, band, tile, masked, soft_cap)(*arrays)

        keys, padded = [fold(k_BKSH), fold(v_BKSH)], pads_keys(bands, tile)
        return rectangles.forward([scaled_queries(q_BNTH)], keys, state, bands, compute, padded)

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
        soft_cap: float | None = None,
    ) -> tuple[Array, Array, Array]:
        queries = scaled_queries(q_BNTH), *map(fold, (lse_BNT, dout_BNTH.astype(q_BNTH.dtype), delta_BNT))

        def compute(
            band: MaskBlock, masked: bool, q: Array, lse: Array, dout: Array, delta: Array, k: Array, v: Array
        ) -> tuple[Array, Array, Array]:
            run = compiled_or_interpreted(differentiate, band, tile, masked, soft_cap)
            dq, dk, dv = run(q, k, v, lse, dout, delta)
            return dq.astype(jnp.float32) * q_BNTH.shape[3] ** -0.5, dk, dv

        keys, padded = [fold(k_BKSH), fold(v_BKSH)], pads_keys(bands, tile)
        dq, dk, dv = rectangles.backward(queries, keys, dq_BNTH, bands, compute, padded)
        return dq, dk.reshape(k_BKSH.shape), dv.reshape(v_BKSH.shape)

    def forward_once(
        q_BNTH: Array, k_BKSH: Array, v_BKSH: Array, bands: Bands, tile: Tile, soft_cap: float | None = None
    ) -> tuple[Array, Array]:
        out, lse = run_once(attend, bands, tile, soft_cap, scaled_queries(q_BNTH), fold(k_BKSH), fold(v_BKSH))
        return unfold(out, q_BNTH), unfold(lse, q_BNTH)

    def backward_once(
        q_BNTH: Array,
        k_BKSH: Array,
        v_BKSH: Array,
        dout_BNTH: Array,
        lse_BNT: Array,
        delta_BNT: Array,
        out_BNTH: Array,
        bands: Bands,
        tile: Tile,
        soft_cap: float | None = None,
    ) -> tuple[Array, Array, Array]:
        rows = map(fold, (lse_BNT, dout_BNTH.astype(q_BNTH.dtype), delta_BNT))
        arrays = scaled_queries(q_BNTH), fold(k_BKSH), fold(v_BKSH), *rows
        dq, dk, dv = run_once(differentiate, bands, tile, soft_cap, *arrays)
        dq = (dq.astype(jnp.float32) * q_BNTH.shape[3] ** -0.5).astype(q_BNTH.dtype)
        return unfold(dq, q_BNTH), unfold(dk, k_BKSH), unfold(dv, v_BKSH)

    return Passes(forward, backward, forward_once, backward_once)


forward, backward, forward_once, backward_once = passes_of(attend, differentiate)
