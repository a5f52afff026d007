"""The bound that arithmetic sets: the critical path of a layout, and the largest speed-up of one layout over another.

A round ends when its slowest device ends (Brandon et al. 2023, section 2.2), so the critical path is the sum over
rounds of the most work that any device has, in query/key pairs or in tiles.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from stripectl.core.layout import Layout, Tile, Window, layouts
from stripectl.core.mask_tiles import TileCount, count_pairs, count_tiles
from stripectl.core.model import Model
from stripectl.core.sequence_sharding import SequenceSharding
from stripectl.core.workload import Workload


@dataclass(frozen=True)
class Work:
    """The work of each device in each round of a ring: pairs int[devices, rounds], and tiles by kind, each so too."""

    pairs: np.ndarray
    tiles: TileCount
    tile: Tile

    @property
    def critical_pairs(self) -> int:
        return int(self.pairs.max(0).sum())

    @property
    def critical_tiles(self) -> int:
        return int(self.tiles.computed.max(0).sum())


@lru_cache(maxsize=1024)
def ring_work(layout: Layout, shards: int, rows: int, window: Window, tile: Tile) -> Work:
    """The work of every device in every round when keys travel once round a ring of `shards` with `rows` rows each."""
    me, every = np.arange(shards)[:, None], (shards, shards)
    bands = SequenceSharding.square(layout, window, shards, rows).bands(me, (me - np.arange(shards)) % shards)
    counts = (np.broadcast_to(kind, every) for kind in count_tiles(bands, tile))
    return Work(np.broadcast_to(count_pairs(bands), every), TileCount(*counts), tile)


def attention_speedup(layout: Layout, shards: int, rows: int, window: Window, tile: Tile | None = None) -> float:
    """The largest speed-up of attention over the contiguous layout; 2 - 1/N for balanced layouts and large blocks.

    A layout saves only whole tiles, so a tile makes the result smaller. Without a tile it counts pairs.
    """
    size = tile or Tile(rows, rows)
    works = (ring_work(each, shards, rows, window, size) for each in (layouts["contiguous"], layout))
    slow, fast = (work.critical_tiles if tile else work.critical_pairs for work in works)
    return slow / fast


def layer_speedup(
    model: Model, seq_len: int, ring: int, attention: tuple[float, float], cost: float, matrices: int
) -> float:
    """The largest speed-up of a whole layer whose attention has critical paths `attention` = (slow, fast), in pairs.

    FLOPs per token and layer (Brandon et al. 2023, section 4, "TMS"): D = 8 d^2 + 4 d d_ff + 2 d V / L dense FLOPs, and
    4 d for each pair of the critical path over the block c, multiplied by `cost`. The paper counts two `matrices` of a
    feed-forward.
    """
    d, block = model.hidden, seq_len / ring
    dense = 8 * d * d + 2 * matrices * d * model.feed_forward + 2 * d * model.vocabulary / model.layers
    slow, fast = (dense + cost * 4 * d * pairs / block for pairs in attention)
    return slow / fast


def formula_lengths(workload: Workload, shards: int, hbm_bytes: float) -> dict[str, int]:
    """The longest sequence whose activations of one layer fill the memory of a device, in bfloat16 (Liu et al. 2023,
    Table 1: 2 b n s^2, 8 b s h, 2 b s h and 6 b c h bytes, for n heads, hidden size h and blocks c = s / N)."""
    b, n, h = workload.batch, workload.heads, workload.heads * workload.head_dim
    return {
        "vanilla": int(math.sqrt(hbm_bytes / (2 * b * n))),
        "memory-efficient attention": int(hbm_bytes / (8 * b * h)),
        "and blockwise feed-forward": int(hbm_bytes / (2 * b * h)),
        "ring attention": int(shards * hbm_bytes / (6 * b * h)),
    }
