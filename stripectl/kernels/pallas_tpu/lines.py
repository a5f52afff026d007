"""The grid of a kernel: the live tiles of rectangles, listed ahead of it by arithmetic on their bands.

A line is a row of tiles, or by columns a column of them. An entry of the list says which tile of which line of which
rectangle it is, whether it begins or ends its line, and whether it needs its mask. The list is prefetched, and the grid
as long as it.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from stripectl.layout import UNBOUNDED, Rectangle, Tile, column_tiles, row_tiles

LISTED = 2**15  # tiles of a list, which a core's scalar memory holds
MASKED, BEGINS, ENDS = 4, 2, 1  # bits of a tile's entry
FLAGS = 3  # of them
VMEM_BYTES = 64 * 2**20  # that a kernel may use, where a core has as many
INTERPRET: Any = True  # how a CPU runs the kernels: as plain JAX, or by the rules of TPU interpret mode


class Place(NamedTuple):
    """Where a rectangle lies, as kernels prefetch it: lines and tiles before it, its band, and the lines that live."""

    line: Any
    along: Any
    low: Any
    high: Any
    first: Any
    last: Any


class Lines(NamedTuple):
    """The grid over the live tiles of rectangles that are alike: rows of tiles of all heads of a group, or `by_columns`
    columns of them, where a step reads the queries of one head."""

    bands: Sequence[Rectangle]
    tile: Tile
    by_columns: bool

    @property
    def sides(self) -> Tile:
        """Of a tile: in a line, along it."""
        return Tile(self.tile.block_kv, self.tile.block_q) if self.by_columns else self.tile

    @property
    def turned(self) -> Rectangle:
        """The rectangles with lines for rows, their places and bands in columns."""
        bands = self.bands
        if self.by_columns:
            bands = [Rectangle(b.col, b.row, b.cols, b.rows, -b.high, -b.low) for b in bands]
        row, col, low, high = (
            jnp.stack([jnp.asarray(x, jnp.int32) for x in each])[:, None]
            for each in zip(*((b.row, b.col, b.low, b.high) for b in bands), strict=True)
        )
        return Rectangle(row, col, bands[0].rows, bands[0].cols, low, high)

    @property
    def counts(self) -> tuple[int, int]:
        """(lines, tiles along one) of a rectangle."""
        rows, cols = self.bands[0].rows // self.tile.block_q, self.bands[0].cols // self.tile.block_kv
        return (cols, rows) if self.by_columns else (rows, cols)

    @property
    def shifts(self) -> tuple[int, int]:
        """Where in an entry its line and its rectangle begin."""
        lines, along = self.counts
        line = FLAGS + (along - 1).bit_length()
        return line, line + (lines - 1).bit_length()

    def place_of(self, entry) -> tuple[Any, Any, Any]:
        """(rectangle, line, tile in the line) of a tile."""
        line, rectangle = self.shifts
        return (
            entry >> rectangle,
            (entry >> line) & (1 << rectangle - line) - 1,
            (entry >> FLAGS) & (1 << line - FLAGS) - 1,
        )

    def live_tiles(self) -> tuple[Any, Any, Any]:
        """(entries, how many, places): the live tiles of the rectangles, line by line, and where those lie."""
        band, sides, (lines, along) = self.turned, self.sides, self.counts
        index = jnp.arange(lines, dtype=jnp.int32)
        first, last = row_tiles(band, sides)
        a, b, c, d = (x.reshape(-1) for x in column_tiles(band, sides, index * sides.block_q))
        live = jnp.where((index >= first) & (index < last), (d - a).reshape(-1, lines), 0).reshape(-1)
        ends = jnp.cumsum(live)
        step = jnp.arange(ends.size * along, dtype=jnp.int32)
        line = jnp.minimum(jnp.searchsorted(ends, step, side="right"), ends.size - 1).astype(jnp.int32)
        begin = ends[line] - live[line]
        at = jnp.minimum(a[line] + step - begin, along - 1)
        masked = (at < b[line]) | (at >= c[line])
        flags = masked * MASKED + (step == begin) * BEGINS + (step == ends[line] - 1) * ENDS
        to_line, to_rectangle = self.shifts
        order = ((line // lines) << to_rectangle) + ((line % lines) << to_line) + (at << FLAGS) + flags
        corner = band.row // sides.block_q, band.col // sides.block_kv, band.low, band.high
        return order, ends[-1], jnp.concatenate([*corner, first, last], axis=1).reshape(-1)

    def spec(self, kind: str, group: int, width: int) -> pl.BlockSpec:
        """What a step fetches of queries (L, G, T, H), of a number a query (L, G, 1, T), or of keys (L, S, H)."""
        heads, (block_q, block_kv) = None if self.by_columns else group, self.tile

        def at(axis: int, step, order, places):
            rectangle, *there = self.place_of(order[step])
            return places[rectangle * len(Place._fields) + axis] + there[axis]

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
        order, count, places = self.live_tiles()
        heads, group, _, width = arrays[0].shape
        in_place = [pl.BlockSpec(memory_space=pl.ANY)] * len(carried)

        def call(interpret, order, count, places, *operands):
            return pl.pallas_call(
                partial(kernel, lines=self),
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


def listed(bands, tile: Tile, most: int = UNBOUNDED) -> list[list[Rectangle]]:
    """Rectangles cut into ones of at most so many rows, or of one row of tiles, and dealt to lists that fit."""
    in_row, all_rows = bands[0].cols // tile.block_kv, bands[0].rows // tile.block_q
    fitting = max(1, min(all_rows, most // tile.block_q, LISTED // in_row))
    count = next(size for size in range(fitting, 0, -1) if all_rows % size == 0)
    rows = count * tile.block_q
    starts = range(0, bands[0].rows, rows)
    parts = [b._replace(row=b.row + at, rows=rows, low=b.low + at, high=b.high + at) for b in bands for at in starts]
    fitting = max(1, min(len(parts), LISTED // (in_row * count)))
    size = next(size for size in range(fitting, 0, -1) if len(parts) % size == 0)
    return [parts[at : at + size] for at in range(0, len(parts), size)]


def visit(lists: list[list[Rectangle]], run: Callable, state):
    """state = run(bands, state) for each list; one compiled body serves them all."""
    if len(lists) == 1:
        return run(lists[0], state)
    rows = [(b.row, b.col, b.low, b.high) for bands in lists for b in bands]
    table = jnp.stack([jnp.stack([jnp.asarray(x, jnp.int32) for x in row]) for row in rows])
    table = table.reshape(len(lists), -1, 4)

    def turn(at, state):
        places = zip(lists[0], table[at], strict=True)
        return run([b._replace(row=x[0], col=x[1], low=x[2], high=x[3]) for b, x in places], state)

    return lax.fori_loop(0, len(lists), turn, state)
