"""The tiles of a block of scores that are whole, boundary or dead, and the pairs of queries and keys that a mask keeps:
arithmetic on the band of a block, for ints, NumPy arrays and JAX tracers.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from stripectl.core.layout import Index, MaskBlock, Tile


class TileCount(NamedTuple):
    """Tiles of a pair of shards by kind. Only dead tiles are not computed; `rows` counts the rows of tiles that are
    visited, each of which loads and stores the accumulators once. Where a kernel's thread blocks share the processors
    of a GPU, `busiest` counts the tiles of the busiest processor, over all heads, with the starts of its thread
    blocks as parts of tiles, and `calls` counts calls of the kernel."""

    whole: Index
    boundary: Index
    dead: Index
    rows: Index
    busiest: Index = 0
    calls: Index = 0

    @property
    def computed(self) -> Index:
        return self.whole + self.boundary


def is_live(band: MaskBlock, query: Index, key: Index, limits: Sequence[Any] | None = None) -> Any:
    """Whether the band keeps a key for a query, both counted inside the rectangle; `limits` are the query's own."""
    live = (key >= query + band.low) & (key <= query + band.high)
    return live if limits is None else live & (key >= limits[0]) & (key < limits[1])


def clip(value: Index, least: Index, most: Index | None) -> Index:
    """`value` within [least, most], for ints, arrays and tracers (arrays have their own `clip`)."""
    if hasattr(value, "clip"):
        return value.clip(least, most)
    return max(least, value if most is None else min(value, most))


def quotient(value: Index, by: int) -> Index:
    """value // by, and 0 for a negative value. A tracer is divided as an unsigned number: rounding a signed quotient
    down takes ten more operations."""
    value = clip(value, 0, None)
    if getattr(value, "dtype", None) == np.int32:
        return (value.astype(np.uint32) // by).astype(np.int32)
    return value // by


def quotient_and_remainder(value: Index, by: int) -> tuple[Index, Index]:
    """divmod(value, by) of a value that is not negative."""
    found = quotient(value, by)
    return found, value - found * by


def row_tiles(band: MaskBlock, tile: Tile) -> tuple[Index, Index]:
    """[first, last) of the rows of tiles that hold a live score."""
    count, side = -(-band.rows // tile.block_q), tile.block_q
    beyond = (-band.high >= band.rows) * (side - 1)  # no row is live: the result is past a ragged tile too
    first = clip(quotient(beyond - band.high, side), 0, count)
    return first, clip(quotient(band.cols - 1 - band.low + side, side), first, count)


def column_tiles(
    band: MaskBlock, tile: Tile, row: Index, limits: Sequence[Index] | None = None
) -> tuple[Index, Index, Index, Index]:
    """(a, b, c, d) for a live row of tiles whose first query is `row`: tiles [a, d) hold a live score, tiles [b, c)
    hold only live scores (and need no mask), and the rest of the row is dead. `limits` belong to the row's first and
    last query: (first, first, end, end). Rows and columns that are not multiples of the tile end in a ragged tile,
    which always needs its mask."""
    count, side = -(-band.cols // tile.block_kv), tile.block_kv
    last = clip(row + tile.block_q, 0, band.rows) - 1
    a = clip(quotient(row + band.low, side), 0, count)
    d = clip(quotient(last + band.high + side, side), a, count)
    b = clip(quotient(last + band.low + side - 1, side), a, d)
    c = clip(clip(quotient(row + band.high + 1, side), 0, band.cols // side), b, d)
    if limits is None:
        return a, b, c, d
    first, latest_first, earliest_end, end = (clip(column, 0, band.cols) for column in limits)
    a = clip(quotient(first, side), a, d)
    d = clip(quotient(end + side - 1, side), a, d)
    b = clip(quotient(latest_first + side - 1, side), clip(b, a, d), d)
    return a, b, clip(quotient(earliest_end, side), b, clip(c, b, d)), d


def count_tiles(bands: list[MaskBlock], tile: Tile, padded: bool = False) -> TileCount:
    """Tiles of a pair of shards by kind. `low` and `high` may be arrays over devices; the counts then are too. Limits
    are at `tile_ends`. Where the kernel pads rows to the tile, a padded query is like any other."""
    whole = boundary = dead = visited = np.int64(0)
    for band in bands:
        if padded:
            band = band._replace(rows=-(-band.rows // tile.block_q) * tile.block_q)
        else:
            tile = Tile(min(tile.block_q, band.rows), min(tile.block_kv, band.cols))
        rows, columns = -(-band.rows // tile.block_q), -(-band.cols // tile.block_kv)
        shape = np.broadcast_shapes(np.shape(band.low), np.shape(band.high))
        low, high, each = _distinct(band, tile, shape)
        spread, index = band._replace(low=low[..., None], high=high[..., None]), np.arange(rows)
        first, last = row_tiles(spread, tile)
        visit = (index >= first) & (index < last)
        a, b, c, d = column_tiles(spread, tile, index * tile.block_q, row_limits(band))
        live = np.where(visit, d - a, 0)
        unmasked = np.where(visit & ((index + 1) * tile.block_q <= band.rows), c - b, 0)
        whole = whole + unmasked.sum(-1)[each]
        boundary = boundary + (live - unmasked).sum(-1)[each]
        dead = dead + rows * columns - live.sum(-1)[each]
        visited = visited + visit.sum(-1)[each]
    return TileCount(whole, boundary, dead, visited)


def _distinct(band: MaskBlock, tile: Tile, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray, Any]:
    """(low, high, the index of each device's pair in them). Most pairs of shards are whole or dead, however far apart
    they are, so a few distinct edges cover all devices. Where rows have limits, every device has its own edges."""
    low, high = (np.broadcast_to(x, shape).astype(np.int64) for x in (band.low, band.high))
    if band.limits is not None or low.ndim == 0:
        return low, high, ...
    low = np.clip(low, -band.rows, band.cols + tile.block_kv)
    high = np.clip(high, -band.rows, band.cols)
    width = band.rows + band.cols + tile.block_kv + 1
    known, each = np.unique((low + band.rows) * width + high + band.rows, return_inverse=True)
    return known // width - band.rows, known % width - band.rows, each.reshape(shape)


def tile_ends(tile: Tile) -> Callable[[int], np.ndarray]:
    """A function of a number of rows: the first rows of all rows of tiles, then the last; only their limits count."""

    def ends(rows: int) -> np.ndarray:
        begin = np.arange(0, rows, tile.block_q)
        return np.concatenate([begin, np.minimum(begin + tile.block_q, rows) - 1])

    return ends


def row_limits(band: MaskBlock) -> list[np.ndarray] | None:
    """Limits of the first and the last query of every row of tiles, as `column_tiles` takes them."""
    return band.limits and [part for limit in band.limits for part in np.split(limit, 2, axis=-1)]


def count_pairs(bands: list[MaskBlock]) -> Index:
    """Live query/key pairs of a pair of shards: the pairs that the mask keeps, independent of the tile."""
    return sum((_pairs(band) if band.limits is None else _limited_pairs(band) for band in bands), np.int64(0))


def _pairs(band: MaskBlock) -> Index:
    def ramp(x: Index) -> Index:
        """The sum of all integers up to x, with x within [0, cols]."""
        inside = np.clip(x, 0, band.cols)
        return inside * (inside + 1) // 2 + np.maximum(x - band.cols, 0) * band.cols

    def up_to(high: Index) -> Index:
        """Pairs with j <= i + high: the sum over queries of i + high + 1, within [0, cols]."""
        return ramp(high + band.rows) - ramp(high)

    return up_to(np.asarray(band.high, np.int64)) - up_to(np.asarray(band.low, np.int64) - 1)


def _limited_pairs(band: MaskBlock) -> Index:
    assert band.limits
    index, (first, end) = np.arange(band.rows), band.limits
    low, high = (np.asarray(x, np.int64)[..., None] for x in (band.low, band.high))
    begin = np.maximum(np.clip(first, 0, band.cols), index + low)
    return np.maximum(0, np.minimum(np.clip(end, 0, band.cols), index + high + 1) - begin).sum(-1)
