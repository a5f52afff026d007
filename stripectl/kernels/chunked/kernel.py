"""Linear attention between a pair of shards, and the states of their keys.

Letters: B batch, N query heads, K key/value heads, G query heads per key/value head, T rows (queries), S columns
    (keys), H head_dim (E for values). `rates_K` holds the logarithm of the decay per token, for every key/value head.

Gradients are linear attention too: dq is linear attention of (dout, v, k) in place of (q, k, v); dk and dv are linear
attention of (v, dout, q) and (k, q, dout) with all positions reversed.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from stripectl.core import scopes
from stripectl.core.layout import UNBOUNDED, WHOLE, Bands, Index, MaskBlock, Tile
from stripectl.core.mask_tiles import column_tiles, is_live, quotient_and_remainder, row_tiles
from stripectl.kernels.xla.kernel import Arrays, start_options

EMPTY = 0.0  # linear attention has no maximum of scores


def product(equation: str, *arrays: Array) -> Array:
    return jnp.einsum(equation, *arrays, preferred_element_type=jnp.float32)


def decay_of(rate: Array, tokens: Array) -> Array:
    """The decay over `tokens` tokens; 1 for keys that come after the query, which a mask drops."""
    return jnp.exp(rate * jnp.maximum(tokens, 0).astype(jnp.float32))


def chunk_tile(q_GTH: Array, k_SH: Array, v_SE: Array, weight_TS: Array) -> Array:
    """The output of queries for the keys of one tile, through scores that decay and mask weigh."""
    scores_GTS = product("gth,sh->gts", q_GTH, k_SH) * weight_TS
    return product("gts,se->gte", scores_GTS.astype(v_SE.dtype), v_SE)


def state_output(q_GTH: Array, state_HE: Array) -> Array:
    """The output of queries for the keys that a state sums up."""
    return product("gth,he->gte", q_GTH.astype(jnp.float32), state_HE)


def state_of_keys(k_SH: Array, v_SE: Array, weight_S: Array) -> Array:
    """The state of these keys: the sum of k v^T, weighed."""
    return product("sh,se->he", k_SH.astype(jnp.float32) * weight_S[:, None], v_SE.astype(jnp.float32))


def decay_to_end(rate: Array, rows: int) -> Array:
    """The decay from each of `rows` rows to the last of them."""
    return decay_of(rate, jnp.arange(rows)[::-1])


def advance_state(state: Array, own: Array, rate: Array, rows: int) -> Array:
    """The state after `rows` more rows, whose own state is `own`."""
    return state * decay_of(rate, jnp.int32(rows)) + own


def block(x: Array, at: tuple[Index, ...], size: tuple[int, int]) -> Array:
    """`size` heads and rows that begin at (batch, head, row)."""
    return lax.dynamic_slice(x, (*at, 0), (1, *size, x.shape[3]), **start_options())[0]


def attend(
    q_BNTH: Array,
    k_BKSH: Array,
    v_BKSE: Array,
    out_BNTE: Array,
    bands: Bands,
    tile: Tile,
    rates_K: Array,
    part: tuple[Index, int] = WHOLE,
) -> Array:
    """out plus the outputs of the pair, in float32; part=(i, n) adds only the i-th of n equal parts of the heads. All
    rectangles of a layout have the same shape, so one compiled body serves all rectangles and all heads."""
    (batch, heads), rows, cols = k_BKSH.shape[:2], bands[0].rows, bands[0].cols
    tile = Tile(min(tile.block_q, rows), min(tile.block_kv, cols))
    table = jnp.stack([jnp.stack([jnp.asarray(x, jnp.int32) for x in (b.row, b.col, b.high)]) for b in bands])

    def head(index: Index, out: Array) -> Array:
        head_of_batch, r = quotient_and_remainder(index, len(bands))
        b, n = quotient_and_remainder(head_of_batch, heads)
        row, col, high = lax.dynamic_index_in_dim(table, r, keepdims=False)
        band = MaskBlock(row, col, rows, cols, jnp.int32(-UNBOUNDED), high)
        rate = lax.dynamic_index_in_dim(rates_K, n, keepdims=False)
        visit = partial(visit_row, (q_BNTH, k_BKSH, v_BKSE), band, tile, b, n, rate)
        first, last = row_tiles(band, tile)
        none = jnp.zeros_like(v_BKSE, jnp.float32, (k_BKSH.shape[3], v_BKSE.shape[3]))
        with jax.named_scope(scopes.TILE_ROW):
            return lax.fori_loop(first, last, visit, (out, none, jnp.zeros_like(none, jnp.int32, ())))[0]

    begin, end = (jnp.int32(place * batch * heads // part[1]) * len(bands) for place in (part[0], part[0] + 1))
    return lax.fori_loop(begin, end, head, out_BNTE)


def visit_row(
    arrays: Arrays, band: MaskBlock, tile: Tile, b: Index, n: Index, rate: Array, i: Index, carry: Arrays
) -> Arrays:
    """(out, state, the number of key tiles in the state) after a row of tiles. Keys that all queries of the row attend
    to are read through the state, and the other keys through scores. A tile that would extend past the end is shifted
    back, and rows that the previous tile has computed are dropped."""
    (q_BNTH, k_BKSH, v_BKSE), (out, state, known) = arrays, carry
    group, row = q_BNTH.shape[1] // k_BKSH.shape[1], i * tile.block_q
    start = jnp.minimum(row, band.rows - tile.block_q)
    at, query = (b, n * group, band.row + start), start + jnp.arange(tile.block_q)
    _, _, c, d = column_tiles(band, tile, row)

    def keys(j: Index) -> tuple[Any, ...]:
        """(the first column of a key tile, its k, its v)."""
        col = jnp.minimum(j * tile.block_kv, band.cols - tile.block_kv)
        return col, *(block(x, (b, n, band.col + col), (1, tile.block_kv))[0] for x in (k_BKSH, v_BKSE))

    def absorb(j: Index, state: Array) -> Array:
        _, k_SH, v_SE = keys(j)
        return advance_state(state, state_of_keys(k_SH, v_SE, decay_to_end(rate, tile.block_kv)), rate, tile.block_kv)

    def multiply(j: Index, out_GTE: Array) -> Array:
        col, k_SH, v_SE = keys(j)
        key = col + jnp.arange(tile.block_kv)
        keep = is_live(band, query[:, None], key) & (key >= j * tile.block_kv) & (query >= row)[:, None]
        weight = jnp.where(keep, decay_of(rate, query[:, None] + band.high - key), 0)
        return out_GTE + chunk_tile(q_GTH, k_SH, v_SE, weight)

    with jax.named_scope(scopes.WHOLE_TILE):
        state, known = lax.fori_loop(known, c, absorb, state), jnp.maximum(known, c)
    q_GTH, out_GTE = (block(x, at, (group, tile.block_q)) for x in (q_BNTH, out))
    since = query + band.high - (known * tile.block_kv - 1)
    out_GTE = out_GTE + state_output(q_GTH, state) * jnp.where(query >= row, decay_of(rate, since), 0)[:, None]
    with jax.named_scope(scopes.BOUNDARY_TILE):
        out_GTE = lax.fori_loop(c, d, multiply, out_GTE)
    return lax.dynamic_update_slice(out, out_GTE[None], (*at, 0), **start_options()), state, known


def reverse(band: MaskBlock, rows: int, cols: int) -> MaskBlock:
    """The rectangle of a pair of `rows` queries and `cols` keys after queries and keys change places and all positions
    are reversed."""
    high = jnp.minimum(jnp.asarray(band.high, jnp.int32) + band.rows - band.cols, UNBOUNDED)
    row, col = cols - band.col - band.cols, rows - band.row - band.rows
    return MaskBlock(row, col, band.cols, band.rows, -UNBOUNDED, high)


def forward_and_backward(attend: Callable, backward_q: Callable, backward_kv: Callable) -> tuple[Callable, Callable]:
    """(forward, backward) of a pair of shards, from the functions of a kernel for its outputs and gradients."""

    def forward(
        q_BNTH: Array,
        k_BKSH: Array,
        v_BKSH: Array,
        state: Arrays,
        bands: Bands,
        tile: Tile,
        rates_K: Array,
        part: tuple[Index, int] = WHOLE,
    ) -> Arrays:
        out_BNTH, *nothing = state
        return attend(q_BNTH, k_BKSH, v_BKSH, out_BNTH, bands, tile, rates_K, part), *nothing

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
        rates_K: Array,
    ) -> Arrays:
        dq_BNTH = backward_q(k_BKSH, v_BKSH, dout_BNTH, dq_BNTH, bands, tile, rates_K)
        return dq_BNTH, *backward_kv(q_BNTH, k_BKSH, v_BKSH, dout_BNTH, bands, tile, rates_K)

    return forward, backward


def backward_q(
    k_BKSH: Array,
    v_BKSH: Array,
    dout_BNTH: Array,
    dq_BNTH: Array,
    bands: Bands,
    tile: Tile,
    rates_K: Array,
    part: tuple[Index, int] = WHOLE,
) -> Array:
    return attend(dout_BNTH, v_BKSH, k_BKSH, dq_BNTH, bands, tile, rates_K, part)


def backward_kv(
    q_BNTH: Array, k_BKSH: Array, v_BKSH: Array, dout_BNTH: Array, bands: Bands, tile: Tile, rates_K: Array
) -> tuple[Array, Array]:
    heads, group = k_BKSH.shape[1], q_BNTH.shape[1] // k_BKSH.shape[1]

    def both(x: Array, y: Array) -> Array:
        """x and y concatenated along the heads, each repeated to the number of query heads, with rows in reverse
        order."""
        wide = (jnp.repeat(each, q_BNTH.shape[1] // each.shape[1], axis=1) for each in (x, y))
        return jnp.flip(jnp.concatenate(list(wide), axis=1), 2)

    turned = [reverse(band, q_BNTH.shape[2], k_BKSH.shape[2]) for band in bands]
    arrays = both(v_BKSH, k_BKSH), both(dout_BNTH, q_BNTH), both(q_BNTH, dout_BNTH)
    zeros, rates = jnp.zeros_like(arrays[0], jnp.float32), jnp.tile(jnp.repeat(rates_K, group), 2)
    found = jnp.flip(attend(*arrays, zeros, turned, Tile(tile.block_kv, tile.block_q), rates), 2)
    dk, dv = found.reshape(found.shape[0], 2, heads, group, *found.shape[2:]).sum(3).swapaxes(0, 1)
    return dk, dv


def state(k_BKSH: Array, v_BKSE: Array, rates_K: Array) -> Array:
    """float32 (B, K, H, E): the state of a shard's keys, decayed up to the last of them."""
    weight_KS = jax.vmap(decay_to_end, (0, None))(rates_K, k_BKSH.shape[2])
    k_BKSH = k_BKSH.astype(jnp.float32) * weight_KS[..., None]
    return product("bksh,bkse->bkhe", k_BKSH, v_BKSE.astype(jnp.float32))


def apply(q_BNTH: Array, before_BKHE: Array, rates_K: Array) -> Array:
    """The output of a shard's queries for all keys before the shard, from the state of these keys."""
    rows, heads = q_BNTH.shape[2], before_BKHE.shape[1]
    q_BKGTH = q_BNTH.reshape(q_BNTH.shape[0], heads, -1, *q_BNTH.shape[2:])
    weight_KT = decay_of(rates_K[:, None], jnp.arange(1, rows + 1))
    out = product("bkgth,bkhe->bkgte", q_BKGTH.astype(jnp.float32), before_BKHE)
    return (out * weight_KT[:, None, :, None]).reshape(*q_BNTH.shape[:3], before_BKHE.shape[3])


def dstate(q_BNTH: Array, dout_BNTE: Array, rates_K: Array) -> Array:
    """float32 (B, K, H, E): the contribution of a shard's queries to the gradient of the state before the shard."""
    heads = rates_K.shape[0]
    q_BKGTH, dout_BKGTE = (x.reshape(x.shape[0], heads, -1, *x.shape[2:]) for x in (q_BNTH, dout_BNTE))
    weight_KT = decay_of(rates_K[:, None], jnp.arange(1, q_BNTH.shape[2] + 1))
    q_BKGTH = q_BKGTH.astype(jnp.float32) * weight_KT[:, None, :, None]
    return product("bkgth,bkgte->bkhe", q_BKGTH, dout_BKGTE.astype(jnp.float32))


def state_backward(k_BKSH: Array, v_BKSE: Array, behind_BKHE: Array, rates_K: Array) -> tuple[Array, Array]:
    """float32 (dk, dv) of a shard's keys, from the gradient of the state after them."""
    weight_KS = jax.vmap(decay_to_end, (0, None))(rates_K, k_BKSH.shape[2])[..., None]
    k_BKSH, v_BKSE = (x.astype(jnp.float32) * weight_KS for x in (k_BKSH, v_BKSE))
    return product("bkse,bkhe->bksh", v_BKSE, behind_BKHE), product("bksh,bkhe->bkse", k_BKSH, behind_BKHE)


forward, backward = forward_and_backward(attend, backward_q, backward_kv)
