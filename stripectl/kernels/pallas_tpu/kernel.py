"""Our own Pallas attention for TPUs, of a pair of shards, forward and backward, with bands that may be traced.

Letters: B batch, N query heads, K key/value heads, T rows (queries), S columns (keys), H head_dim; L is B K, and G the
query heads of a key/value head.

The grid of a kernel is the live tiles of a rectangle and nothing else: they are listed by arithmetic on the band ahead
of the kernel, line by line (a line is a row of tiles forward and a column of them backward), and the list is
prefetched. A dead tile is no step, and nothing is fetched for it. A tile's entry says whether it begins or ends its
line and whether it needs its mask. What a line adds up stays in VMEM from its first tile to its last; it comes from the
state and goes back there in place, so a ring needs no merge. The heads of a group take turns at the same keys and
values.

Exponentials are of two: queries are scaled by head_dim^-0.5 log2(e) beforehand and rounded once to their dtype, in both
passes alike. Sums of exponentials are kept apart in the 128 lanes of a row and added up at its end.

The backward pass is one kernel of five matmuls a tile: dQ of all rows stays in VMEM meanwhile, or of as many as fit.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from stripectl.layout import Rectangle, Tile, column_tiles, row_tiles

EMPTY = -1e30  # the maximum of no scores: finite, because -inf gives NaN where two of them are subtracted
DROPPED = -2.4e38  # a score that the mask drops, far below the maximum of no scores
LEAST = -1e38  # of a log-sum-exp, so that a dropped score is far below it too
LOG2_E = math.log2(math.e)
LANES = 128
INTERPRET: Any = True  # how a CPU runs the kernels: as plain JAX, or by the rules of TPU interpret mode
COMPUTE = 512  # keys that are multiplied at once, of the block_kv that is fetched
VMEM_BYTES = 64 * 2**20  # that a kernel may use, where a core has as many
DQ_BYTES = 4 * 2**20  # of them for dQ, as a v4 has 16 MiB
INDEX_BITS = 14  # of a tile in a line, and of a line
MASKED, BEGINS, ENDS = 4, 2, 1  # bits of a tile's entry
ABT, AB, ATB = ((1,), (1,)), ((1,), (0,)), ((0,), (0,))  # the dimensions that a product sums over


def live_tiles(band: Rectangle, tile: Tile) -> tuple[Any, Any]:
    """(entries, count): the live tiles of a rectangle, row by row."""
    rows, cols = band.rows // tile.block_q, band.cols // tile.block_kv
    index = jnp.arange(rows, dtype=jnp.int32)
    first, last = row_tiles(band, tile)
    a, b, c, d = column_tiles(band, tile, index * tile.block_q)
    live = jnp.where((index >= first) & (index < last), d - a, 0)
    ends = jnp.cumsum(live)
    step = jnp.arange(rows * cols, dtype=jnp.int32)
    line = jnp.minimum(jnp.searchsorted(ends, step, side="right"), rows - 1).astype(jnp.int32)
    begin = ends[line] - live[line]
    along = jnp.minimum(a[line] + step - begin, cols - 1)
    masked = (along < b[line]) | (along >= c[line])
    flags = masked * MASKED + (step == begin) * BEGINS + (step == ends[line] - 1) * ENDS
    return (((line << INDEX_BITS) + along) << 3) + flags, ends[-1]


def place_of(entry):
    """(line, tile in the line) of a tile."""
    return entry >> 3 + INDEX_BITS, (entry >> 3) & (1 << INDEX_BITS) - 1


class Place(NamedTuple):
    """Where a rectangle lies, as kernels prefetch it: lines and tiles before it, its band, and the lines that live."""

    line: Any
    along: Any
    low: Any
    high: Any
    first: Any
    last: Any


class Held(NamedTuple):
    """Arrays of a head that lines add to, each its own `size` rows along the axis of an array. They come to VMEM while
    the line before is computed, and go back while the next one is; each has two slots."""

    head: Any
    size: int
    place: Place
    axes: Sequence[int]
    sources: Sequence[Any]
    targets: Sequence[Any]
    slots: Sequence[Any]
    arrivals: Any
    departures: Any

    def copies(self, line, *, come: bool) -> list[Any]:
        slot, rows = line & 1, pl.ds((self.place.line + line) * self.size, self.size)
        arrays, semaphores = (self.sources, self.arrivals) if come else (self.targets, self.departures)
        found = []
        for array, held, axis in zip(arrays, self.slots, self.axes, strict=True):
            there = array.at[(self.head, *(slice(None),) * (axis - 1), rows)]
            ends = (there, held.at[slot]) if come else (held.at[slot], there)
            found.append(pltpu.make_async_copy(*ends, semaphores.at[slot]))
        return found

    def start(self, line, *, come: bool) -> None:
        for copy in self.copies(line, come=come):
            copy.start()

    def wait(self, line, *, come: bool) -> None:
        for copy in self.copies(line, come=come):
            copy.wait()

    def begin(self, line) -> None:
        pl.when(line == self.place.first)(partial(self.start, line, come=True))
        self.wait(line, come=True)
        pl.when(line > self.place.first)(partial(self.wait, line - 1, come=False))
        pl.when(line + 1 < self.place.last)(partial(self.start, line + 1, come=True))

    def end(self, line) -> None:
        self.start(line, come=False)
        pl.when(line + 1 == self.place.last)(partial(self.wait, line, come=False))


def dot(a, b, contract):
    """A product in float32, and of float32 in full precision."""
    precision = lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    return lax.dot_general(a, b, (contract, ((), ())), precision=precision, preferred_element_type=jnp.float32)


def spread(x_TC, width):
    """(T, LANES), the same in every lane, as (T, width)."""
    return x_TC[:, :width] if width <= LANES else jnp.tile(x_TC, (1, width // LANES))


def column(x_1T):
    """(1, T) as (T, LANES), the same in every lane."""
    return jnp.broadcast_to(x_1T, (LANES, x_1T.shape[1])).T


def by_case(entry, place: Place, sides: Tile, compute: Callable) -> None:
    """compute(mask) of a tile of `sides` (in a line, along it): mask(scores, at) drops scores of the rows from `at`[0]
    and the columns from `at`[1] on, and of a whole tile none."""
    line, along = place_of(entry)
    apart = line * sides.block_q - along * sides.block_kv

    def masked(scores, at):
        down, right = (lax.broadcasted_iota(jnp.int32, scores.shape, axis) + at[axis] for axis in (0, 1))
        distance = right - down
        return jnp.where((distance >= place.low + apart) & (distance <= place.high + apart), scores, DROPPED)

    pl.when(entry & MASKED == 0)(partial(compute, lambda scores, at: scores))
    pl.when(entry & MASKED != 0)(partial(compute, masked))


def forward_kernel(order, places, q, k, v, *refs, tile):
    state, after, slots, (top, total, arrivals, departures) = refs[:3], refs[3:6], refs[6:9], refs[9:]
    (head, step, g), group = map(pl.program_id, range(3)), pl.num_programs(2)
    entry, place = order[step], Place(*(places[at] for at in range(len(Place._fields))))
    line, _ = place_of(entry)
    held = Held(head, tile.block_q, place, (2, 3, 3), state, after, slots, arrivals, departures)
    out, most, summed = (x.at[line & 1, g] for x in slots)

    @pl.when(entry & BEGINS != 0)
    def begin():
        pl.when(g == 0)(partial(held.begin, line))
        top[g] = column(most[...] * LOG2_E)
        first_lane = lax.broadcasted_iota(jnp.int32, total.shape[1:], 1) == 0
        total[g] = jnp.where(first_lane, column(summed[...]), 0)

    def compute(mask):
        at_once = math.gcd(tile.block_kv, COMPUTE)
        for at in range(0, tile.block_kv, at_once):
            k_SH, v_SH = k[at : at + at_once], v[at : at + at_once]
            s_TS = mask(dot(q[g], k_SH, ABT), (0, at))
            before_TC = top[g]
            top_TC = jnp.maximum(before_TC, s_TS.max(1, keepdims=True))
            p_TS, decay_TC = jnp.exp2(s_TS - spread(top_TC, at_once)), jnp.exp2(before_TC - top_TC)
            total[g] = sum(jnp.split(p_TS, at_once // LANES, axis=1), total[g] * decay_TC)
            out[...] = out[...] * spread(decay_TC, out.shape[1]) + dot(p_TS.astype(v.dtype), v_SH, AB)
            top[g] = top_TC

    by_case(entry, place, tile, compute)

    @pl.when(entry & ENDS != 0)
    def end():
        most[...] = top[g].T[:1] / LOG2_E
        summed[...] = total[g].T.sum(0, keepdims=True)
        pl.when(g == group - 1)(partial(held.end, line))


def backward_kernel(order, places, q, k, v, dout, lse, delta, *refs, tile, scale):
    """Scores are those of keys with queries, so what belongs to a query is the same in every row of them."""
    (dq_in, *before), (dq_out, *after), slots, (dq, dq_copied, *copied) = refs[:3], refs[3:6], refs[6:8], refs[8:]
    (head, step, g), (_, steps, group) = map(pl.program_id, range(3)), map(pl.num_programs, range(3))
    entry, place = order[step], Place(*(places[at] for at in range(len(Place._fields))))
    line, along = place_of(entry)
    held = Held(head, tile.block_kv, place, (1, 1), before, after, slots, *copied)
    dk, dv = (x.at[line & 1] for x in slots)

    def rows(array):
        return array.at[head, :, pl.ds(place.along * tile.block_q, dq.shape[1])]

    def move(start, end):
        copy = pltpu.make_async_copy(start, end, dq_copied)
        copy.start()
        copy.wait()

    @pl.when((step == 0) & (g == 0))
    def take_queries():
        move(rows(dq_in), dq)
        dq[...] /= scale

    @pl.when((entry & BEGINS != 0) & (g == 0))
    def begin():
        held.begin(line)
        dk[...] *= LOG2_E

    def compute(mask):
        own, at_once = pl.ds(along * tile.block_q, tile.block_q), math.gcd(tile.block_kv, COMPUTE)
        for at in range(0, tile.block_kv, at_once):
            keys = slice(at, at + at_once)
            p_ST = jnp.exp2(mask(dot(k[keys], q[...], ABT), (at, 0)) - lse[...])
            dv[keys] += dot(p_ST.astype(dout.dtype), dout[...], AB)
            ds_ST = (p_ST * (dot(v[keys], dout[...], ABT) - delta[...])).astype(q.dtype)
            dk[keys] += dot(ds_ST, q[...], AB)
            dq[g, own] += dot(ds_ST, k[keys], ATB)

    by_case(entry, place, Tile(tile.block_kv, tile.block_q), compute)

    @pl.when((entry & ENDS != 0) & (g == group - 1))
    def end():
        dk[...] /= LOG2_E
        held.end(line)

    @pl.when((step == steps - 1) & (g == group - 1))
    def give_queries():
        dq[...] *= scale
        move(dq, rows(dq_out))


class Lines(NamedTuple):
    """The grid over the live tiles of a rectangle: rows of tiles of all heads of a group, or `by_columns` columns of
    them, where a step reads the queries of one head."""

    band: Rectangle
    tile: Tile
    by_columns: bool

    @property
    def turned(self) -> tuple[Rectangle, Tile]:
        """The rectangle and its tile with lines for rows."""
        if not self.by_columns:
            return self.band, self.tile
        row, col, rows, cols, low, high, _ = self.band
        return Rectangle(col, row, cols, rows, -high, -low), Tile(self.tile.block_kv, self.tile.block_q)

    def spec(self, kind: str, group: int, width: int) -> pl.BlockSpec:
        """What a step fetches of queries (L, G, T, H), of a number a query (L, G, 1, T), or of keys (L, S, H)."""
        heads, (block_q, block_kv) = None if self.by_columns else group, self.tile

        def at(axis: int, step, order, places):
            return places[axis] + place_of(order[step])[axis]

        def queries(h, step, g, order, places):
            return h, g if self.by_columns else 0, at(int(self.by_columns), step, order, places), 0

        def numbers(h, step, g, order, places):
            return h, g if self.by_columns else 0, 0, at(int(self.by_columns), step, order, places)

        def keys(h, step, g, order, places):
            return h, at(int(not self.by_columns), step, order, places), 0

        if kind == "numbers":
            return pl.BlockSpec((None, heads, 1, block_q), numbers)
        if kind == "keys":
            return pl.BlockSpec((None, block_kv, width), keys)
        return pl.BlockSpec((None, heads, block_q, width), queries)

    def run(self, kernel: Callable, name: str, kinds: str, scratch: list, arrays, carried) -> tuple:
        """The carried arrays after a kernel has run over the tiles; in place, and untouched where none lives."""
        band, sides = self.turned
        order, count = live_tiles(band, sides)
        corner = band.row // sides.block_q, band.col // sides.block_kv, band.low, band.high
        places = jnp.stack([jnp.asarray(x, jnp.int32) for x in Place(*corner, *row_tiles(band, sides))])
        heads, group, _, width = arrays[0].shape
        in_place = [pl.BlockSpec(memory_space=pl.ANY)] * len(carried)

        def call(interpret, order, count, places, *operands):
            return pl.pallas_call(
                partial(kernel, tile=self.tile),
                grid_spec=pltpu.PrefetchScalarGridSpec(
                    num_scalar_prefetch=2,
                    grid=(heads, count, group),
                    in_specs=[*(self.spec(kind, group, width) for kind in kinds.split()), *in_place],
                    out_specs=in_place,
                    scratch_shapes=scratch,
                ),
                out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in carried],
                input_output_aliases={2 + len(arrays) + at: at for at in range(len(carried))},
                compiler_params=pltpu.CompilerParams(
                    dimension_semantics=("parallel", "arbitrary", "arbitrary"), vmem_limit_bytes=VMEM_BYTES
                ),
                interpret=interpret,
                name=name,
            )(order, places, *operands)

        def live(carried):
            operands = order, count, places, *arrays, *carried
            return lax.platform_dependent(*operands, cpu=partial(call, INTERPRET), default=partial(call, False))

        return lax.cond(count > 0, live, tuple, tuple(carried))


def visit(bands, run, state):
    """state = run(band, state) for each rectangle; one compiled body serves them all."""
    table = jnp.stack([jnp.stack([jnp.asarray(x, jnp.int32) for x in (b.row, b.col, b.low, b.high)]) for b in bands])

    def turn(r, state):
        row, col, low, high = table[r]
        return run(bands[0]._replace(row=row, col=col, low=low, high=high), state)

    return turn(0, state) if len(bands) == 1 else lax.fori_loop(0, len(bands), turn, state)


def in_parts(bands, rows: int) -> list[Rectangle]:
    """Rectangles cut into ones of so many rows."""
    starts = range(0, bands[0].rows, rows)
    return [b._replace(row=b.row + at, rows=rows, low=b.low + at, high=b.high + at) for b in bands for at in starts]


def folded(x, kv_heads):
    """(B, N, T, H) as (L, G, T, H), and (B, N, T) as (L, G, 1, T)."""
    batch, heads, rows = x.shape[:3]
    return x.reshape(batch * kv_heads, heads // kv_heads, *((rows, x.shape[3]) if x.ndim == 4 else (1, rows)))


def scaled(q):
    return (q.astype(jnp.float32) * (q.shape[-1] ** -0.5 * LOG2_E)).astype(q.dtype)


def vmem(*shape):
    return pltpu.VMEM(shape, jnp.float32)


def slots_of(*shapes) -> tuple[list, list]:
    """Scratch of arrays that lines hold, and the semaphores of their copies."""
    return [vmem(2, *shape) for shape in shapes], [pltpu.SemaphoreType.DMA((2,))] * 2


def forward(q_BNTH, k_BKSH, v_BKSH, state, bands, tile):
    heads = k_BKSH.shape[1]
    q, *carried = (folded(x, heads) for x in (scaled(q_BNTH), *state))
    k, v = (x.reshape(-1, *x.shape[2:]) for x in (k_BKSH, v_BKSH))
    group, rows, width = q.shape[1], tile.block_q, q.shape[3]
    slots, copied = slots_of((group, rows, width), *[(group, 1, rows)] * 2)
    scratch = [*slots, *[vmem(group, rows, LANES)] * 2, *copied]

    def run(band, carried):
        lines = Lines(band, tile, by_columns=False)
        return lines.run(forward_kernel, "stripectl_forward", "queries keys keys", scratch, (q, k, v), carried)

    after = visit(bands, run, tuple(carried))
    return tuple(x.reshape(before.shape) for x, before in zip(after, state, strict=True))


def backward(q_BNTH, k_BKSH, v_BKSH, dout_BNTH, lse_BNT, delta_BNT, dq_BNTH, bands, tile):
    heads, dtype = k_BKSH.shape[1], q_BNTH.dtype
    lse = jnp.maximum(lse_BNT * LOG2_E, LEAST)
    queries = scaled(q_BNTH), dout_BNTH.astype(dtype), lse, delta_BNT, dq_BNTH
    q, dout, lse, delta, dq = (folded(x, heads) for x in queries)
    k, v = (x.reshape(-1, *x.shape[2:]) for x in (k_BKSH, v_BKSH))
    group, width = q.shape[1], q.shape[3]
    rows = fitting(bands[0].rows, tile.block_q, DQ_BYTES // (group * max(width, LANES) * 4))
    slots, copied = slots_of(*[(tile.block_kv, width)] * 2)
    scratch = [*slots, vmem(group, rows, width), pltpu.SemaphoreType.DMA, *copied]
    kernel = partial(backward_kernel, scale=width**-0.5)

    def run(band, grads):
        lines, kinds = Lines(band, tile, by_columns=True), "queries keys keys queries numbers numbers"
        return lines.run(kernel, "stripectl_backward", kinds, scratch, (q, k, v, dout, lse, delta), grads)

    zeros = (jnp.zeros(x.shape, jnp.float32) for x in (k, v))
    grads = visit(in_parts(bands, rows), run, (dq, *zeros))
    return tuple(x.reshape(like.shape) for x, like in zip(grads, (q_BNTH, k_BKSH, v_BKSH), strict=True))


def fitting(rows: int, unit: int, most: int) -> int:
    """The most rows that divide `rows`, are a multiple of `unit`, and are no more than `most` or one unit."""
    return next(size for size in range(max(unit, min(rows, most) // unit * unit), 0, -unit) if rows % size == 0)
