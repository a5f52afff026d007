"""The grid of a kernel: the live tiles of a rectangle, listed ahead of it by arithmetic on the band.

A line is a row of tiles, or by columns a column of them. An entry of the list says which tile of which line it is,
whether it begins or ends its line, and whether it needs its mask. The list is prefetched, and the grid as long as it.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from stripectl.layout import UNBOUNDED, Rectangle, Tile, column_tiles, row_tiles

LISTED = 2**15  # tiles of a list, which a core's scalar memory holds
INDEX_BITS = 14  # of a tile in a line, and of a line
MASKED, BEGINS, ENDS = 4, 2, 1  # bits of a tile's entry
VMEM_BYTES = 64 * 2**20  # that a kernel may use, where a core has as many
INTERPRET: Any = True  # how a CPU runs the kernels: as plain JAX, or by the rules of TPU interpret mode


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


def in_parts(bands, tile: Tile, most: int = UNBOUNDED) -> list[Rectangle]:
    """Rectangles cut into ones of at most so many rows, or of one row of tiles, whose lists fit."""
    listed = LISTED // (bands[0].cols // tile.block_kv) * tile.block_q
    sizes = range(max(tile.block_q, min(bands[0].rows, most, listed) // tile.block_q * tile.block_q), 0, -tile.block_q)
    rows = next(size for size in sizes if bands[0].rows % size == 0)
    starts = range(0, bands[0].rows, rows)
    return [b._replace(row=b.row + at, rows=rows, low=b.low + at, high=b.high + at) for b in bands for at in starts]
