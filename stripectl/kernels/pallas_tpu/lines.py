"""A kernel's grid: the live tiles of a pair of shards, listed before it runs by arithmetic on the bands.

Rows that the tile does not divide are padded to it (`padding`). Tiles of padded queries are computed like others; tiles
with the last key are masked, and drop the padded keys.

A line is a row of tiles through all adjacent rectangles, or, by columns, a column of tiles. Its accumulators are read
once and written once, so copies never conflict. Lines without a live tile are omitted, and the other lines numbered. An
entry of the list says which tile of which line it is, whether it begins or ends its line, and whether it needs a mask.
The list is prefetched, and the grid is as long as the list.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from stripectl.core.layout import UNBOUNDED, Bands, Index, MaskBlock, Tile
from stripectl.core.mask_tiles import column_tiles, row_tiles
from stripectl.kernels.pallas_tpu import INDEX_BITS
from stripectl.kernels.xla.kernel import Arrays

LISTED = 2**15  # tiles in a list, so that it fits in a core's scalar memory
MASKED, BEGINS, ENDS = 4, 2, 1  # bits of a tile's entry


def tiles_of(bands: MaskBlock, tile: Tile) -> tuple[int, int]:
    """(rows of tiles, columns of tiles) of a rectangle."""
    return -(-bands.rows // tile.block_q), -(-bands.cols // tile.block_kv)


def live_tiles(bands: MaskBlock, tile: Tile) -> tuple[Any, Any, Any]:
    """(entries, count, lines): the live tiles of P x Q rectangles (low and high are (P, Q)), line by line, and the
    ascending numbers of the lines that have live tiles, with a smaller number behind the last."""
    beside, (rows, cols) = bands.low.shape[1], tiles_of(bands, tile)
    spread = bands._replace(low=bands.low[:, None], high=bands.high[:, None])
    index = jnp.arange(rows, dtype=jnp.int32)[:, None]
    first, last = row_tiles(spread, tile)
    a, b, c, d = column_tiles(spread, tile, index * tile.block_q)
    live = jnp.where((index >= first) & (index < last), d - a, 0)
    in_line, ends = live.sum(-1).reshape(-1), jnp.cumsum(live)
    line_ends = ends[beside - 1 :: beside]
    a, b, c = ((x + jnp.arange(beside, dtype=jnp.int32) * cols).reshape(-1) for x in (a, b, c))
    step = jnp.arange(ends.size * cols, dtype=jnp.int32)
    behind = jnp.searchsorted(ends, step, side="right", method="compare_all")  # one program; a search has several
    part = jnp.minimum(behind, ends.size - 1).astype(jnp.int32)
    line = part // beside
    along = jnp.minimum((a - ends + live.reshape(-1))[part] + step, beside * cols - 1)
    masked = (along < b[part]) | (along >= c[part]) | ((line % rows + 1) * tile.block_q > bands.rows)
    flags = masked * MASKED + (step == (line_ends - in_line)[line]) * BEGINS + (step == line_ends[line] - 1) * ENDS
    number = jnp.maximum(jnp.cumsum(in_line > 0) - 1, 0)
    (lines,) = jnp.nonzero(in_line, size=in_line.size + 1, fill_value=-1)
    along = along + bands.col // tile.block_kv
    return (((number[line] << INDEX_BITS) + along) << 3) + flags, ends[-1], lines + bands.row // tile.block_q


def place_of(entry: Index) -> tuple[Index, Index]:
    """(number of the line, place in the line) of an entry."""
    return entry >> 3 + INDEX_BITS, (entry >> 3) & (1 << INDEX_BITS) - 1


class TileList(NamedTuple):
    """A list as kernels prefetch it, with all places counted within the pair of shards: the entries and their count,
    the live lines, the line and the place in it where the list begins, and (low, high) of each rectangle. A rectangle
    has `each` lines and tiles per line, and `beside` rectangles share lines. Its `keys` lie along the lines, or, with
    `by_columns`, across them. Where `on_diagonal`, masked tiles are squares on the mask's diagonal."""

    order: Any
    count: Any
    lines: Any
    corner: Any
    bands: Any
    sides: Tile
    each: tuple[int, int]
    beside: int
    keys: int
    by_columns: bool
    on_diagonal: bool

    def at(self, step: Index) -> tuple[Any, Any]:
        """(line, tile in the line) of a step."""
        number, along = place_of(self.order[step])
        return self.lines[number], along

    def band(self, step: Index) -> tuple[Any, Any]:
        """(low, high) of the tile of a step, relative to its corner."""
        line, along = self.at(step)
        down, right = (lax.div(x, each) for x, each in zip(self.inside(step), self.each, strict=True))
        rectangle = down * self.beside + right
        apart = line * self.sides.block_q - along * self.sides.block_kv
        return self.bands[2 * rectangle] + apart, self.bands[2 * rectangle + 1] + apart

    def inside(self, step: Index) -> tuple[Any, Any]:
        """(line, tile in the line) of a step, counted from the corner."""
        line, along = self.at(step)
        return line - self.corner[0], along - self.corner[1]

    def keys_left(self, step: Index) -> Any:
        """How many keys of its rectangle lie at or behind the first key of the tile of a step, where the tile does not
        divide them; else None."""
        axis = int(not self.by_columns)
        side = self.sides.sides[axis]
        return self.keys - lax.rem(self.inside(step)[axis], self.each[axis]) * side if self.keys % side else None


def visit_stripes(stripes: MaskBlock, run: Callable, state: Arrays) -> Arrays:
    """state = run(stripe, state) for each stripe; one compiled body serves them all."""
    count, together, _ = stripes.low.shape

    def turn(at: Index, state: Arrays) -> Arrays:
        row = at * together * stripes.rows
        return run(stripes._replace(row=row, low=stripes.low[at], high=stripes.high[at]), state)

    return turn(0, state) if count == 1 else lax.fori_loop(0, count, turn, state)


def in_stripes(bands: Bands, tile: Tile, most: int = UNBOUNDED) -> MaskBlock:
    """The rectangles of a pair of shards, which fill it row by row, as stripes of at most `most` rows, or of one row of
    tiles, whose lists fit. Low and high are (stripes, P, Q), and rows are a rectangle's, padded to the tile; a stripe
    holds P rectangles above each other, or a part of one rectangle. Where no number of lines divides the rectangles
    well, each line is a rectangle of its own, and the last stripe ends in dead lines."""
    beside, (whole, across) = len({b.col for b in bands}), tiles_of(bands[0], tile)
    total = whole * len(bands) // beside
    fitting = max(1, min(total, most // tile.block_q, LISTED // (beside * across)))
    stripes = -(-total // fitting)
    lines = next(n for n in range(fitting, 0, -1) if total % n == 0 and (whole % n == 0 or n % whole == 0))
    each = min(whole, lines)
    if total // lines > stripes:
        lines, each = -(-total // stripes), 1
    starts = jnp.arange(0, whole, each, dtype=jnp.int32)[:, None] * tile.block_q

    def stacked(of_band: Iterable[Index]) -> Array:
        spread = jnp.stack([jnp.asarray(x, jnp.int32) for x in of_band]).reshape(-1, 1, beside) + starts
        flat, dead = spread.reshape(-1, beside), -total % lines
        filled = jnp.pad(flat, ((0, dead), (0, 0)), constant_values=-UNBOUNDED)
        return filled.reshape(-1, lines // each, beside)

    low, high = stacked(b.low for b in bands), stacked(b.high for b in bands)
    return MaskBlock(0, 0, each * tile.block_q, bands[0].cols, low, high, aligned=bands[0].aligned)
