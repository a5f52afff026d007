"""Thread blocks of a GPU kernel on its processors: work is rounded up to waves.

A thread block computes a block of queries (in the backward pass, of keys) of one head with all its keys, tile by tile.
Before its first tile a block starts: it loads its queries and fills its pipeline, and in the end it stores its result.
A processor that has finished takes the next block in the order in which the kernel starts them: the blocks of one head,
then of the next, or the longest of all heads first (FlashAttention-3, arXiv:2407.08608, `hopper/tile_scheduler.hpp`).
Eight heads of 256 queries therefore take as long as eight of 2,048 on a GPU of 132 processors.
"""

import heapq
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from stripectl.core.layout import MaskBlock, Tile
from stripectl.core.mask_tiles import column_tiles, row_limits, row_tiles
from stripectl.results.tile_cost import Waves

MAX_EXACT_BLOCKS = 64  # blocks per processor; beyond it, rounding up is less than 1 %
MAX_SHORT_BLOCKS = 8  # the same where the shortest blocks are last, of a causal mask


def busiest_processor(bands: Sequence[MaskBlock], heads: int, waves: Waves) -> tuple[np.ndarray, np.ndarray]:
    """(tiles of the processor with the most, calls of the kernel) on each device for a pair of shards; each rectangle
    with a live score is a call. The start of a block counts as tiles."""
    tiles, calls = np.zeros(1), np.zeros(1, int)
    for band in bands:
        blocks = blocks_of(band, waves.block)
        found = [makespan(tuple(each), heads, waves) for each in blocks.tolist()]
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
def makespan(blocks: tuple[int, ...], heads: int, waves: Waves) -> float:
    """Tiles of the processor with the most, where each processor that has finished takes the next block: of one head
    after the other, or of all heads the longest that is left."""
    live = [each + waves.start_tiles for each in blocks if each]
    if not live:
        return 0
    count, mean = len(live) * heads, -(-sum(live) * heads // waves.processors)
    if min(live) == max(live):
        return -(-count // waves.processors) * live[0]
    if waves.longest_first and count > MAX_SHORT_BLOCKS * waves.processors:
        return mean
    if count > MAX_EXACT_BLOCKS * waves.processors:
        return mean + max(live) // 2
    order = np.sort(np.repeat(live, heads))[::-1].tolist() if waves.longest_first else live * heads
    busy = [0.0] * waves.processors
    for each in order:
        heapq.heapreplace(busy, busy[0] + each)
    return max(busy)
