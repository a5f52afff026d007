"""Thread blocks of a GPU kernel on its processors: work is rounded up to waves.

A thread block computes a block of queries (in the backward pass, of keys) of one head with all its keys, tile by tile.
Before its first tile a block starts: it loads its queries and fills its pipeline, and in the end it stores its result.
A processor that has finished takes the next block in the order in which the kernel starts them: the blocks of one head,
then of the next. Eight heads of 256 queries therefore take as long as eight of 2,048 on a GPU of 132 processors.
"""

import heapq
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from stripectl.core.layout import MaskBlock, Tile
from stripectl.core.mask_tiles import column_tiles, row_limits, row_tiles

MAX_EXACT_BLOCKS = 64  # blocks per processor; beyond it, rounding up is less than 1 %


def busiest_processor(
    bands: Sequence[MaskBlock], block: Tile, heads: int, processors: int, start: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """(tiles of the processor with the most, calls of the kernel) on each device for a pair of shards; each rectangle
    with a live score is a call. The start of a block counts as `start` tiles."""
    tiles, calls = np.zeros(1), np.zeros(1, int)
    for band in bands:
        blocks = blocks_of(band, block)
        found = [makespan(tuple(each), heads, processors, start) for each in blocks.tolist()]
        tiles = tiles + np.array(found)
        calls = calls + (blocks.sum(-1) > 0)
    return tiles, calls


def blocks_of(band: MaskBlock, block: Tile) -> np.ndarray:
    """int[devices, blocks]: the tiles of each block of queries."""
    shape = np.broadcast_shapes(np.shape(band.low), np.shape(band.high), (1,))
    low, high = (np.broadcast_to(x, shape)[..., None].astype(np.int64) for x in (band.low, band.high))
    spread, index = band._replace(low=low, high=high), np.arange(-(-band.rows // block.block_q))
    first, last = row_tiles(spread, block)
    a, _, _, d = column_tiles(spread, block, index * block.block_q, row_limits(band))
    return np.where((index >= first) & (index < last), d - a, 0)


def transposed(band: MaskBlock) -> MaskBlock:
    """The rectangle with queries and keys exchanged, for a backward pass. Limits of documents are not transposed:
    kernels that run in waves have none."""
    return band._replace(row=band.col, col=band.row, rows=band.cols, cols=band.rows, low=-band.high, high=-band.low)


@lru_cache(2**12)
def makespan(blocks: tuple[int, ...], heads: int, processors: int, start: float = 0.0) -> float:
    """Tiles of the processor with the most, where each processor that has finished takes the next block; the start of a
    block counts as `start` tiles."""
    live = [each + start for each in blocks if each]
    if not live:
        return 0
    if len(live) * heads > MAX_EXACT_BLOCKS * processors:
        return sum(live) * heads / processors + max(live) / 2
    busy = [0.0] * processors
    for _ in range(heads):
        for each in live:
            heapq.heapreplace(busy, busy[0] + each)
    return max(busy)
