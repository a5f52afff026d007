"""Attention of a pair of shards in tiles, forward and backward, with bands that may be traced.

Letters: B batch, N query heads, K key/value heads, T rows (queries), S columns (keys), H head_dim.

`layout` gives every loop its bounds, so a dead tile is never visited and an empty band costs nothing. A tile that
reaches past the last rows or columns moves back inside, and its mask drops the scores of the tile before it.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax

from stripectl.core import scopes
from stripectl.core.layout import Bands, Index, MaskBlock, Tile
from stripectl.core.mask_tiles import column_tiles, is_live, quotient, quotient_and_remainder, row_tiles
from stripectl.kernels.xla.power_of_two import power_of_two

Arrays = tuple[Array, ...]  # a state (out_BNTH, max_BNT, sum_BNT) or gradients, of a pair of shards or of a tile

EMPTY = -1e30  # the maximum of no scores: finite, because -inf minus -inf is NaN
LOG2_E = math.log2(math.e)
FIRST_CACHE = 2**15  # bytes; the core of every CPU has at least as much


def compiled_platform() -> str:
    """The platform that is compiled for, here or ahead of time: "cpu", "tpu" and so on."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return device.platform if device else jax.default_backend()


def transpose_keys(x_SH: Array) -> Array:
    """x_HS. A CPU transposes it before the matmul, inside which XLA would do so more slowly, and in pieces that stay in
    its first-level cache."""
    if compiled_platform() != "cpu":
        return x_SH.T
    rows = max(1, FIRST_CACHE // (x_SH.shape[1] * x_SH.dtype.itemsize))
    pieces = [x_SH[first : first + rows].T for first in range(0, x_SH.shape[0], rows)]
    return lax.optimization_barrier(jnp.concatenate(pieces, axis=1))


def matmul_scores(a: Array, b: Array, contract: tuple[int, int]) -> Array:
    """float32 a x b, contracted over one dimension of each."""
    return lax.dot_general(a, b, (((contract[0],), (contract[1],)), ((), ())), preferred_element_type=jnp.float32)


def exponentials(s_TS: Array, scale: float, max_T: Array) -> Array:
    """exp(scale * s - max)."""
    if compiled_platform() == "cpu":
        return power_of_two(s_TS * (scale * LOG2_E) - (max_T * LOG2_E)[:, None])
    return jnp.exp(s_TS * scale - max_T[:, None])


def forward_tile(
    q_TH: Array, k_SH: Array, v_SH: Array, carry: Arrays, keep: Callable | None, soft_cap: float | None
) -> Arrays:
    """One tile: the state (out_TH, max_T, sum_T) with these keys added. Scores without a cap are scaled where they are
    read, which saves a pass over them."""
    (out_TH, max_T, sum_T), scale = carry, q_TH.shape[1] ** -0.5
    s_TS = matmul_scores(q_TH, k_SH, (1, 1))
    if soft_cap is not None:
        s_TS, scale = soft_cap * jnp.tanh(s_TS * (scale / soft_cap)), 1.0
    if keep is not None:
        s_TS = jnp.where(keep(0), s_TS, EMPTY / scale)
    new_T = jnp.maximum(max_T, s_TS.max(1) * scale)
    p_TS = exponentials(s_TS, scale, jnp.maximum(new_T, EMPTY / 2))  # 0 for a dropped score, also in a row of them
    decay_T = jnp.exp(max_T - new_T)
    out_TH = out_TH * decay_T[:, None] + matmul_scores(p_TS.astype(v_SH.dtype), v_SH, (1, 0))
    return out_TH, new_T, sum_T * decay_T + p_TS.sum(1)


def backward_tile(
    q_TH: Array,
    k_SH: Array,
    v_SH: Array,
    dout_TH: Array,
    lse_T: Array,
    delta_T: Array,
    keep: Callable | None,
    soft_cap: float | None,
) -> Arrays:
    """One tile: (dq_HT, dk_SH, dv_SH), with scores recomputed from the log-sum-exp. Scores have keys as rows, and dq
    has heads as rows, so no matmul sums over the rows of its first factor, which takes a CPU twice as long."""
    scale = q_TH.shape[1] ** -0.5
    s_ST, slope = matmul_scores(k_SH, q_TH, (1, 1)) * scale, scale
    if soft_cap is not None:
        share_ST = jnp.tanh(s_ST / soft_cap)
        s_ST, slope = soft_cap * share_ST, (1 - share_ST**2) * scale
    p_ST = jnp.exp(s_ST - lse_T)
    if keep is not None:
        p_ST = jnp.where(keep(1), p_ST, 0)
    dp_ST = matmul_scores(v_SH, dout_TH, (1, 1))
    ds_ST = (p_ST * (dp_ST - delta_T) * slope).astype(q_TH.dtype)
    dq_HT, dk_SH = matmul_scores(transpose_keys(k_SH), ds_ST, (1, 0)), matmul_scores(ds_ST, q_TH, (1, 0))
    return dq_HT, dk_SH, matmul_scores(p_ST.astype(q_TH.dtype), dout_TH, (1, 0))


def in_memory(x: Array, at: tuple[Index, ...], size: int) -> tuple[Array, tuple[Index, ...], tuple[int, ...]]:
    """(x, start, sizes) for a slice of `size` rows of one head from (batch, head, row). Where memory is linear, a head
    is flat too, so that one copy takes the slice. A TPU's memory is tiled, so flattening would move everything; and an
    index into the flat array must be an int32."""
    heads, line = x.shape[0] * x.shape[1], math.prod(x.shape[2:])
    if compiled_platform() == "tpu" or line >= 2**31:
        return x, (*at, 0)[: x.ndim], (1, 1, size, *x.shape[3:])
    width = line // x.shape[2]
    return x.reshape(heads, line), (at[0] * x.shape[1] + at[1], at[2] * width), (1, size * width)


def start_options() -> dict[str, bool]:
    """Options of a slice. No start counts from the end here, and a program that allows it has three more operations for
    each start. Programs for TPUs allow it, because the compiler then needs fewer cycles per backward tile (512x512 on
    v5e: 7,772 in place of 12,534, libtpu 0.0.42.1)."""
    return {"allow_negative_indices": compiled_platform() == "tpu"}


def read_rows(x: Array, at: tuple[Index, ...], size: int) -> Array:
    """`size` rows of one head, from (batch, head, row)."""
    return lax.dynamic_slice(*in_memory(x, at, size), **start_options()).reshape(size, *x.shape[3:])


def write_rows(x: Array, at: tuple[Index, ...], rows: Array) -> Array:
    held, start, sizes = in_memory(x, at, rows.shape[0])
    return lax.dynamic_update_slice(held, rows.reshape(sizes), start, **start_options()).reshape(x.shape)


def accumulate(x: Array, at: tuple[Index, ...], rows: Array) -> Array:
    return write_rows(x, at, read_rows(x, at, rows.shape[0]) + rows)


def visit_tiles(bands: Bands, tile: Tile, heads: Sequence[int], visit_rows: Callable, state: Arrays) -> Arrays:
    """state = visit_rows(rectangle, tile, b, n, i, state) for every row of tiles i with a live score, for every head n
    of every sequence b, in every rectangle. Rectangles of a layout have one shape, so one compiled body serves all."""
    rows, cols = bands[0].rows, bands[0].cols
    tile = Tile(min(tile.block_q, rows), min(tile.block_kv, cols))
    table = jnp.stack([jnp.stack([jnp.asarray(x, jnp.int32) for x in (b.row, b.col, b.low, b.high)]) for b in bands])
    blocks = table, jax.tree.map(lambda *each: jnp.stack(each), *(b.limits for b in bands))

    def rectangle(r: Index, state: Arrays) -> Arrays:
        (row, col, low, high), own = jax.tree.map(partial(lax.dynamic_index_in_dim, index=r, keepdims=False), blocks)
        band = MaskBlock(row, col, rows, cols, low, high, own)
        first, last = row_tiles(band, tile)

        def head(index: Index, state: Arrays) -> Arrays:
            body = partial(visit_rows, band, tile, *quotient_and_remainder(index, heads[1]))
            with jax.named_scope(scopes.TILE_ROW):
                return lax.fori_loop(first, last, body, state)

        return lax.fori_loop(0, heads[0] * heads[1], head, state)

    return lax.fori_loop(0, len(bands), rectangle, state)


def visit_columns(band: MaskBlock, tile: Tile, b: Index, i: Index, compute: Callable, carry: Arrays) -> Arrays:
    """carry = compute(row, col, keep, carry) for the live tiles in a row of tiles of a sequence b. Boundary tiles get
    their mask keep(axis), with queries along `axis` and keys along the other axis; whole tiles get None. `row` and
    `col` are where the tile is read, inside the rectangle."""
    row, ragged_rows = i * tile.block_q, band.rows % tile.block_q
    start = jnp.minimum(row, band.rows - tile.block_q)
    limits_T = band.limits and [lax.dynamic_slice(x, (b, start), (1, tile.block_q))[0] for x in band.limits]
    ends = limits_T and [limit_T[at] for limit_T in limits_T for at in (row - start, -1)]
    a, b, c, d = column_tiles(band, tile, row, ends)
    if ragged_rows:
        c = jnp.where(row == start, c, b)

    def masked(j: Index, carry: Arrays) -> Arrays:
        col = jnp.minimum(j * tile.block_kv, band.cols - tile.block_kv)

        def keep(axis: int) -> Array:
            sides = tile.sides if axis == 0 else tile.sides[::-1]
            query = start + lax.broadcasted_iota(jnp.int32, sides, axis)
            key = col + lax.broadcasted_iota(jnp.int32, sides, 1 - axis)
            found = is_live(band, query, key, limits_T and [jnp.expand_dims(limit_T, 1 - axis) for limit_T in limits_T])
            if ragged_rows:
                found &= query >= row
            if band.cols % tile.block_kv:
                found &= key >= j * tile.block_kv
            return found

        return compute(start, col, keep, carry)

    def whole(j: Index, carry: Arrays) -> Arrays:
        return compute(start, j * tile.block_kv, None, carry)

    with jax.named_scope(scopes.BOUNDARY_TILE):
        carry = lax.fori_loop(a, b, masked, carry)
    with jax.named_scope(scopes.WHOLE_TILE):
        carry = lax.fori_loop(b, c, whole, carry)
    with jax.named_scope(scopes.BOUNDARY_TILE):
        return lax.fori_loop(c, d, masked, carry)


def forward(
    q_BNTH: Array,
    k_BKSH: Array,
    v_BKSH: Array,
    state: Arrays,
    bands: Bands,
    tile: Tile,
    soft_cap: float | None = None,
) -> Arrays:
    group = q_BNTH.shape[1] // k_BKSH.shape[1]

    def visit_rows(band: MaskBlock, tile: Tile, b: Index, n: Index, i: Index, state: Arrays) -> Arrays:
        at = (b, n, band.row + jnp.minimum(i * tile.block_q, band.rows - tile.block_q))
        q_TH = read_rows(q_BNTH, at, tile.block_q)

        def compute(row: Index, col: Index, keep: Callable | None, carry: Arrays) -> Arrays:
            keys = (b, quotient(n, group), band.col + col)
            k_SH, v_SH = read_rows(k_BKSH, keys, tile.block_kv), read_rows(v_BKSH, keys, tile.block_kv)
            return forward_tile(q_TH, k_SH, v_SH, carry, keep, soft_cap)

        carry = visit_columns(band, tile, b, i, compute, tuple(read_rows(x, at, tile.block_q) for x in state))
        return tuple(write_rows(x, at, rows) for x, rows in zip(state, carry, strict=True))

    return visit_tiles(bands, tile, q_BNTH.shape[:2], visit_rows, state)


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
) -> Arrays:
    group = q_BNTH.shape[1] // k_BKSH.shape[1]

    def visit_rows(band: MaskBlock, tile: Tile, b: Index, n: Index, i: Index, grads: Arrays) -> Arrays:
        at = (b, n, band.row + jnp.minimum(i * tile.block_q, band.rows - tile.block_q))
        q_TH, dout_TH, lse_T, delta_T = (
            read_rows(x, at, tile.block_q) for x in (q_BNTH, dout_BNTH, lse_BNT, delta_BNT)
        )

        def compute(row: Index, col: Index, keep: Callable | None, carry: Arrays) -> Arrays:
            dq_HT, dk, dv = carry
            keys = (b, quotient(n, group), band.col + col)
            k_SH, v_SH = read_rows(k_BKSH, keys, tile.block_kv), read_rows(v_BKSH, keys, tile.block_kv)
            own_HT, dk_SH, dv_SH = backward_tile(q_TH, k_SH, v_SH, dout_TH, lse_T, delta_T, keep, soft_cap)
            return dq_HT + own_HT, accumulate(dk, keys, dk_SH), accumulate(dv, keys, dv_SH)

        dq, dk, dv = grads
        dq_HT, dk, dv = visit_columns(band, tile, b, i, compute, (read_rows(dq, at, tile.block_q).T, dk, dv))
        return write_rows(dq, at, dq_HT.T), dk, dv

    zeros = (jnp.zeros_like(x, jnp.float32) for x in (k_BKSH, v_BKSH))
    return visit_tiles(bands, tile, q_BNTH.shape[:2], visit_rows, (dq_BNTH, *zeros))
