"""A layout says which positions of the sequence a shard holds; everything about masks follows from this.

A shard is one or more *pieces* of equal length whose positions are evenly spaced: first, first + step, first + 2 step.
All pieces of a layout have the same step, so between a piece of queries and a piece of keys a mask that looks `left`
and `right` of each query is a *band*: query i keeps key j where i + low <= j <= i + high. Two numbers per pair of
pieces cover every layout, causal and full masks, sliding windows and cached prefixes, and whether a tile is whole,
boundary or dead is arithmetic on them. This arithmetic works on ints, NumPy arrays and JAX tracers.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from stripectl.util.files import Catalogue

UNBOUNDED = 2**30  # no position is larger, and with a row or column added it still fits 32 bits
Index = Any  # an int, a NumPy array (all shards at once) or a tracer
Documents = Callable[[Index], tuple[Index, Index]]  # positions -> first position of their documents, and past the last
WHOLE = (0, 1)  # the part that is all of a shard's keys


class Window(NamedTuple):
    """How far a query sees: keys from `left` positions before it to `right` after it; None means no limit."""

    left: int | None
    right: int | None

    @property
    def sees_future(self) -> bool:
        """Whether queries see all keys after them."""
        return self.right is None


MASKS = {"causal": Window(None, 0), "full": Window(None, None)}


class MaskBlock(NamedTuple):
    """A piece of queries against a piece of keys: rows x cols scores from (row, col) of the pair of shards. Query i
    keeps key j (both counted inside the rectangle) where i + low <= j <= i + high. With `limits` (first, end), which
    hold one value per row and never decrease, it also needs first[i] <= j < end[i]."""

    row: Index
    col: Index
    rows: int
    cols: int
    low: Index
    high: Index
    limits: tuple[Any, Any] | None = None


class Tile(NamedTuple):
    """The block of scores for which a kernel fetches queries and keys: `2048x4096`; `1024` means `1024x1024`. The third
    side, as in `2048x4096x512`, is the number of keys that the kernel multiplies at once; None is the kernel's usual
    number."""

    block_q: int
    block_kv: int
    block_kv_compute: int | None = None

    def __str__(self) -> str:
        return "x".join(str(side) for side in self if side is not None)

    @property
    def sides(self) -> tuple[int, int]:
        """(queries, keys)."""
        return self.block_q, self.block_kv

    @property
    def scores(self) -> int:
        return self.block_q * self.block_kv

    @property
    def scores_at_once(self) -> int:
        """The scores of the keys that are multiplied at once."""
        return self.block_q * (self.block_kv_compute or self.block_kv)

    def distance(self, other: "Tile") -> float:
        """The distance between two tiles, in the logarithms of their sides. Two third sides count where both are
        known."""
        pairs = [*zip(self.sides, other.sides, strict=True)]
        if self.block_kv_compute and other.block_kv_compute:
            pairs.append((self.block_kv_compute, other.block_kv_compute))
        return sum(abs(math.log2(a / b)) for a, b in pairs)


class TileCount(NamedTuple):
    """Tiles of a pair of shards by kind. Only dead tiles are not computed; `rows` counts the rows of tiles that are
    visited, each of which loads and stores the accumulators once. Where a kernel's thread blocks share the processors
    of a GPU, `busiest` counts the tiles of the busiest processor, over all heads, and `calls` counts calls of the
    kernel."""

    whole: Index
    boundary: Index
    dead: Index
    rows: Index
    busiest: Index = 0
    calls: Index = 0

    @property
    def computed(self) -> Index:
        return self.whole + self.boundary


@dataclass(frozen=True)
class Layout:
    """Which positions each shard holds.

    `firsts(shard, shards, rows)` gives the first position of each piece, in the order in which the shard stores them;
    `step(shards)` is the distance between neighbours in a piece; `pieces` is the number of pieces.
    """

    name: str
    paper: str
    firsts: Callable[[Index, int, int], tuple[Index, ...]]
    step: Callable[[int], int]
    pieces: int = 1

    def why_unsupported(self, seq_len: int, shards: int) -> str | None:
        """Why a sequence cannot be laid out on `shards` shards, or None."""
        parts = shards * self.pieces
        if seq_len % parts == 0:
            return None
        near = max(parts, round(seq_len / parts) * parts)
        needs = "rows that divide evenly" if self.pieces == 1 else f"a multiple of {self.pieces} rows per shard"
        each = f"{seq_len} over {shards} shards gives {seq_len / shards:.10g}"
        return f"{self.name} needs {needs}; {each}. Try --seqlen {near}."

    def positions(self, shards: int, rows: int) -> np.ndarray:
        """int64[shards, rows]: the position of each row of each shard."""
        spaced = np.arange(rows // self.pieces) * self.step(shards)
        firsts = [np.array(self.firsts(shard, shards, rows))[:, None] for shard in range(shards)]
        return np.stack([(first + spaced).reshape(rows) for first in firsts])

    def run_places(self, shard: Index, shards: int) -> tuple[Index, ...]:
        """The place of each piece of a shard among all pieces of the sequence, where pieces are adjacent positions."""
        return self.firsts(shard, shards, self.pieces)

    def runs_before(self, run: int, shards: int) -> list[tuple[int, int] | None]:
        """For every shard the (shard, piece) that holds the positions before its piece `run`; None before the first."""
        places = [self.run_places(shard, shards) for shard in range(shards)]
        held = {place: (shard, piece) for shard, own in enumerate(places) for piece, place in enumerate(own)}
        return [held.get(own[run] - 1) for own in places]

    def permutation(self, shards: int, seq_len: int) -> np.ndarray:
        """int64[seq_len]: sharded = natural[permutation]."""
        return self.positions(shards, seq_len // shards).reshape(seq_len)

    def inverse(self, shards: int, seq_len: int) -> np.ndarray:
        """int64[seq_len]: natural = sharded[inverse]."""
        return np.argsort(self.permutation(shards, seq_len))


def is_live(band: MaskBlock, query: Index, key: Index, limits: Sequence[Any] | None = None) -> Any:
    """Whether the band keeps a key for a query, both counted inside the rectangle; `limits` are the query's own."""
    live = (key >= query + band.low) & (key <= query + band.high)
    return live if limits is None else live & (key >= limits[0]) & (key < limits[1])


def clip(value: Index, least: Index, most: Index) -> Index:
    """`value` within [least, most], for ints, arrays and tracers (arrays have their own `clip`)."""
    return value.clip(least, most) if hasattr(value, "clip") else max(least, min(value, most))


def row_tiles(band: MaskBlock, tile: Tile) -> tuple[Index, Index]:
    """[first, last) of the rows of tiles that hold a live score."""
    count = -(-band.rows // tile.block_q)
    beyond = (-band.high >= band.rows) * (tile.block_q - 1)  # no row is live: the result is past a ragged tile too
    first = clip((beyond - band.high) // tile.block_q, 0, count)
    return first, clip((band.cols - 1 - band.low) // tile.block_q + 1, first, count)


def column_tiles(
    band: MaskBlock, tile: Tile, row: Index, limits: Sequence[Index] | None = None
) -> tuple[Index, Index, Index, Index]:
    """(a, b, c, d) for a live row of tiles whose first query is `row`: tiles [a, d) hold a live score, tiles [b, c)
    hold only live scores (and need no mask), and the rest of the row is dead. `limits` belong to the row's first and
    last query: (first, first, end, end). Rows and columns that are not multiples of the tile end in a ragged tile,
    which always needs its mask."""
    count = -(-band.cols // tile.block_kv)
    last = clip(row + tile.block_q, 0, band.rows) - 1
    a = clip((row + band.low) // tile.block_kv, 0, count)
    d = clip((last + band.high) // tile.block_kv + 1, a, count)
    b = clip(-(-(last + band.low) // tile.block_kv), a, d)
    c = clip(clip((row + band.high + 1) // tile.block_kv, 0, band.cols // tile.block_kv), b, d)
    if limits is None:
        return a, b, c, d
    first, latest_first, earliest_end, end = (clip(column, 0, band.cols) for column in limits)
    a = clip(first // tile.block_kv, a, d)
    d = clip(-(-end // tile.block_kv), a, d)
    b = clip(-(-latest_first // tile.block_kv), clip(b, a, d), d)
    return a, b, clip(earliest_end // tile.block_kv, b, clip(c, b, d)), d


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


@dataclass(frozen=True)
class SequenceSharding:
    """`shards` of `rows` keys each. Queries are the last positions. They are sharded by the layout too, `query_rows`
    per shard; otherwise every shard has all of them, in one piece."""

    layout: Layout
    window: Window
    shards: int
    rows: int
    query_rows: int
    shards_queries: bool = True

    @classmethod
    def square(cls, layout: Layout, window: Window, shards: int, rows: int) -> "SequenceSharding":
        """The sharding of as many queries as keys."""
        return cls(layout, window, shards, rows, rows)

    @property
    def runs(self) -> int:
        """The number of runs of adjacent positions of a shard."""
        return self.layout.pieces if self.shards > 1 else 1

    @property
    def query_piece(self) -> int:
        """The number of rows in a piece of queries."""
        return self.query_rows // self.layout.pieces if self.shards_queries else self.query_rows

    @property
    def key_piece(self) -> int:
        return self.rows // self.layout.pieces

    def orders(self) -> tuple[np.ndarray, np.ndarray]:
        """int64 (queries, keys), such that stored = natural[order]."""
        keys = self.layout.permutation(self.shards, self.shards * self.rows)
        if not self.shards_queries:
            return np.arange(self.query_rows), keys
        return self.layout.permutation(self.shards, self.shards * self.query_rows), keys

    def bands(
        self,
        me: Index,
        src: Index,
        part: tuple[int, int] = WHOLE,
        documents: Documents | None = None,
        rows: Callable[[int], np.ndarray] = np.arange,
    ) -> list[MaskBlock]:
        """The rectangles of queries of shard `me` against keys of shard `src`, or against part i of n equal parts of
        its rows, `part` = (i, n), which must divide every piece evenly. With documents they hold the limits of the
        given `rows` of a piece, by default all."""
        step, size = self.layout.step(self.shards), self.query_piece
        before = self.shards * self.rows - self.query_rows * (self.shards if self.shards_queries else 1)
        queries = self.layout.firsts(me, self.shards, self.query_rows) if self.shards_queries else (0,)
        keys, cols = self._keys(src, part)
        found = list[MaskBlock]()
        for i, query in enumerate(queries):
            query = query + before
            for j, key in enumerate(keys):
                low = -UNBOUNDED if self.window.left is None else -((key - query + self.window.left) // step)
                high = UNBOUNDED if self.window.right is None else (query - key + self.window.right) // step
                limits = None
                if documents is not None:
                    edges = documents(with_rows(query) + step * rows(size))
                    limits = tuple(-((with_rows(key) - edge) // step) for edge in edges)
                found.append(MaskBlock(i * size, j * cols, size, cols, low, high, limits))
        return found

    def _keys(self, src: Index, part: tuple[int, int]) -> tuple[list[Index], int]:
        """(the first position of each piece, or part of a piece, of the keys; the number of its keys)."""
        (index, parts), pieces = part, self.layout.pieces
        firsts, size = self.layout.firsts(src, self.shards, self.rows), self.rows // pieces
        if parts <= pieces:
            return list(firsts[index * pieces // parts : (index + 1) * pieces // parts]), size
        each = parts // pieces
        cols = size // each
        return [firsts[index // each] + self.layout.step(self.shards) * (index % each) * cols], cols

    def rounds(self, by: int = 1) -> int:
        """The number of rounds of a ring up to the last with a live score on any device, where keys travel `by` = 1
        place forward or -1 backward per round."""
        me = np.arange(self.shards)
        last_first = reversed(range(self.shards))
        live = (hop for hop in last_first if np.any(count_pairs(self.bands(me, (me - by * hop) % self.shards))))
        return next(live, 0) + 1


def with_rows(first: Index) -> Index:
    """First positions, of one shard or of many, with an added dimension for rows."""
    return first[..., None] if np.ndim(first) else first


layouts = Catalogue("stripectl.layouts", "layout", "layout")
