"""Tiles of pairs of shards, for every device and plan at once.

The counts are cached, because passes, schemes and meshes that are compared have the same pairs.
"""

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from stripectl.core.layout import MaskBlock, Part, Tile
from stripectl.core.mask_tiles import TileCount, tile_ends
from stripectl.core.sequence_sharding import SequenceSharding, document_lookup
from stripectl.costs.waves import busiest_processor, transposed
from stripectl.results.tile_cost import Waves

MAX_SHARDS_AT_ONCE = 2**8  # shards whose pairs are counted all at once
Count = Callable[[list[MaskBlock], Tile], TileCount]


def count_round(
    count: Count,
    sharding: SequenceSharding,
    starts: tuple[int, ...] | None,
    tiles: tuple[Tile, ...],
    part: Part,
    me: np.ndarray,
    src: np.ndarray,
) -> TileCount:
    """Tiles of a round, (plans, devices): queries of shard `me` with keys of shard `src`, where documents, if any,
    begin at `starts`."""
    if starts is None and sharding.shards <= MAX_SHARDS_AT_ONCE:
        return TileCount(*count_pairs_of_shards(count, sharding, tiles, part)[:, :, me, src])
    return _of_pairs(count, sharding, starts, tiles, part, tuple(me.tolist()), tuple(src.tolist()))


@lru_cache(maxsize=2**9)
def count_pairs_of_shards(
    count: Count,
    sharding: SequenceSharding,
    tiles: tuple[Tile, ...],
    part: Part,
) -> np.ndarray:
    """Tiles of every pair of shards, (kind, plan, queries' shard, keys' shard), cached for all passes, schemes and
    meshes that are compared."""
    if len(tiles) > 1:
        return np.concatenate([count_pairs_of_shards(count, sharding, (tile,), part) for tile in tiles], axis=1)
    me, every = np.arange(sharding.shards), (sharding.shards, sharding.shards)
    found = count(sharding.bands(me[:, None], me[None], part), *tiles)
    kinds = found.whole, found.boundary, found.dead, found.rows
    return np.stack([np.broadcast_to(kind, every) for kind in kinds])[:, None]


@lru_cache(maxsize=2**11)
def _of_pairs(
    count: Count,
    sharding: SequenceSharding,
    starts: tuple[int, ...] | None,
    tiles: tuple[Tile, ...],
    part: Part,
    me: tuple[int, ...],
    src: tuple[int, ...],
) -> TileCount:
    """Tiles of pairs of shards, (plans, devices)."""
    documents = None if starts is None else document_lookup(np.array(starts), sharding.shards * sharding.rows)
    found = []
    for tile in tiles:
        bands = sharding.bands(np.array(me), np.array(src), part, documents, tile_ends(tile))
        kinds = count(bands, tile)
        found.append([np.broadcast_to(kind, len(me)) for kind in (kinds.whole, kinds.boundary, kinds.dead, kinds.rows)])
    return TileCount(*np.stack(found, 1))


@lru_cache(maxsize=2**11)
def busiest_processors(
    sharding: SequenceSharding,
    part: Part,
    me: tuple[int, ...],
    src: tuple[int, ...],
    backward: bool,
    heads: int,
    waves: Waves,
) -> tuple[np.ndarray, np.ndarray]:
    """`waves.busiest_processor` for pairs of shards."""
    bands = sharding.bands(np.array(me), np.array(src), part)
    return busiest_processor([transposed(band) if backward else band for band in bands], heads, waves)
