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
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from stripectl.core.kernel import LANES, FusedHop
from stripectl.core.layout import Bands, Index, MaskBlock, Tile
from stripectl.core.scopes import hop_kernel
from stripectl.kernels.pallas_tpu.accumulators import Accumulators, Ref
from stripectl.kernels.pallas_tpu.lines import (
    BEGINS,
    ENDS,
    MASKED,
    TileGrid,
    TileList,
    in_stripes,
    place_of,
    visit_stripes,
)
from stripectl.kernels.pallas_tpu.padding import padding_of
from stripectl.kernels.pallas_tpu.tile_memory import DQ_BYTES, FLOAT32, keys_at_once
from stripectl.kernels.xla.kernel import LOG2_E, Arrays

EMPTY = -1e30  # the maximum of no scores: finite, because -inf minus -inf is NaN
DROPPED = -2.4e38  # a score that the mask drops, far below the maximum of no scores
MIN_LOG_SUM_EXP = -1e38  # of a row, so that a dropped score is far below it too
ABT, AB, ATB = ((1,), (1,)), ((1,), (0,)), ((0,), (0,))  # the dimensions that a product sums over


def dot(a: Array, b: Array, contract: tuple[tuple[int, ...], tuple[int, ...]]) -> Array:
    """A float32 product; float32 arguments use full precision."""
    precision = lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    return lax.dot_general(a, b, (contract, ((), ())), precision=precision, preferred_element_type=jnp.float32)


def broadcast_lanes(x_TC: Array, width: int) -> Array:
    """(T, LANES), the same in every lane, as (T, width)."""
    copies = -(-width // LANES)
    return (x_TC if copies == 1 else jnp.tile(x_TC, (1, copies)))[:, :width]


def sum_lanes(x_TS: Array, total_TC: Array) -> Array:
    """total plus the sums of x over every 128th column."""
    return sum(jnp.split(x_TS, x_TS.shape[1] // LANES, axis=1), total_TC)


def column(x_1T: Array) -> Array:
    """(1, T) as (T, LANES), the same in every lane."""
    return jnp.broadcast_to(x_1T, (LANES, x_1T.shape[1])).T


def by_case(listed: TileList, step: Index, compute: Callable) -> None:
    """Run compute(mask, live) for a tile. mask(scores, at) drops scores from row at[0] and column at[1] on; for a whole
    tile it drops nothing. live(at) is the first query that sees a key from `at` on."""
    masked = listed.order[step] & MASKED != 0

    @pl.when(masked)
    def boundary() -> None:
        (low, high), left = listed.band(step), listed.keys_left(step)

        def mask(scores: Array, at: tuple[Index, Index]) -> Array:
            down, right = (lax.broadcasted_iota(jnp.int32, scores.shape, axis) + at[axis] for axis in (0, 1))
            distance = right - down
            kept = (distance >= low) & (distance <= high)
            if left is not None:
                kept &= (down if listed.by_columns else right) < left
            return jnp.where(kept, scores, DROPPED)

        compute(mask, lambda at: at if listed.on_diagonal else 0)

    pl.when(~masked)(partial(compute, lambda scores, at: scores, lambda at: 0))


class ForwardRow(NamedTuple):
    """A row of tiles of a query head in the forward pass, in VMEM: its state `out`, `most` and `summed`, and, while its
    tiles are computed, the maximum `top` in base 2, in every lane, and the sums `total` of each lane."""

    entry: Any
    number: Any
    head: Any  # of the group
    held: Accumulators
    out: Any
    most: Any
    summed: Any
    top: Any
    total: Any

    @staticmethod
    def of(at: tuple[Index, Index, Index], listed: TileList, refs: Ref, tile: Tile) -> "ForwardRow":
        state, after, slots, (top, total, arrivals, departures) = refs[:3], refs[3:6], refs[6:9], refs[9:]
        head, step, g = at
        entry = listed.order[step]
        number, _ = place_of(entry)
        held = Accumulators(head, tile.block_q, listed.lines, (2, 3, 3), state, after, slots, arrivals, departures)
        out, most, summed = (x.at[number & 1, g] for x in slots)
        return ForwardRow(entry, number, g, held, out, most, summed, top.at[g], total.at[g])

    @property
    def begins(self) -> Index:
        return self.entry & BEGINS != 0

    def arrive(self) -> None:
        """Wait for the state, before the first tile of the row."""
        pl.when(self.head == 0)(partial(self.held.begin, self.number))

    def arrived_top(self) -> Array:
        return column(self.most[...] * LOG2_E)

    def arrived_total(self) -> Array:
        first_lane = lax.broadcasted_iota(jnp.int32, self.total.shape, 1) == 0
        return jnp.where(first_lane, column(self.summed[...]), 0)

    def end(self, group: int) -> None:
        """Store the state after the last tile of the row; `group` is its number of query heads."""

        @pl.when(self.entry & ENDS != 0)
        def store() -> None:
            self.most[...] = self.top[...].T[:1] / LOG2_E
            self.summed[...] = self.total[...].T.sum(0, keepdims=True)
            pl.when(self.head == group - 1)(partial(self.held.end, self.number))


def forward_kernel(
    at: tuple[Index, Index, Index], listed: TileList, q: Ref, k: Ref, v: Ref, *refs: Ref, tile: Tile
) -> None:
    row, (_, step, g) = ForwardRow.of(at, listed, refs, tile), at

    @pl.when(row.begins)
    def begin() -> None:
        row.arrive()
        row.top[...] = row.arrived_top()
        row.total[...] = row.arrived_total()

    def compute(mask: Callable, live: Callable) -> None:
        at_once = keys_at_once(tile)
        for at in range(0, tile.block_kv, at_once):
            k_SH, v_SH, queries = k[at : at + at_once], v[at : at + at_once], slice(live(at), None)
            s_TS = mask(dot(q[g, queries], k_SH, ABT), (live(at), at))
            before_TC = row.top[queries]
            top_TC = jnp.maximum(before_TC, s_TS.max(1, keepdims=True))
            p_TS, decay_TC = jnp.exp2(s_TS - broadcast_lanes(top_TC, at_once)), jnp.exp2(before_TC - top_TC)
            row.total[queries] = sum_lanes(p_TS, row.total[queries] * decay_TC)
            decay_TH = broadcast_lanes(decay_TC, row.out.shape[1])
            row.out[queries] = row.out[queries] * decay_TH + dot(p_TS.astype(v.dtype), v_SH, AB)
            row.top[queries] = top_TC

    by_case(listed, step, compute)
    row.end(q.shape[0])


def backward_kernel(
    at: tuple[Index, Index, Index],
    listed: TileList,
    q: Ref,
    k: Ref,
    v: Ref,
    dout: Ref,
    lse: Ref,
    delta: Ref,
    *refs: Ref,
    tile: Tile,
    scale: float,
) -> None:
    """Scores have keys as rows and queries as columns, so a query's values are equal in every row."""
    (dq_in, *before), (dq_out, *after), slots, (dq, dq_copied, *copied) = refs[:3], refs[3:6], refs[6:8], refs[8:]
    head, step, g = at
    entry = listed.order[step]
    number, along = place_of(entry)
    held = Accumulators(head, tile.block_kv, listed.lines, (1, 1), before, after, slots, *copied)
    dk, dv = (x.at[number & 1] for x in slots)

    def rows(array: Ref) -> Ref:
        return array.at[head, :, pl.ds(listed.corner[1] * tile.block_q, dq.shape[1])]

    def move(start: Ref, end: Ref) -> None:
        copy = pltpu.make_async_copy(start, end, dq_copied)
        copy.start()
        copy.wait()

    @pl.when((entry & BEGINS != 0) & (g == 0))
    def begin() -> None:
        @pl.when(number == 0)
        def take_queries() -> None:
            move(rows(dq_in), dq)
            dq[...] /= scale

        held.begin(number)
        dk[...] *= LOG2_E

    def compute(mask: Callable, live: Callable) -> None:
        first, at_once = (along - listed.corner[1]) * tile.block_q, keys_at_once(tile)
        for at in range(0, tile.block_kv, at_once):
            keys, queries = slice(at, at + at_once), slice(live(at), None)
            p_ST = jnp.exp2(mask(dot(k[keys], q[queries], ABT), (at, live(at))) - lse[:, queries])
            dv[keys] += dot(p_ST.astype(dout.dtype), dout[queries], AB)
            ds_ST = (p_ST * (dot(v[keys], dout[queries], ABT) - delta[:, queries])).astype(q.dtype)
            dk[keys] += dot(ds_ST, q[queries], AB)
            dq[g, pl.ds(first + live(at), tile.block_q - live(at))] += dot(ds_ST, k[keys], ATB)

    by_case(listed, step, compute)

    @pl.when((entry & ENDS != 0) & (g == dq.shape[0] - 1))
    def end() -> None:
        dk[...] /= LOG2_E
        held.end(number)

        @pl.when(~held.another(number))
        def give_queries() -> None:
            dq[...] *= scale
            move(dq, rows(dq_out))


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
    q_BNTH: Array, k_BKSH: Array, v_BKSH: Array, state: Arrays, bands: Bands, tile: Tile, hop: FusedHop | None = None
) -> tuple:
    """The state; with a hop (state, the arrays that arrived)."""
    return visit(forward_kernel, "stripectl_forward", q_BNTH, k_BKSH, v_BKSH, state, bands, tile, hop)


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

    def run(stripe: MaskBlock, carried: Sequence[Array]) -> Arrays:
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
    kernel = partial(backward_kernel, scale=width**-0.5)

    def run(stripe: MaskBlock, grads: Sequence[Array]) -> Arrays:
        lines, kinds = TileGrid(stripe, tile, by_columns=True), "queries keys keys queries numbers numbers"
        name = kernel_name("stripectl_backward", hop, stripes)
        return lines.run(kernel, name, kinds, scratch, (q, k, v, dout, lse, delta), grads, hop)

    zeros = (jnp.zeros_like(x, jnp.float32) for x in (k, v))
    grads = visit_stripes(stripes, run, (dq, *zeros, *received(hop)))
    dq, *dkv = map(keep_float32, grads[:3])
    found = *queries.unfolded([dq], [q_BNTH]), *keys.unfolded(dkv, (k_BKSH, v_BKSH))
    return (found, shaped(grads[3:], hop.arrays)) if hop else found
