"""The arithmetic of a tile of `pallas_tpu`, forward and backward.

Letters: T rows (queries), S columns (keys), H head_dim; C a TPU's lanes.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from stripectl.core.kernel import LANES
from stripectl.core.layout import Index
from stripectl.kernels.pallas_tpu.accumulators import Accumulators, Ref
from stripectl.kernels.pallas_tpu.grid import Step
from stripectl.kernels.pallas_tpu.lines import BEGINS, ENDS, MASKED, place_of
from stripectl.kernels.pallas_tpu.tile_memory import keys_at_once
from stripectl.kernels.xla.kernel import LOG2_E

DROPPED = -2.4e38  # a score that the mask drops, far below the maximum of no scores
ABT, AB, ATB = ((1,), (1,)), ((1,), (0,)), ((0,), (0,))  # the dimensions that a product sums over


def dot(a: Array, b: Array, contract: tuple[tuple[int, ...], tuple[int, ...]]) -> Array:
    """A float32 product; float32 arguments use full precision."""
    precision = lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    return lax.dot_general(a, b, (contract, ((), ())), precision=precision, preferred_element_type=jnp.float32)


def broadcast_lanes(x_TC: Array, width: int) -> Array:
    """(T, LANES), the same in every lane, as (T, width)."""
    copies = -(-width // LANES)
    return (x_TC if copies == 1 else jnp.tile(x_TC, (1, copies)))[:, :width]


def cap_scores(scores: Array, soft_cap: float | None) -> tuple[Array, Array | float]:
    """Scores in base 2 under a soft cap in base e, and its derivative."""
    if soft_cap is None:
        return scores, 1.0
    share = jnp.tanh(scores / (soft_cap * LOG2_E))
    return (soft_cap * LOG2_E) * share, 1 - share * share


def sum_lanes(x_TS: Array, total_TC: Array) -> Array:
    """total plus the sums of x over every 128th column."""
    return sum(jnp.split(x_TS, x_TS.shape[1] // LANES, axis=1), total_TC)


def column(x_1T: Array) -> Array:
    """(1, T) as (T, LANES), the same in every lane."""
    return jnp.broadcast_to(x_1T, (LANES, x_1T.shape[1])).T


def by_case(step: Step, compute: Callable) -> None:
    """Run compute(mask, live) for a tile. mask(scores, at) drops scores from row at[0] and column at[1] on; for a whole
    tile it drops nothing. live(at) is the first query that sees a key from `at` on."""
    listed, masked = step.listed, step.entry & MASKED != 0

    @pl.when(masked)
    def boundary() -> None:
        (low, high), left = listed.band(step.number), listed.keys_left(step.number)

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
    def of(step: Step) -> "ForwardRow":
        *slots, top, total, arrivals, departures = step.held
        entry, rows, lines = step.entry, step.tile.block_q, step.listed.lines
        number, _ = place_of(entry)
        held = Accumulators(step.head, rows, lines, (2, 3, 3), step.before, step.after, slots, arrivals, departures)
        out, most, summed = (x.at[number & 1, step.g] for x in slots)
        return ForwardRow(entry, number, step.g, held, out, most, summed, top.at[step.g], total.at[step.g])

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


def forward_kernel(step: Step, *, soft_cap: float | None) -> None:
    row, tile, (q, k, v) = ForwardRow.of(step), step.tile, step.blocks

    @pl.when(row.begins)
    def begin() -> None:
        row.arrive()
        row.top[...] = row.arrived_top()
        row.total[...] = row.arrived_total()

    def compute(mask: Callable, live: Callable) -> None:
        at_once = keys_at_once(tile)
        for at in range(0, tile.block_kv, at_once):
            k_SH, v_SH, queries = k[at : at + at_once], v[at : at + at_once], slice(live(at), None)
            s_TS, _ = cap_scores(dot(q[step.g, queries], k_SH, ABT), soft_cap)
            s_TS = mask(s_TS, (live(at), at))
            before_TC = row.top[queries]
            top_TC = jnp.maximum(before_TC, s_TS.max(1, keepdims=True))
            p_TS, decay_TC = jnp.exp2(s_TS - broadcast_lanes(top_TC, at_once)), jnp.exp2(before_TC - top_TC)
            row.total[queries] = sum_lanes(p_TS, row.total[queries] * decay_TC)
            decay_TH = broadcast_lanes(decay_TC, row.out.shape[1])
            row.out[queries] = row.out[queries] * decay_TH + dot(p_TS.astype(v.dtype), v_SH, AB)
            row.top[queries] = top_TC

    by_case(step, compute)
    row.end(q.shape[0])


def add_gradients(
    step: Step, soft_cap: float | None, along: Index, dq: Ref, dk: Ref, dv: Ref, mask: Callable, live: Callable
) -> None:
    """The gradients of a tile, the place `along` in its line, added to the sums of its queries and keys."""
    (q, k, v, dout, lse, delta), tile = step.blocks, step.tile
    first, at_once = (along - step.listed.corner[1]) * tile.block_q, keys_at_once(tile)
    for at in range(0, tile.block_kv, at_once):
        keys, queries = slice(at, at + at_once), slice(live(at), None)
        s_ST, slope = cap_scores(dot(k[keys], q[queries], ABT), soft_cap)
        p_ST = jnp.exp2(mask(s_ST, (at, live(at))) - lse[:, queries])
        dv[keys] += dot(p_ST.astype(dout.dtype), dout[queries], AB)
        ds_ST = p_ST * (dot(v[keys], dout[queries], ABT) - delta[:, queries])
        ds_ST = (ds_ST if soft_cap is None else ds_ST * slope).astype(q.dtype)
        dk[keys] += dot(ds_ST, q[queries], AB)
        dq[step.g, pl.ds(first + live(at), tile.block_q - live(at))] += dot(ds_ST, k[keys], ATB)


def backward_kernel(step: Step, *, scale: float, soft_cap: float | None) -> None:
    """Scores have keys as rows and queries as columns, so a query's values are equal in every row."""
    (dq_in, *before), (dq_out, *after) = step.before, step.after
    *slots, dq, dq_copied, arrivals, departures = step.held
    listed, g, tile, entry = step.listed, step.g, step.tile, step.entry
    number, along = place_of(entry)
    held = Accumulators(step.head, tile.block_kv, listed.lines, (1, 1), before, after, slots, arrivals, departures)
    dk, dv = (x.at[number & 1] for x in slots)

    def rows(array: Ref) -> Ref:
        return array.at[step.head, :, pl.ds(listed.corner[1] * tile.block_q, dq.shape[1])]

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

    by_case(step, partial(add_gradients, step, soft_cap, along, dq, dk, dv))

    @pl.when((entry & ENDS != 0) & (g == dq.shape[0] - 1))
    def end() -> None:
        dk[...] /= LOG2_E
        held.end(number)

        @pl.when(~held.another(number))
        def give_queries() -> None:
            dq[...] *= scale
            move(dq, rows(dq_out))
