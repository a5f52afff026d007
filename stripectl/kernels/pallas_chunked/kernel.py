"""Linear attention with a constant decay on a TPU.

`chunks` computes the squares of a pair of shards that lie on the diagonal (`squares`). In a square before it every
query reads the same state, by matmuls of `chunked`. Let w be the decay per token; in a chunk of C rows that begins with
the state S,

    o_t = w^(t+1) S^T q_t + sum_{s<=t} w^(t-s) (q_t . k_s) v_s
    S'  = w^C S + sum_s w^(C-1-s) k_s v_s^T

and the gradients of keys and values follow from the gradient of the state, from the last chunk to the first. The
gradient of queries is linear attention of (dout, v, k).

Letters: B batch, K key/value heads, G query heads per key/value head, N = K G, L = B K, T rows (queries), S columns
    (keys), H head_dim.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from stripectl.core.layout import WHOLE, Bands, Index, MaskBlock, Tile
from stripectl.kernels.chunked.kernel import (
    EMPTY,
    advance_state,
    apply,
    decay_of,
    dstate,
    forward_and_backward,
    state,
    state_backward,
)
from stripectl.kernels.pallas_chunked import SUBLANES, squares
from stripectl.kernels.pallas_chunked.chunks import DiagonalGrid, diagonal_key_gradients, diagonal_outputs
from stripectl.kernels.pallas_gated.grid import exact
from stripectl.kernels.pallas_tpu.grid import cores_of_a_device

__all__ = ["EMPTY", "advance_state", "apply", "backward", "backward_kv", "backward_q", "dstate", "forward", "state"]
__all__ += ["state_backward"]

STEP_HEADS = 8  # query heads of a step: enough independent work to fill the units


class Square(NamedTuple):
    """A square of scores: its queries, keys and values, the logarithm of each head's decay per token, and `high` of its
    band."""

    q_LGTH: Any
    k_LSH: Any
    v_LSH: Any
    rates_L: Any
    high: Any

    @property
    def gap_L(self) -> Array:
        """The decay over the tokens between the keys and the queries."""
        return decay_of(self.rates_L, jnp.int32(self.high) - self.k_LSH.shape[1])

    @property
    def prefetched(self) -> tuple[Any, Any]:
        return jnp.full(1, self.high, jnp.int32), self.rates_L

    def by_scores(self, none: Callable, diagonal: Callable, every: Callable, *arrays: Array) -> Any:
        """The result of the branch for a square without scores, on the diagonal, or with scores for all pairs."""
        side, branches = self.k_LSH.shape[1], (none, diagonal, every)
        kind = 1 + (self.high >= side - 1) * 1 - (self.high <= -side) * 1
        return branches[kind](*arrays) if isinstance(kind, int) else lax.switch(kind, branches, *arrays)

    def outputs(self, out_LGTH: Array, size: int, part: tuple[Any, int], name: str) -> Array:
        """out plus the outputs of a part of the heads."""

        def diagonal(out: Array) -> Any:
            return self.outputs_on_diagonal(out, size, part, name)

        return self.by_scores(lambda out: out, diagonal, partial(self.outputs_of_state, part=part), out_LGTH)

    def outputs_on_diagonal(self, out_LGTH: Array, size: int, part: tuple[Any, int], name: str) -> Array:
        heads, group, rows, _ = self.q_LGTH.shape
        each = heads_per_step(heads, group, part[1])
        first, end = (place * (heads // each) // part[1] for place in (part[0], part[0] + 1))

        def computed(out: Array) -> Array:
            chunk_rows, chunks, arrays = padded_to_chunks(size, [self.q_LGTH, self.k_LSH, self.v_LSH, out])
            grid = DiagonalGrid(each, first, end - first, chunks, chunk_rows)
            with exact(self.q_LGTH.dtype):
                (found,) = grid.run(diagonal_outputs, name, self.prefetched, arrays, arrays[3:], {3: 0})
            return found[:, :, :rows]

        return computed(out_LGTH) if part[1] == 1 else lax.cond(end > first, computed, lambda out: out, out_LGTH)

    def outputs_of_state(self, out_LGTH: Array, part: tuple[Any, int]) -> Array:
        """As many heads as the largest part has are computed; those beyond a part add nothing."""
        heads = self.rates_L.shape[0]
        first, end = (place * heads // part[1] for place in (part[0], part[0] + 1))
        most = -(-heads // part[1])
        own = Square._make([*(lax.dynamic_slice_in_dim(x, first, most) for x in self[:4]), self.high])
        of_keys = state(own.k_LSH[None], own.v_LSH[None], own.rates_L) * own.gap_L[:, None, None]
        found = apply(in_batch(own.q_LGTH), of_keys, own.rates_L).reshape(own.q_LGTH.shape)
        inside = (first + jnp.arange(most) < end)[:, None, None, None]
        found = lax.dynamic_slice_in_dim(out_LGTH, first, most) + jnp.where(inside, found, 0)
        return lax.dynamic_update_slice_in_dim(out_LGTH, found, first, 0)

    def key_gradients(self, dout_LGTH: Array, size: int) -> tuple[Array, Array]:
        """float32 (dk, dv)."""
        nothing = jnp.zeros_like(self.k_LSH, jnp.float32)

        def diagonal(dout: Array) -> Any:
            return self.key_gradients_on_diagonal(dout, size)

        return self.by_scores(lambda dout: (nothing, nothing), diagonal, self.key_gradients_of_state, dout_LGTH)

    def key_gradients_on_diagonal(self, dout_LGTH: Array, size: int) -> tuple[Array, Array]:
        heads, group, rows, _ = self.q_LGTH.shape
        each = heads_per_step(heads, group, 1)
        chunk_rows, chunks, arrays = padded_to_chunks(size, [self.q_LGTH, self.k_LSH, self.v_LSH, dout_LGTH])
        grid = DiagonalGrid(each, 0, heads // each, chunks, chunk_rows, backward=True)
        with exact(self.q_LGTH.dtype):
            dk, dv = grid.run(diagonal_key_gradients, "dkv", self.prefetched, arrays, arrays[1:3], {})
        return dk[:, :rows], dv[:, :rows]

    def key_gradients_of_state(self, dout_LGTH: Array) -> tuple[Array, Array]:
        behind = dstate(in_batch(self.q_LGTH), in_batch(dout_LGTH), self.rates_L) * self.gap_L[:, None, None]
        dk, dv = state_backward(self.k_LSH[None], self.v_LSH[None], behind, self.rates_L)
        return dk[0], dv[0]


def heads_per_step(heads: int, group: int, parts: int) -> int:
    """Key/value heads of a step: a divisor of the heads, and at most the heads of a part on each core."""
    most = max(1, min(STEP_HEADS // group, heads // (parts * cores_of_a_device())))
    return next(n for n in range(most, 0, -1) if heads % n == 0)


def padded_to_chunks(size: int, arrays: Sequence[Any]) -> tuple[int, int, list[Any]]:
    """(rows of a chunk, chunks, the arrays with rows padded to whole chunks). Keys of zero leave a state as it is."""
    rows = arrays[0].shape[-2]
    size = min(size, -(-rows // SUBLANES) * SUBLANES)
    padded = [jnp.pad(x, (*((0, 0),) * (x.ndim - 2), (0, -rows % size), (0, 0))) for x in arrays]
    return size, -(-rows // size), padded


def in_batch(x_LGTH: Array) -> Array:
    """(1, L G, T, H)."""
    return x_LGTH.reshape(1, -1, *x_LGTH.shape[2:])


def in_heads(x_BNTH: Array, heads: int) -> Array:
    """(L, G, T, H)."""
    batch, every, *rest = x_BNTH.shape
    return x_BNTH.reshape(batch * heads, every // heads, *rest)


def rows_of(x: Array, first: Index, count: int) -> Array:
    return x if count == x.shape[-2] else lax.dynamic_slice_in_dim(x, first, count, axis=x.ndim - 2)


def put_rows(x: Array, found: Array, first: Index) -> Array:
    return found if found.shape == x.shape else lax.dynamic_update_slice_in_dim(x, found, first, axis=x.ndim - 2)


def squares_of(
    q_LGTH: Array, k_BKSH: Array, v_BKSH: Array, rates_K: Array, bands: Bands
) -> Iterator[tuple[MaskBlock, Square]]:
    """The squares of a pair of shards, each with the rectangle it computes."""
    batch, heads, *rest = k_BKSH.shape
    k, v = (x.reshape(batch * heads, *rest) for x in (k_BKSH, v_BKSH))
    for band in squares(bands):
        q_, k_, v_ = (rows_of(x, at, band.rows) for x, at in ((q_LGTH, band.row), (k, band.col), (v, band.col)))
        yield band, Square(q_, k_, v_, jnp.tile(rates_K, batch), band.high)


def attend(
    q_BNTH: Array,
    k_BKSH: Array,
    v_BKSH: Array,
    out_BNTH: Array,
    bands: Bands,
    tile: Tile,
    rates_K: Array,
    part: tuple[Index, int] = WHOLE,
    name: str = "outputs",
) -> Array:
    """out plus the outputs of the pair, in float32; part=(i, n) adds only the i-th of n parts of the heads."""
    q, out = (in_heads(x, k_BKSH.shape[1]) for x in (q_BNTH, out_BNTH))
    for band, square in squares_of(q, k_BKSH, v_BKSH, rates_K, bands):
        found = square.outputs(rows_of(out, band.row, band.rows), tile.block_kv, part, name)
        out = put_rows(out, found, band.row)
    return out.reshape(out_BNTH.shape)


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
    return attend(dout_BNTH, v_BKSH, k_BKSH, dq_BNTH, bands, tile, rates_K, part, name="dq")


def backward_kv(
    q_BNTH: Array, k_BKSH: Array, v_BKSH: Array, dout_BNTH: Array, bands: Bands, tile: Tile, rates_K: Array
) -> tuple[Array, Array]:
    batch, heads, *rest = k_BKSH.shape
    q, dout = (in_heads(x, heads) for x in (q_BNTH, dout_BNTH))
    dk = dv = jnp.zeros((batch * heads, *rest), jnp.float32)
    for band, square in squares_of(q, k_BKSH, v_BKSH, rates_K, bands):
        found = square.key_gradients(rows_of(dout, band.row, band.rows), tile.block_kv)
        dk, dv = (
            put_rows(x, rows_of(x, band.col, band.cols) + own, band.col) for x, own in zip((dk, dv), found, strict=True)
        )
    return dk.reshape(k_BKSH.shape), dv.reshape(k_BKSH.shape)


forward, backward = forward_and_backward(attend, backward_q, backward_kv)
